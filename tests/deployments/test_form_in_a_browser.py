"""The deploy form in a real Chromium: refusals stay at their field, and no command stands that isn't the form's."""

import shutil
from collections.abc import Iterator

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Page, Route, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from console.access.models import User
from console.deployments.models import Deployment
from tests.factories import Fleet
from tests.live.test_browser_walk import ARGUMENTS

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PATIENCE_MS = 60_000


@pytest.fixture
def page(live_server: LiveServer, client: Client, admin: User, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """An admin's page."""
    assert CHROMIUM, "Chromium is missing: apt-get install --no-install-recommends chromium"
    # Playwright's loop runs in this thread, in which the test reads rows.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    client.force_login(admin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = browser.new_context(base_url=live_server.url)
        cookies = [{"name": name, "value": one.value, "url": live_server.url} for name, one in client.cookies.items()]
        context.add_cookies(cookies)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield page
        browser.close()


def test_a_refused_deployment_says_why_until_its_field_is_touched(page: Page, fleet: Fleet) -> None:
    fleet.copy.verification = {"findings": [{"code": "code.remote_required", "severity": "warning"}]}
    fleet.copy.save()
    preview = f"**{reverse('deployment_preview')}"
    page.goto(f"{reverse('deployment_add')}?copy={fleet.copy.pk}&engine={fleet.engine.pk}&name=chat")
    with page.expect_response(preview) as checked:
        page.get_by_role("button", name="Deploy", exact=True).click()
    assert checked.value.ok, "the page that says no has its command checked at once"
    why = page.locator(".row-field", has=page.locator("#id_copy")).locator(".field-error")
    expect(page.locator("#field-errors")).to_be_attached()
    with page.expect_response(preview):
        page.fill("[name=reason]", "for the docs")
    expect(page.locator("#preview")).to_contain_text("vllm serve")
    expect(why).to_contain_text("an admin must allow it first")
    assert not Deployment.objects.exists()
    with page.expect_response(preview):
        page.dispatch_event("#id_copy", "change")
    expect(why).to_have_count(0)


def test_a_command_that_the_form_has_outrun_fades_until_the_answer_comes(page: Page, fleet: Fleet) -> None:
    preview = f"**{reverse('deployment_preview')}"
    shown = page.locator("#preview")
    page.goto(f"{reverse('deployment_add')}?copy={fleet.copy.pk}&engine={fleet.engine.pk}&name=chat")
    expect(shown).to_contain_text("vllm serve")
    expect(shown).not_to_have_attribute("inert", "")
    held: list[Route] = []
    page.route(preview, lambda route: held.append(route))
    page.fill("[name=arg_max_model_len]", "1024")
    expect(shown).to_have_attribute("inert", "")
    expect(page.get_by_text("following the form…")).to_be_visible()
    expect(shown).not_to_contain_text("1024")
    page.wait_for_timeout(300)
    held.pop().abort()
    expect(page.get_by_text("out of date")).to_be_visible()
    expect(shown).to_have_attribute("inert", "")
    page.unroute(preview)
    expect(shown).to_contain_text("--max-model-len 1024")
    expect(shown).not_to_have_attribute("inert", "")
    expect(page.get_by_text("out of date")).to_be_hidden()
