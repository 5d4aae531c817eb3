"""Times and sizes in words: "4 min ago", "1 min 12 s", "5.2 GiB"."""

from datetime import datetime
from functools import cache, lru_cache

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import get_language
from django.utils.translation import gettext as _

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_JUST_NOW_SECONDS = 5
_SHORTEST_SECONDS = 0.05
"""What is shorter would be rounded to nothing."""


def unit_words() -> dict[str, str]:
    """Patterns for spans of time; the page's scripts use the same ones to keep times current."""
    return _unit_words(get_language())


@cache
def _unit_words(language: str | None) -> dict[str, str]:  # noqa: ARG001 - what gettext answers depends on it
    return {
        "now": _("just now"),
        "ago": _("%s ago"),
        "ahead": _("in %s"),
        "s": _("%s s"),
        "min": _("%s min"),
        "h": _("%s h"),
        "d": _("%s d"),
    }


def readable_duration(seconds: float) -> str:
    """A span in its two largest units: `< 0.1 s`, `0.4 s`, `12 s`, `1 min 12 s`, `3 h 5 min`, `4 d 2 h`."""
    unit = unit_words()
    if 0 < seconds < _SHORTEST_SECONDS:
        return f"< {unit['s'] % number_format(0.1)}"
    if 0 < seconds < 10 and seconds % 1:
        return unit["s"] % number_format(round(seconds, 1))
    whole = max(0, round(seconds))
    steps = [("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", 1)]
    for at, (name, size) in enumerate(steps):
        if whole >= size or size == 1:
            first = unit[name] % number_format(whole // size)
            rest, (smaller, smaller_size) = whole % size, steps[min(at + 1, 3)]
            second = rest // smaller_size
            return f"{first} {unit[smaller] % number_format(second)}" if size > 1 and second else first
    return unit["s"] % 0


def coarse_duration(seconds: float) -> str:
    """A span in its largest unit only: `12 s`, `4 min`, `3 h`, `5 d`."""
    unit = unit_words()
    whole = max(0, int(seconds))
    for name, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if whole >= size:
            return unit[name] % _number(whole // size, get_language())
    return unit["s"] % whole


def relative(when: datetime) -> str:
    """A moment as seen from now: `just now`, `4 min ago`, `in 2 h`."""
    seconds = (timezone.now() - when).total_seconds()
    unit = unit_words()
    if abs(seconds) < _JUST_NOW_SECONDS:
        return unit["now"]
    return (unit["ago"] if seconds > 0 else unit["ahead"]) % coarse_duration(abs(seconds))


def readable_bytes(count: float) -> str:
    """A size with a binary unit and three figures at most: `512 B`, `5.2 GiB`, `138 GiB`."""
    size = float(count)
    for name in ("B", "KiB", "MiB", "GiB"):
        if round(abs(size)) < 1000:
            return f"{_three_figures(size, whole=name == 'B')} {name}"
        size /= 1024
    return f"{_three_figures(size, whole=False)} TiB"


def _three_figures(size: float, *, whole: bool) -> str:
    rounded = round(size) if whole or abs(size) >= 100 else round(size, 1)
    return _number(rounded if rounded % 1 else int(rounded), get_language())


@lru_cache(maxsize=8192, typed=True)
def _number(value: float, language: str | None) -> str:  # noqa: ARG001 - how it is written depends on it
    """Write a number in the reader's way; a list of hosts has hundreds of them, most of them again and again."""
    return str(number_format(value))
