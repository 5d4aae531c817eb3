"""The words, numbers and small pieces that all pages share: states, times, sizes, icons, progress, form rows."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from django import template
from django.conf import settings
from django.forms import BoundField, CheckboxInput, RadioSelect, Select
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from console.common.spans import readable_bytes, readable_duration, relative, unit_words
from console.common.states import LOOKS, Look

register = template.Library()

ICONS = Path(settings.BASE_DIR) / "static" / "vendor" / "tabler-icons"


@cache
def icon_drawing(name: str) -> str:
    """What stands inside an icon's `<svg>`, from the vendored file; raises FileNotFoundError for a name without one."""
    folder, stem = ("filled", name.removesuffix("-filled")) if name.endswith("-filled") else ("outline", name)
    text = (ICONS / folder / f"{stem}.svg").read_text(encoding="utf-8")
    inner = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    return re.sub(r"\s+", " ", inner.replace('<path stroke="none" d="M0 0h24v24H0z" fill="none" />', "")).strip()


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    """An icon as inline SVG, hidden from screen readers: a word always stands beside it or on its control."""
    kind = "icon-filled" if name.endswith("-filled") else "icon-outline"
    return format_html(
        '<svg class="icon {} {}" viewBox="0 0 24 24" aria-hidden="true" focusable="false">{}</svg>',
        kind,
        css,
        mark_safe(icon_drawing(name)),  # noqa: S308 - a vendored file of ours
    )


def look_of(thing: Any) -> Look:
    """How `thing` looks: a Look, a state's name, or an object with `shown_look` or `look`."""
    if isinstance(thing, Look):
        return thing
    if isinstance(thing, str):
        return LOOKS.get(thing, Look(thing, "help", "grey"))
    look = getattr(thing, "shown_look", None) or thing.look
    return look if isinstance(look, Look) else LOOKS["unknown"]


@register.simple_tag
def state(thing: Any, text: str = "") -> SafeString:
    """The state of `thing` as icon + word in its colour. `text` replaces the word."""
    look = look_of(thing)
    return format_html('<span class="state state-{}">{}{}</span>', look.colour, icon(look.icon), text or look.word)


@register.filter
def colour(thing: Any) -> str:
    """Colour name of a thing's state: green, blue, amber, red or grey."""
    return look_of(thing).colour


@register.simple_tag
def ago(when: datetime | None, empty: str = "–") -> SafeString:
    """A moment as "4 min ago", with the absolute time and its zone on hover. The page keeps it current."""
    if when is None:
        return mark_safe(empty)  # noqa: S308 - a dash
    local = timezone.localtime(when)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>', local.isoformat(), _absolute(local), relative(when)
    )


@register.simple_tag
def since(when: datetime | None, until: datetime | None = None, empty: str = "–") -> SafeString:
    """How long ago in plain duration ("1 min 12 s"), ticking on the page while `until` is open."""
    if when is None:
        return mark_safe(empty)  # noqa: S308 - a dash
    text = readable_duration(((until or timezone.now()) - when).total_seconds())
    return format_html(
        '<time datetime="{}" title="{}"{}>{}</time>',
        timezone.localtime(when).isoformat(),
        absolute(when),
        mark_safe("" if until else " data-since"),  # noqa: S308 - constants
        text,
    )


@register.filter
def absolute(when: datetime | None) -> str:
    """A moment with date, seconds and zone: `2026-11-29 14:06:31 CST`."""
    return "" if when is None else _absolute(timezone.localtime(when))


def _absolute(local: datetime) -> str:
    return f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"


@register.filter
def clock(when: datetime | None) -> str:
    """Time of day with seconds in the console's zone, for lines of a log."""
    return f"{timezone.localtime(when):%H:%M:%S}" if when else ""


@register.filter(name="bytes")
def bytes_filter(count: float | str | None) -> str:
    """A size in bytes as `5.2 GiB` (powers of 1024); a dash if it is unknown."""
    return "–" if count in (None, "") else readable_bytes(float(count))


@register.filter
def duration(seconds: float | str | None) -> str:
    """A span in seconds as `1 min 12 s`; a dash if it is unknown."""
    return "–" if seconds in (None, "") else readable_duration(float(seconds))


@register.filter
def percent_of(part: float | None, whole: float | None) -> int:
    """`part` as whole per cent of `whole`, 0 to 100."""
    if not part or not whole:
        return 0
    return max(0, min(100, round(100 * part / whole)))


@register.filter
def minus(left: float | None, right: float | None) -> float:
    """`left` - `right`."""
    return (left or 0) - (right or 0)


@register.filter
def get(mapping: Mapping[Any, Any] | None, key: Any) -> Any:
    """Entry of a mapping by a key that is not a plain name."""
    return mapping.get(key) if isinstance(mapping, Mapping) else None


@register.filter
def at(row: Sequence[Any], position: int) -> Any:
    """Entry of a list by its position, counted from 0: two lists that are walked together."""
    return row[position]


