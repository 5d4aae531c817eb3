"""Rows of the deploy form's arguments. Nine of ten are never touched, and look the same in every form."""

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from console.deployments.form_page import ArgumentRow
from workers.vllm.arguments import Argument

register = template.Library()
_MOST_KEPT = 10_000
_untouched: dict[tuple[int, str], tuple[Argument, SafeString]] = {}
"""Rows by argument and language, each beside its argument: an identity alone could be another object's by now."""


@register.simple_tag
def argument_row(row: ArgumentRow) -> SafeString:
    """One argument with its control. Rows that are neither set nor wrong are rendered once."""
    if row.changed or row.bound.errors:
        return _render(row)
    key = (id(row.argument), get_language() or "")
    found = _untouched.get(key)
    if found is None or found[0] is not row.argument:
        if len(_untouched) >= _MOST_KEPT:
            _untouched.clear()
        found = _untouched[key] = (row.argument, _render(row))
    return found[1]


def _render(row: ArgumentRow) -> SafeString:
    return render_to_string("deployments/_argument.html", {"row": row})
