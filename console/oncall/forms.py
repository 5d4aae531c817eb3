"""Forms of the on-call page."""

from django import forms
from django.utils.translation import gettext_lazy as _

from console.alerts.forms import SilenceForm
from console.common.forms import ReasonForm


class QuietForm(ReasonForm):
    """For how long, and why."""

    hours = forms.ChoiceField(label=_("For"), choices=SilenceForm.HOURS, initial="4")


class RestartAllForm(ReasonForm):
    """Why, and a second yes where requests are being served."""

    sure = forms.BooleanField(label=_("I know that requests in flight fail"))

    def __init__(self, *args: object, hurts: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not hurts:
            del self.fields["sure"]


class NoteForm(forms.Form):
    """What a person writes down about an incident."""

    text = forms.CharField(
        label=_("Note"),
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": _("What you saw, tried, or decided")}),
    )
