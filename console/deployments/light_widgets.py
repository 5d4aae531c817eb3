"""Controls that write their HTML themselves: three hundred of Django's template-rendered ones take a third of a second."""

from typing import Any

from django import forms
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString


def _attributes(widget: forms.Widget, name: str, attrs: dict[str, Any] | None) -> str:
    return flatatt({"name": name, **widget.attrs, **(attrs or {})})


class LightInput(forms.TextInput):
    """One line of text."""

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:  # noqa: ARG002
        """The input."""
        given = {"value": str(value)} if value not in (None, "") else {}
        return format_html('<input type="text"{}>', _attributes(self, name, {**(attrs or {}), **given}))


class LightArea(forms.Textarea):
    """Several lines of text."""

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:  # noqa: ARG002
        """The box; a first line break belongs to HTML, not to the text."""
        return format_html("<textarea{}>\n{}</textarea>", _attributes(self, name, attrs), value or "")


class LightSelect(forms.Select):
    """A choice of texts, without groups."""

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:  # noqa: ARG002
        """The select; a value that is no choice stays, so that what was sent is what is shown."""
        chosen = "" if value is None else str(value)
        choices = list(self.choices)
        if chosen not in {str(key) for key, _words in choices}:
            choices.append((chosen, chosen))
        options = format_html_join(
            "", '<option value="{}"{}>{}</option>',
            ((key, SafeString(" selected") if str(key) == chosen else "", words) for key, words in choices),
        )  # fmt: skip
        return format_html("<select{}>{}</select>", _attributes(self, name, attrs), options)
