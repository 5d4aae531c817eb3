"""The form that adds an adapter to a deployment."""

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.access import policies
from console.access.models import User
from console.catalog.models import Revision
from console.deployments import adapter_fit
from console.deployments.public import MODEL_NAME


class RevisionField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Adapters with what decides whether they fit."""

    def label_from_instance(self, revision: Revision) -> str:
        """Name, commit, rank, and the base that its author names."""
        facts = adapter_fit.facts_of(revision)
        if facts is None:
            return _("%(revision)s · not verified yet") % {"revision": revision}
        words = {"revision": revision, "rank": facts.rank, "base": facts.base_model or _("base not said")}
        return _("%(revision)s · rank %(rank)d · %(base)s") % words


class AdapterForm(forms.Form):
    """Which adapter, under which name."""

    revision = RevisionField(
        Revision.objects.none(),
        label=gettext_lazy("Adapter"),
        empty_label=gettext_lazy("Choose an adapter"),
        help_text=gettext_lazy("LoRA adapters of the model list. A host that hasn't its files gets and verifies them."),
    )
    name = forms.CharField(
        label=gettext_lazy("Model name"),
        max_length=128,
        validators=[MODEL_NAME],
        help_text=gettext_lazy("Clients ask for it by this name, with the keys of the deployment's route."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "class": "mono"}),
    )
    other_base = forms.BooleanField(
        label=gettext_lazy("It was made for this model, whatever name it gives its base"),
        required=False,
        help_text=gettext_lazy("Its widths and layers have to fit in any case."),
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = Revision.objects.filter(facts__kind="adapter").select_related("model").order_by("model__name", "-pk")
        self.fields["revision"].queryset = policies.visible(user, rows, team_path="model__team")  # type: ignore[attr-defined]


def adapters_known(user: User) -> bool:
    """True if there is an adapter to choose."""
    rows = Revision.objects.filter(facts__kind="adapter")
    return policies.visible(user, rows, team_path="model__team").exists()
