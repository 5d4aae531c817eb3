"""The charts of benchmarks and studies, drawn by a real Chromium under the console's own policy."""

import shutil
from collections.abc import Iterator

import pytest
from django.test import Client
from playwright.sync_api import Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from console.studies.models import Study
from tests.live.test_browser_walk import ARGUMENTS
from tests.studies.conftest import Bench

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(900)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PATIENCE_MS = 90_000


@pytest.fixture
def measured(transactional_db: None, bench: Bench) -> tuple[Bench, Study]:
    """A study of which base and one variant are measured, each a benchmark with single requests."""
    study = bench.study("--max-num-seqs 64")
    bench.drive(study)
    bench.measure(study, 50)
    bench.measure(study, 80)
    for _look in range(2):
        study = bench.drive(study)
    return bench, study


@pytest.fixture
def page(
    live_server: LiveServer, measured: tuple[Bench, Study], client: Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Page]:
    """A signed-in page; what violates the policy, or raises, fails the test."""
    if not CHROMIUM:
        pytest.fail("Chromium is missing: `apt-get install --no-install-recommends chromium`")
    # Playwright's loop runs in this thread, in which the test reads rows.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    client.force_login(measured[0].admin)
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1440, "height": 900})
        cookies = [{"name": name, "value": one.value, "url": live_server.url} for name, one in client.cookies.items()]
        context.add_cookies(cookies)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda told: problems.append(told.text) if "Content Security" in told.text else None)
        yield page
        browser.close()
    assert problems == []


def points(page: Page, name: str) -> int:
    """Marks that were really drawn in a chart."""
    chart = page.locator(f"[data-chart={name}]")
    expect(chart.locator(".plot-container")).to_be_visible()
    return chart.locator("path.point").count()


def hanging(page: Page) -> list[str]:
    """What is wider than its place: the page itself, or a table in its card."""
    found: list[str] = page.evaluate(
        "[document.documentElement, ...document.querySelectorAll('.table-wrap')]"
        ".filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.outerHTML.slice(0, 200))"
    )
    return found


def test_every_chart_of_a_study_and_of_a_benchmark_is_drawn(page: Page, measured: tuple[Bench, Study]) -> None:
    _bench, study = measured
    page.goto(f"/studies/{study.pk}/")
    assert points(page, "study-pareto") == 4, "two engines at two loads"
    expect(page.locator("[data-chart=study-bars] .point")).to_have_count(2)
    assert hanging(page) == [], "nothing hangs over the edge of the page, and no table over that of its card"

    trial = study.trials.select_related("benchmark").get(position=1)
    page.goto(f"/benchmarks/{trial.benchmark_id}/")
    assert points(page, "bench-curve") == 2
    assert points(page, "bench-ttft") >= 4

    base = study.trials.get(position=0)
    page.goto(f"/benchmarks/compare/?id={base.benchmark_id}&id={trial.benchmark_id}")
    assert points(page, "compare-curve") == 4
    assert hanging(page) == []
    expect(page.get_by_text("+60 %").first).to_be_visible()
