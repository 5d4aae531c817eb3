"""A log of a million lines in a real Chromium: few rows exist, and every line is a moment away."""

import re

import pytest
from playwright.sync_api import Browser

from console.access.models import User
from console.deployments.models import Attempt, Instance
from tests.browsing import chromium, opened, site
from tests.deployments.test_log_views import logged
from tests.factories import Fleet

__all__ = ["chromium", "site"]
pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

LINES, ERROR, NEEDLE = 1_000_000, 640_000, 777_777
MOST_ROWS = 200
LONGEST_FRAME_MS = 700.0
"""On two cores that also run the console: a reader sees it move all the while."""

WATCH_FRAMES = """() => {
  window.slowest = 0;
  let before = performance.now();
  const look = (now) => { window.slowest = Math.max(window.slowest, now - before); before = now; requestAnimationFrame(look); };
  requestAnimationFrame(look);
}"""


def text() -> bytes:
    lines = [b"(EngineCore pid=7) INFO 11-29 14:02:11 [core.py:1] step %07d\n" % number for number in range(LINES)]
    lines[ERROR] = b"(EngineCore pid=7) ERROR 11-29 14:02:11 [core.py:1] RuntimeError: CUDA error: an illegal access\n"
    lines[NEEDLE] = b"(APIServer pid=6) INFO 11-29 14:02:11 [api.py:1] the needle\n"
    return b"".join(lines)


@pytest.fixture
def attempt(fleet: Fleet, admin: User) -> Attempt:
    instance = Instance.objects.get(pk=fleet.deploy(admin).payload["instance"])
    return logged(instance, 1, text())


def test_a_million_lines_stay_smooth(chromium: Browser, site: str, viewer: User, attempt: Attempt) -> None:
    page, problems = opened(chromium, site, viewer)
    page.goto(f"/instances/{attempt.instance_id}/?attempt=1")
    view = page.locator("log-view")
    view.locator("[data-log-total]", has_text=re.compile("1.000.000")).wait_for()
    rows = view.locator(".log-line")
    assert 0 < rows.count() < MOST_ROWS
    page.evaluate(WATCH_FRAMES)
    box = view.locator("[data-log-box]")
    box.focus()
    for key in ("PageUp", "PageUp", "PageUp", "PageDown"):
        page.keyboard.press(key)
        page.wait_for_timeout(100)
    for share in (0.1, 0.5, 0.9, 0.3):
        box.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight; }", share)
        first = view.locator(".log-line:not(.awaited)").first
        first.wait_for()
        assert rows.count() < MOST_ROWS
    view.locator("[data-log-first]").wait_for()
    box.focus()
    page.keyboard.press("x")
    view.locator(".log-line.error", has_text="an illegal access").wait_for()
    view.locator("[data-log-find]").fill("the needle")
    page.keyboard.press("Enter")
    view.locator(".log-line", has_text="the needle").wait_for()
    assert view.locator(f"[data-line='{NEEDLE}']").count() == 1
    assert page.evaluate("window.slowest") < LONGEST_FRAME_MS
    assert problems == []
