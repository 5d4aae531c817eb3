"""Forms about people and one's own account."""

from django import forms
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.utils.translation import gettext_lazy as _

from console.access.models import Role

ROLE_HELP = _(
    "Viewers look. Operators also restart, stop and try models. Admins also deploy, and manage people and hosts."
)


class AddPersonForm(forms.Form):
    """A new person with a role; the console makes the first password."""

    username = forms.CharField(
        label=_("Name"),
        max_length=150,
        validators=[UnicodeUsernameValidator()],
        help_text=_("What they sign in with: letters, digits and @ . + - _"),
        widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "off", "spellcheck": "false"}),
    )
    role = forms.ChoiceField(label=_("Role"), choices=Role.choices, initial=Role.VIEWER, help_text=ROLE_HELP)


class RoleForm(forms.Form):
    """Another role for a person."""

    role = forms.ChoiceField(label=_("Role"), choices=Role.choices, help_text=ROLE_HELP)


class OwnPasswordForm(forms.Form):
    """One's own password: the current one, and the new one twice."""

    current = forms.CharField(
        label=_("Current password"), widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )
    new = forms.CharField(
        label=_("New password"),
        help_text=_("10 characters at least, and not one that everybody uses."),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    again = forms.CharField(
        label=_("New password again"), widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )

    def clean_again(self) -> str:
        """Both must be the same."""
        again = str(self.cleaned_data["again"])
        if self.cleaned_data.get("new") not in (None, again):
            raise forms.ValidationError(_("The two new passwords differ."))
        return again
