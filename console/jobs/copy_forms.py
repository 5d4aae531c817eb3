"""Forms that bring a model to a host: look it up at a source, choose its files and hosts."""

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from console.catalog.models import Source
from console.fleet.models import Host
from console.jobs.host_forms import new_key
from workers.weights.hub_types import RepositoryFacts


def _rate_limit() -> forms.IntegerField:
    return forms.IntegerField(
        label=_("Rate limit"),
        required=False,
        min_value=1,
        max_value=1_000_000,
        help_text=_("MiB/s on each host; empty: as fast as it goes."),
        widget=forms.NumberInput(attrs={"placeholder": _("no limit")}),
    )


class LookupForm(forms.Form):
    """Which repository of a source, at which revision; or words to search for."""

    source = forms.ModelChoiceField(queryset=Source.objects.none(), widget=forms.HiddenInput)
    q = forms.CharField(
        label=_("Model"),
        max_length=200,
        help_text=_("Words to search for, or its name as the source has it."),
        widget=forms.TextInput(
            attrs={
                "type": "search",
                "autofocus": True,
                "autocomplete": "off",
                "spellcheck": "false",
                "placeholder": "Qwen/Qwen3-0.6B",
            }
        ),
    )
    revision = forms.CharField(
        label=_("Revision"),
        max_length=120,
        required=False,
        help_text=_("Branch, tag or commit; it is pinned to its commit."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "main", "list": "revisions"}
        ),
    )

    def __init__(self, *args: Any, sources: QuerySet[Source], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["source"].queryset = sources  # type: ignore[attr-defined]

    @property
    def repository(self) -> str:
        """The text if it is a repository's name (or its address), else nothing: then it is searched for."""
        text = str(self.cleaned_data.get("q", "")).strip().removesuffix("/")
        if text.startswith(("http://", "https://")):
            path = text.split("/", 3)[3] if text.count("/") > 2 else ""
            text = "/".join(path.removeprefix("models/").split("/")[:2])
        return text if text.count("/") == 1 and " " not in text else ""


class DownloadForm(forms.Form):
    """What of a pinned revision goes to which hosts."""

    source = forms.ModelChoiceField(queryset=Source.objects.none(), widget=forms.HiddenInput)
    repository = forms.CharField(widget=forms.HiddenInput, max_length=200)
    commit = forms.CharField(widget=forms.HiddenInput, max_length=64)
    name = forms.CharField(
        label=_("Name"),
        max_length=120,
        help_text=_("As people will call the model here."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    hosts = forms.ModelMultipleChoiceField(
        label=_("Hosts"), queryset=Host.objects.none(), error_messages={"required": _("Choose at least one host.")}
    )
    files = forms.MultipleChoiceField(  # type: ignore[assignment]  # the field; uploads have none of that name here
        label=_("Files"), error_messages={"required": _("Choose at least one file.")}
    )
    license = forms.CharField(label=_("Licence"), max_length=60, required=False)
    rate_limit_mib = _rate_limit()
    notes = forms.CharField(label=_("Notes"), required=False, widget=forms.Textarea(attrs={"rows": 2}))
    idempotency_key = forms.CharField(widget=forms.HiddenInput, initial=new_key, max_length=50)

    def __init__(self, *args: Any, sources: QuerySet[Source], hosts: QuerySet[Host], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["source"].queryset = sources  # type: ignore[attr-defined]
        self.fields["hosts"].queryset = hosts  # type: ignore[attr-defined]

    def offer(self, facts: RepositoryFacts) -> None:
        """Let exactly the files of this revision be chosen."""
        self.fields["files"].choices = [(file.path, file.path) for file in facts.files]  # type: ignore[attr-defined]


class CopyToForm(forms.Form):
    """Which hosts get a copy of a revision, and where they get it from."""

    source = forms.ChoiceField(label=_("From"), error_messages={"required": _("Choose where to copy from.")})
    hosts = forms.ModelMultipleChoiceField(
        label=_("To"), queryset=Host.objects.none(), error_messages={"required": _("Choose at least one host.")}
    )
    rate_limit_mib = _rate_limit()
    idempotency_key = forms.CharField(widget=forms.HiddenInput, initial=new_key, max_length=50)

    def __init__(self, *args: Any, sources: list[tuple[str, str]], hosts: QuerySet[Host], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["source"].choices = sources  # type: ignore[attr-defined]
        self.fields["hosts"].queryset = hosts  # type: ignore[attr-defined]


class ConsentForm(forms.Form):
    """An admin's yes to code that comes with a model."""

    understood = forms.BooleanField(
        label=_("I have read that code, or trust who published it, and allow it to run on our hosts."),
        error_messages={"required": _("Without this yes, the launch stays refused.")},
    )
    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        help_text=_("It stands in the audit log, with your name."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
