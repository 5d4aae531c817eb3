"""Words and numbers of benchmarks in templates."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.benchmarks import presentation
from console.benchmarks.comparison import Difference
from console.benchmarks.profiles import PROFILES
from console.common.states import Look
from console.common.templatetags.slipway import icon

register = template.Library()

VERDICTS = {
    "better": Look(gettext_lazy("better"), "circle-check", "green"),
    "worse": Look(gettext_lazy("worse"), "alert-triangle", "red"),
    "noise": Look(gettext_lazy("noise"), "activity", "grey"),
    "same": Look(gettext_lazy("the same"), "check", "grey"),
    "once": Look(gettext_lazy("measured once: nobody can know"), "help", "grey"),
}


@register.filter
def profile_title(key: str) -> str:
    """A profile's name for people."""
    profile = PROFILES.get(key)
    return str(profile.title) if profile else key


@register.filter
def measured(value: float | None, unit: str) -> str:
    """A number with its unit."""
    return presentation.number(value, unit)


@register.filter
def percent_text(share: float | None) -> str:
    """A share as per cent."""
    return "–" if share is None else f"{100 * share:.0f} %"


@register.simple_tag
def verdict(difference: Difference) -> SafeString:
    """How two measurements differ, and whether that is real: word, icon and colour."""
    look = VERDICTS[difference.verdict]
    share = "" if difference.share is None else f"{100 * difference.share:+.0f} % "
    return format_html(
        '<span class="state state-{}" title="{}">{}{}{}</span>', look.colour, _spreads(difference), icon(look.icon), share,
        look.word,
    )  # fmt: skip


@register.simple_tag
def answers_verdict(answered: Any) -> SafeString:
    """How the answers to the question set differ, and whether that is real; pointing at it names the questions."""
    look = VERDICTS[answered.verdict]
    turned = [*(f"-{key}" for key in answered.lost), *(f"+{key}" for key in answered.won)]
    return format_html(
        '<span class="state state-{}" title="{}">{}{}</span>',
        look.colour,
        ", ".join(turned),
        icon(look.icon),
        look.word,
    )


def _spreads(difference: Difference) -> str:
    unit = difference.measure.unit
    return _("spread of the repeats: %(first)s, %(second)s") % {
        "first": presentation.number(difference.first.spread, unit),
        "second": presentation.number(difference.second.spread, unit),
    }
