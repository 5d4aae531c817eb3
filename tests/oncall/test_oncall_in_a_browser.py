"""The on-call page in a real Chromium: at both widths, in both themes, by keyboard alone."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from console.access.models import AuditEntry, User
from tests.browsing import chromium, opened, site
from tests.factories import Fleet
from tests.oncall.test_board import break_, serving

__all__ = ["chromium", "site"]
pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_it_fits_and_every_button_can_be_touched(
    chromium: Browser, site: str, operator: User, admin: User, tmp_path: Path, width: int, theme: str
) -> None:
    break_(serving(Fleet.make(), admin), "failed")
    break_(serving(Fleet.make(), admin), "degraded", to="unhealthy")
    page, problems = opened(chromium, site, operator, width=width, theme=theme)
    for address in ("/oncall/", "/oncall/incidents/", "/oncall/trees/"):
        page.goto(address)
        page.screenshot(path=tmp_path / f"{address.strip('/').replace('/', '-')}-{width}-{theme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
    page.goto("/oncall/")
    assert page.locator("[data-problem]").count() == 2
    for button in page.locator(".problem-acts a:visible").all():
        box = button.bounding_box()
        assert box, button.inner_text()
        assert (box["x"] >= 0, box["x"] + box["width"] <= width) == (True, True)
        assert box["height"] >= (40 if width == 360 else 24), button.inner_text()
    assert problems == []


def test_a_problem_is_chosen_and_restarted_by_keyboard(
    chromium: Browser, site: str, operator: User, admin: User
) -> None:
    worst = serving(Fleet.make(), admin)
    other = serving(Fleet.make(), admin)
    break_(worst, "failed")
    break_(other, "degraded", to="unhealthy")
    page, problems = opened(chromium, site, operator)
    page.goto("/oncall/")
    page.keyboard.press("j")
    chosen = page.locator("[data-problem]:focus h2 a")
    assert chosen.inner_text() == worst.deployment.name
    page.keyboard.press("j")
    assert chosen.inner_text() == other.deployment.name
    page.keyboard.press("k")
    assert chosen.inner_text() == worst.deployment.name
    page.keyboard.press("?")
    assert page.locator("#oncall-keys").is_visible()
    page.keyboard.press("Escape")
    # A letter asks first; Escape takes it back, and nothing was done.
    page.keyboard.press("s")
    dialog = page.locator("#dialogs dialog[open]")
    dialog.wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.keyboard.press("s")
    dialog.wait_for()
    page.keyboard.type("tried once more")
    page.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    page.locator("#dialogs dialog").wait_for(state="detached")
    asked = AuditEntry.objects.get(reason="tried once more")
    assert asked.target == worst.deployment.name
    assert problems == []
