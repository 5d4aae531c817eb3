"""Words, numbers and icons of the pages."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.template import Context, Template
from django.utils import timezone

from console.common.spans import readable_bytes, readable_duration, relative
from console.common.states import LOOKS
from console.common.templatetags import slipway


def render(source: str, **context: object) -> str:
    return Template("{% load slipway %}" + source).render(Context(context))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.42, "0.4 s"),
        (12, "12 s"),
        (72, "1 min 12 s"),
        (3600, "1 h"),
        (11_100, "3 h 5 min"),
        (352_800, "4 d 2 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (269_060_552, "257 MiB"),
        (5.2 * 1024**3, "5.2 GiB"),
        (1.04 * 1024**3, "1 GiB"),
        (1024**3, "1 GiB"),  # after the size that is rounded to it: one must not be written as the other was
        (999.6 * 1024**2, "1 GiB"),
        (2 * 1024**4, "2 TiB"),
    ],
)
def test_sizes_have_a_binary_unit(count: float, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("shift", "text"), [(1, "just now"), (250, "4 min ago"), (-7300, "in 2 h"), (400_000, "4 d ago")]
)
def test_moments_are_told_from_now(shift: int, text: str) -> None:
    assert relative(timezone.now() - timedelta(seconds=shift)) == text


def test_every_time_carries_the_absolute_one_with_its_zone() -> None:
    html = render("{% ago when %}", when=timezone.now() - timedelta(minutes=4))
    assert re.search(r'<time datetime="\S+" title="\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC" data-ago>4 min ago</time>', html)
    assert render("{% ago when %}", when=None) == "–"


@pytest.mark.parametrize("name", sorted(LOOKS))
def test_every_state_has_a_word_an_icon_and_a_colour(name: str) -> None:
    html = render("{% state name %}", name=name)
    assert "<svg" in html
    assert str(LOOKS[name].word) in html
    assert f"state-{LOOKS[name].colour}" in html


def test_every_icon_that_templates_name_is_there() -> None:
    named = set()
    for path in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'{% icon "([^"]+)"', text)) | set(re.findall(r'drawing="([^"]+)"', text))
        named |= set(re.findall(r'{% nav_item "\w+" "([^"]+)"', text))
    assert len(named) > 20
    for name in named:
        assert slipway.icon_drawing(name)


def test_no_template_carries_an_inline_script_or_style() -> None:
    for path in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        # What stands inside a tag never reaches the page: {% querystring only="changed" %} is no handler.
        text = re.sub(r"{%.*?%}", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"""\sstyle=|\son[a-z]+=["']|hx-on|javascript:""", text), path
        assert not re.search(r"<script(?![^>]*(src=|application/json))", text), path
        assert not re.search(r"""(src|href)=["']https?://""", text), path


def test_progress_says_how_much_of_what_how_fast_and_how_long() -> None:
    html = render(
        "{% progress report %}",
        report={
            "done": 2 * 1024**3,
            "total": 8 * 1024**3,
            "unit": "bytes",
            "rate": 100 * 1024**2,
            "waiting_for": "the hub",
        },
    )
    for text in ("2 GiB of 8 GiB", "100 MiB/s", "1 min 1 s left", "waiting for the hub", 'max="8589934592"'):
        assert text in html
    assert "<progress aria-label" in render("{% progress report %}", report={"done": 3, "unit": "items"})
