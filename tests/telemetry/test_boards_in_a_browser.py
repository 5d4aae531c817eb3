"""The boards in a real Chromium: both widths, both themes, what they save, and what a working day does to the browser."""

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Page

from console.access.models import User
from console.deployments.models import Deployment
from tests.browsing import chromium, opened, site
from tests.factories import Fleet
from tests.live.harness import wait_for
from tests.telemetry.scene import Scene

__all__ = ["chromium", "site"]
pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1200)]

CHARTS, UPDATES, AT_ONCE = 24, 28_800, 40
TALL = {360: 5200, 1440: 2700}
"""So high a window draws all charts of a board: those out of sight wait until somebody scrolls to them."""
REPLAY = Path(__file__).with_name("replay.js").read_text()


def drawn(page: Page) -> None:
    page.locator("metric-board[data-drawn]").wait_for(state="attached")


BOARDS = {
    "deployment-board": "/deployments/{deployment}/metrics/",
    "fleet-board": "/dashboards/",
    "wallboard": "/dashboards/wall/",
    "host-board": "/hosts/{host}/metrics/",
    "alerts": "/alerts/",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_every_board_fits_and_complains_about_nothing(
    broker: redis.Redis, chromium: Browser, site: str, viewer: User, tmp_path: Path, width: int, theme: str
) -> None:
    scene = Scene(broker)
    page, problems = opened(chromium, site, viewer, width=width, theme=theme)
    page.set_viewport_size({"width": width, "height": TALL[width]})
    for name, address in BOARDS.items():
        scene.breathe()
        page.goto(address.format(deployment=scene.deployment.pk, host=scene.host.pk))
        if name != "alerts":
            drawn(page)
            told = page.locator(".chart-card.is-empty [data-empty]").all_inner_texts()
            assert all(text.endswith(".") for text in told), (name, told)
            assert page.locator(".chart-card:not(.is-empty) .plot .main-svg").count() > 0, name
        page.screenshot(path=tmp_path / f"{name}-{width}-{theme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert problems == [], name


def test_a_board_of_nothing_says_why_in_every_chart(
    chromium: Browser, site: str, viewer: User, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.deploy()
    deployment = Deployment.objects.get()
    page, problems = opened(chromium, site, viewer)
    page.set_viewport_size({"width": 1440, "height": TALL[1440]})
    for name, address in BOARDS.items():
        if name == "alerts":
            continue
        page.goto(address.format(deployment=deployment.pk, host=fleet.host.pk))
        drawn(page)
        assert page.locator(".chart-card").count() == page.locator(".chart-card.is-empty").count() > 0, name
        assert all(page.locator(".chart-card [data-empty]").all_inner_texts()), name
        page.screenshot(path=tmp_path / f"empty-{name}.png", full_page=True)
    assert problems == []


def test_live_points_marks_zoom_and_pictures(
    broker: redis.Redis, chromium: Browser, site: str, viewer: User, tmp_path: Path
) -> None:
    scene = Scene(broker, seconds=120)
    page, problems = opened(chromium, site, viewer)
    page.goto(f"/deployments/{scene.deployment.pk}/metrics/")
    drawn(page)
    # The reader has chosen UTC, and the browser is elsewhere.
    shown = page.evaluate("document.querySelector('[data-plot=tokens]')._fullLayout.xaxis.range[1]")
    assert abs(datetime.fromisoformat(f"{shown[:19]}+00:00").timestamp() - time.time()) < 120
    page.locator("metric-board[data-link=live]").wait_for(state="attached")
    second = int(time.time()) + 1
    scene.tell(second)
    newest = "document.querySelector('metric-board').data.t.at(-1)"
    wait_for("the new second is drawn", lambda: page.evaluate(newest) == second * 1000, seconds=30)
    page.locator("[data-marks] summary").click()
    assert "KV cache nearly full" in page.locator("[data-marks-list]").inner_text()
    # A picture is drawn from an SVG in a canvas, which the policy for images has to allow.
    with page.expect_download() as saved:
        page.locator("[data-png='tokens']").click()
    picture = tmp_path / "tokens.png"
    saved.value.save_as(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5_000
    with page.expect_download() as table:
        page.locator("[data-csv-link]").click()
    assert Path(table.value.path()).read_text().startswith("time,slot_seconds,")
    plot = page.locator("[data-plot='tokens'] .nsewdrag")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 50, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("from="))
    assert page.locator("[data-zoom-out]").is_visible()
    page.keyboard.press("0")
    page.wait_for_url(re.compile("range=900"))
    assert problems == []


@pytest.mark.timeout(3600)  # each of 17,000 charts takes a slow processor 70 ms
def test_a_working_day_of_updates_leaves_the_browsers_memory_as_it_was(
    broker: redis.Redis, chromium: Browser, site: str, viewer: User
) -> None:
    """28,800 updates of 24 charts, drawn as the browser gets to it; memory counts from the first full half hour."""
    scene = Scene(broker, seconds=60)
    page, problems = opened(chromium, site, viewer)
    page.set_viewport_size({"width": 1440, "height": 3200})
    page.add_init_script(REPLAY)
    page.goto(f"/deployments/{scene.deployment.pk}/metrics/")
    drawn(page)
    assert page.locator(".chart-card").count() == CHARTS
    page.evaluate("replay.begin()")
    session = page.context.new_cdp_session(page)
    page.evaluate(f"replay.updates(1800, {AT_ONCE})")
    before = heap(session)
    page.evaluate(f"replay.updates({UPDATES}, {AT_ONCE})")
    after = heap(session)
    assert page.evaluate("document.querySelector('metric-board').data.t.length") <= 901
    assert page.locator(".plot .main-svg").count() >= CHARTS
    assert after < before * 1.10, f"{before / 2**20:.1f} MiB, then {after / 2**20:.1f} MiB"
    assert problems == []
    print(f"heap: {before / 2**20:.1f} MiB before, {after / 2**20:.1f} MiB after {UPDATES:,} updates")


def heap(session: Any) -> float:
    """Bytes that are in use after everything that can go has gone."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"])