@register.filter
def pretty_json(value: Any) -> str:
    """A JSON value with indents."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def _amount(count: float, unit: str) -> str:
    if unit == "bytes":
        return readable_bytes(count)
    if unit == "seconds":
        return readable_duration(count)
    whole = number_format(round(count, 1) if count < 10 and count % 1 else round(count))
    return {"tokens": _("%s tokens"), "items": "%s"}.get(unit, f"%s {unit}") % whole


@register.inclusion_tag("common/_progress.html")
def progress(report: Mapping[str, Any] | None, label: str = "") -> dict[str, Any]:
    """A bar with "3.1 of 8.2 GiB · 120 MiB/s · 43 s left", from a step's last `StepProgress` as a dict."""
    report = report or {}
    done, total, unit = report.get("done") or 0, report.get("total"), report.get("unit", "items")
    rate = report.get("rate")
    parts = []
    if total:
        parts.append(_("%(done)s of %(total)s") % {"done": _amount(done, unit), "total": _amount(total, unit)})
    elif done:
        parts.append(_amount(done, unit))
    if rate and unit != "seconds":
        parts.append(_("%s/s") % _amount(rate, unit))
    left = report.get("remaining_seconds") or ((total - done) / rate if rate and total and total > done else None)
    if left:
        parts.append(_("%s left") % readable_duration(left))
    return {
        "label": label or _("Progress"),
        "value": min(done, total) if total else None,
        "total": total,
        "parts": parts,
        "waiting_for": report.get("waiting_for", ""),
    }


@register.inclusion_tag("common/_copyable.html")
def copyable(text: str, label: str = "", *, block: bool = False) -> dict[str, Any]:
    """Text in monospace with a copy button. `block`: as a box of its own, lines kept."""
    return {"text": text, "label": label or _("Copy"), "block": block}


@register.simple_tag
def control(bound: BoundField) -> SafeString:
    """A form's control with its classes, without label and help: for filter bars, and inside `field`."""
    widget = bound.field.widget
    base = "form-control"
    if isinstance(widget, CheckboxInput | RadioSelect):
        base = "form-check-input"
    elif isinstance(widget, Select):
        base = "form-select"
    classes = f"{base} {widget.attrs.get('class', '')} {'is-invalid' if bound.errors else ''}".strip()
    attrs: dict[str, str | bool] = {"class": classes}
    if widget.attrs.get("placeholder") == bound.label:
        attrs["placeholder"] = ""
    return bound.as_widget(attrs=attrs)


@register.inclusion_tag("common/_field.html")
def field(bound: BoundField, css: str = "", hint: str = "") -> dict[str, Any]:
    """One row of a form: label, control, help in a sentence, errors at the field."""
    widget = bound.field.widget
    check = isinstance(widget, CheckboxInput)
    return {
        "bound": bound,
        "control": control(bound),
        "check": check,
        "radios": isinstance(widget, RadioSelect),
        "css": css,
        "hint": hint or bound.help_text,
        "optional": not bound.field.required and not check,
    }


@register.inclusion_tag("common/_sort.html", takes_context=True)
def sort(context: template.Context, name: str, label: str, css: str = "") -> dict[str, Any]:
    """A column's heading `<th>` that sorts the list by `name`: once up, twice down (query parameter `sort`)."""
    request: HttpRequest = context["request"]
    current = request.GET.get("sort", "")
    query = request.GET.copy()
    query["sort"] = f"-{name}" if current == name else name
    query.pop("page", None)
    direction = {name: "ascending", f"-{name}": "descending"}.get(current, "")
    return {"url": f"?{query.urlencode()}", "label": label, "direction": direction, "css": css}


@register.inclusion_tag("common/_nav_item.html", takes_context=True)
def nav_item(context: template.Context, url_name: str, icon_name: str, label: str) -> dict[str, Any]:
    """One link of the main navigation; current on its page and on the pages below it."""
    from django.urls import NoReverseMatch, reverse

    request: HttpRequest | None = context.get("request")
    try:
        url = reverse(url_name)
    except NoReverseMatch:
        return {"url": ""}
    path = request.path if request else ""
    current = path == url if url == "/" else path.startswith(url)
    return {"url": url, "icon_name": icon_name, "label": label, "current": current}


@register.simple_tag
def words() -> dict[str, Any]:
    """The words that the page's scripts need, in the reader's language, for `json_script`."""
    return {
        "units": unit_words(),
        "live": _("live"),
        "lost": _("connection lost, trying again"),
        "connecting": _("connecting"),
        "out": _("signed out"),
        "copied": _("Copied"),
        "failed": _("The console did not answer. Check your connection, then try again."),
        "refused": _("You may not do this."),
        "gone": _("This is no longer there. Reload the page."),
        "broken": _("The console made an error (%s). It is in its log; try again."),
        "signed_out": _("You were signed out. Reload the page to sign in."),
    }
