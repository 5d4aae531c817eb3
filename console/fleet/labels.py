"""Labels of hosts: what people say of a machine, and what placement may ask for."""

import re
from collections.abc import Mapping

from django import forms
from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.fleet.models import Host

NAME = re.compile(r"^[a-z0-9](?:[a-z0-9._/-]{0,61}[a-z0-9])?$")
VALUE = re.compile(r"^[A-Za-z0-9._-]{0,63}$")
MOST = 32


class LabelsField(forms.CharField):
    """Labels as `name` or `name=value`, separated by spaces or commas; cleans to values by name.

    `asks`: they are asked for, so `!name` and `name=!value` refuse what has them.
    """

    def __init__(self, *, asks: bool = False, **kwargs: object) -> None:
        super().__init__(required=False, max_length=2000, **kwargs)  # type: ignore[arg-type]
        self.asks = asks

    def clean(self, value: object) -> dict[str, str]:
        """Values by name, in the order of names. ValidationError names the word that is none."""
        found: dict[str, str] = {}
        for word in re.split(r"[\s,]+", super().clean(value)):
            if not word:
                continue
            name, equals, text = word.partition("=")
            if self.asks and name.startswith("!"):
                name, text = name[1:], f"!{text}"
            plain = text.removeprefix("!") if self.asks else text
            if equals and not plain and NAME.match(name):
                raise forms.ValidationError(
                    _("“%(word)s” lacks its value. Write %(name)s=value, or %(name)s alone."),
                    params={"word": word, "name": name},
                )
            if not NAME.match(name) or not VALUE.match(plain):
                raise forms.ValidationError(
                    _("“%(word)s” is no label. Write name or name=value: letters, digits, dots, hyphens."),
                    params={"word": word},
                )
            if found.get(name, text) != text:
                raise forms.ValidationError(_("%(name)s is given twice."), params={"name": name})
            found[name] = text
        if len(found) > MOST:
            raise forms.ValidationError(_("%(count)d labels are too many; %(most)d are taken."), params={
                "count": len(found), "most": MOST,
            })  # fmt: skip
        return dict(sorted(found.items()))


def text_of(labels: Mapping[str, str]) -> str:
    """Labels as the field takes them."""
    return " ".join(_word(name, value) for name, value in sorted(labels.items()))


def _word(name: str, value: str) -> str:
    if value == "!":
        return f"!{name}"
    return f"{name}={value}" if value else name


def set_labels(host: Host, *, labels: Mapping[str, str], actor: User) -> None:
    """Replace a host's labels. They count for what is placed from now on; what runs stays where it is."""
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(labels=dict(labels))
        access.record(
            actor=actor, action="host.labels", target=host.name, target_url=f"/hosts/{host.pk}/", labels=text_of(labels)
        )
        live.changed("host", host.pk)
