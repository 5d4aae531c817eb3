"""The walk of the first launch, in a real Chromium against a real engine: what a person does, and what is left after."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from tests.live.harness import PASSWORD, LiveConsole, wait_for

pytestmark = [pytest.mark.live, pytest.mark.browser, pytest.mark.timeout(1500)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture
def page(live_console: LiveConsole) -> Iterator[Page]:
    """A page of a fresh browser; any error that the page itself raises, or a CSP violation, fails the test."""
    if not CHROMIUM:
        pytest.fail(
            "Chromium is missing: `apt-get install --no-install-recommends chromium` (as root, make test does it)"
        )
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_context(base_url=live_console.url, viewport={"width": 1280, "height": 900}).new_page()
        # Deadlines, not promises: two cores serve a browser, a console and an engine that starts.
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security" in message.text else None
        )
        yield page
        browser.close()
    assert problems == []


def test_from_signing_in_to_no_process_left(page: Page, live_console: LiveConsole, copy_of_the_model: int) -> None:
    console = live_console
    engine = wait_for(
        "the engine is known", lambda: console.one("select id from fleet_engine where present"), seconds=60
    )

    page.goto("/")
    page.fill("[name=login]", "ada")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/$"))

    page.goto("/deployments/new/")
    page.fill("[name=name]", "walk")
    # The form is drawn anew with the engine's arguments, slowly here: what is typed meanwhile must not be lost.
    held: list[Route] = []
    page.route("**/deployments/new/redraw/", lambda route: held.append(route))
    page.select_option("[name=copy]", str(copy_of_the_model))
    page.select_option("[name=engine]", str(engine))
    page.fill("[name=arg_max_model_len]", "1024")
    page.fill("[name=arguments]", "--enforce-eager --max-num-seqs 4")
    assert held
    with page.expect_response("**/deployments/new/redraw/"):
        for route in held:
            route.continue_()
    page.unroute("**/deployments/new/redraw/")
    expect(page.locator("#preview")).to_contain_text("--served-model-name walk")
    for argument in ("--max-model-len 1024", "--enforce-eager", "--max-num-seqs 4"):
        expect(page.locator("#preview")).to_contain_text(argument)
    page.locator("#deploy-form button[type=submit]").dblclick()
    expect(page).to_have_url(re.compile(r"/jobs/\d+/"))
    job = int(re.search(r"/jobs/(\d+)/", page.url).group(1))  # type: ignore[union-attr]
    assert console.one("select count(*) from jobs_job where kind = 'deploy' and title like '%walk%'") == 1

    expect(page.locator("body")).to_contain_text("EngineCore", timeout=300_000)
    page.reload()
    expect(page.locator("body")).to_contain_text("EngineCore")
    console.wait_job(job, seconds=600)
    expect(page.locator("body")).to_contain_text("Paris")

    deployment = console.one("select id from deployments_deployment where name = 'walk'")
    page.goto(f"/deployments/{deployment}/playground/")
    page.locator("[data-chat-text]").fill("What is the capital of France?")
    page.locator("[data-chat-send]").click()
    expect(page.locator("[data-chat-lines]")).to_contain_text("Paris", timeout=60_000)

    instance = console.one("select id from deployments_instance where deployment_id = ?", deployment)
    page.goto(f"/instances/{instance}/restart/")
    page.locator("[name=reason]").fill("walk: does a restart work?")
    page.locator("main form button[type=submit]").click()
    restart = wait_for(
        "the restart job stands", lambda: console.one("select id from jobs_job where kind = 'restart'"), seconds=20
    )
    console.wait_job(restart, seconds=600)
    assert console.one("select state from deployments_instance where id = ?", instance) == "ready"
    assert console.one("select state from deployments_deployment where id = ?", deployment) == "serving"

    page.goto("/audit/")
    expect(page.locator("main")).to_contain_text("walk: does a restart work?")

    page.goto(f"/deployments/{deployment}/stop/")
    page.locator("[name=reason]").fill("end of the walk")
    page.locator("main form button[type=submit]").click()
    wait_for(
        "it is stopped",
        lambda: console.one("select state from deployments_deployment where id = ?", deployment) == "stopped",
        seconds=90,
    )
    wait_for("no vLLM process is left", lambda: not console.engine_processes(), seconds=15)
    page.goto(f"/deployments/{deployment}/")
    expect(page.locator("main")).to_contain_text("Stopped")


def test_what_a_viewer_may_not_do_is_neither_shown_nor_answered(page: Page, live_console: LiveConsole) -> None:
    page.goto("/account/login/")
    page.fill("[name=login]", "vera")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/$"))
    expect(page.get_by_role("link", name="Deploy a model")).to_have_count(0)
    expect(page.get_by_role("link", name="People")).to_have_count(0)
    answer = page.goto("/deployments/new/")
    assert answer
    assert answer.status == 403


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_the_screen(
    page: Page, live_console: LiveConsole, tmp_path: Path, width: int, theme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.context.add_cookies([{"name": "theme", "value": theme, "url": live_console.url}])
    page.goto("/account/login/")
    page.fill("[name=login]", "ada")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/$"))
    paths = [
        "/",
        "/deployments/",
        "/deployments/new/",
        "/jobs/",
        "/models/",
        "/hosts/",
        "/engines/",
        "/people/",
        "/audit/",
        "/account/me/",
    ]
    for table, path in (("deployments_deployment", "deployments"), ("jobs_job", "jobs"), ("fleet_host", "hosts"),
                        ("deployments_instance", "instances"), ("catalog_model", "models"),
                        ("catalog_copy", "copies"), ("fleet_engine", "engines")):  # fmt: skip
        if pk := live_console.one(f"select id from {table} order by id"):
            paths.append(f"/{path}/{pk}/")
    wider = {}
    for path in paths:
        answer = page.goto(path)
        assert answer
        assert answer.status == 200, path
        if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
            wider[path] = found
    assert wider == {}


@pytest.mark.long
def test_a_context_that_is_too_large_is_refused_and_one_click_takes_what_fits(
    page: Page, live_console: LiveConsole, copy_of_the_model: int
) -> None:
    console = live_console
    engine = wait_for(
        "the engine is known", lambda: console.one("select id from fleet_engine where present"), seconds=60
    )
    page.goto("/account/login/")
    page.fill("[name=login]", "ada")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/$"))

    page.goto("/deployments/new/")
    page.select_option("[name=copy]", str(copy_of_the_model))
    expect(page.locator("[name=engine]")).to_have_value(str(engine))
    page.fill("[name=name]", "fits")
    page.fill("[name=arg_max_model_len]", "16384")
    page.fill("[data-arg-search]", "enforce-eager")
    page.select_option("[name=arg_enforce_eager]", "on")
    expect(page.locator("#fit-card")).to_contain_text("doesn't fit")
    page.locator("#deploy-form button[type=submit]").click()
    expect(page.locator("[name=arg_max_model_len]")).to_have_class(re.compile("is-invalid"))
    expect(page.locator("[name=arg_max_model_len]")).to_be_focused()
    assert console.one("select count(*) from deployments_deployment where name = 'fits'") == 0

    page.get_by_role("button", name="Set context to 8,192").click()
    expect(page.locator("[name=arg_max_model_len]")).to_have_value("8192")
    expect(page.locator("#fit-card .state")).to_contain_text("fits")
    page.locator("#deploy-form button[type=submit]").click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+/"))
    job = int(re.search(r"/jobs/(\d+)/", page.url).group(1))  # type: ignore[union-attr]
    console.wait_job(job, seconds=600)
    deployment = console.one("select id from deployments_deployment where name = 'fits'")
    assert console.one("select state from deployments_deployment where id = ?", deployment) == "serving"

    truth = wait_for("the launch is measured", lambda: console.one("select truth from deployments_launch"), seconds=60)
    tokens = json.loads(truth)["kv_cache_tokens"]
    predicted = json.loads(console.one("select prediction from deployments_launch"))["kv_cache_tokens"]
    assert tokens == predicted
    page.goto(f"/deployments/{deployment}/")
    expect(page.locator("#fit-truth")).to_contain_text("exact")
