"""A deploy of a model that its host has not, in a real Chromium with a real engine: from a hub, then from host to host."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import PASSWORD, LiveConsole, wait_for
from tests.live.test_browser_walk import ARGUMENTS, CHROMIUM
from tests.standin.hub import Faults, Hub

pytestmark = [pytest.mark.live, pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(1800)]

NAME = f"HuggingFaceTB/{MODEL}"


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub that publishes the model."""
    folder = engine_cache() / "models" / MODEL
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with Hub() as running:
        running.add(NAME, files, card={"license": "apache-2.0"})
        yield running


@pytest.fixture
def console(tmp_path: Path) -> Iterator[LiveConsole]:
    """A console whose host has the engine and no model."""
    (tmp_path / "engines").symlink_to(engine_cache() / "engines")
    console = LiveConsole(tmp_path)
    with console.running():
        wait_for("the engine is known", lambda: engine_on(console, "local"), seconds=60)
        yield console


@contextmanager
def second_host(console: LiveConsole) -> Iterator[None]:
    """An agent of another host on this machine, with a models directory of its own."""
    console.manage("join_host", "second")
    file = console.home / "hosts" / "second" / "host.json"
    models = console.home / "models-of-second"
    models.mkdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "models_dir": str(models)}))
    command = [sys.executable, "-m", "workers.cli", "host", "run", "--config", str(file)]
    with (console.home / "second.log").open("ab") as log:
        agent = subprocess.Popen(command, env=console.environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for("the engine of the second host is known", lambda: engine_on(console, "second"), seconds=120)
        yield
    finally:
        agent.terminate()
        agent.wait(60)


def engine_on(console: LiveConsole, host: str) -> int | None:
    query = "select e.id from fleet_engine e join fleet_host h on h.id = e.host_id where e.present and h.name = ?"
    found = console.one(f"{query} and e.key = ?", host, ENGINE)
    return int(found) if found else None


def copy_on(console: LiveConsole, host: str, state: str) -> int | None:
    query = "select c.id from catalog_copy c join fleet_host h on h.id = c.host_id where h.name = ? and c.state = ?"
    found = console.one(query, host, state)
    return int(found) if found else None


@contextmanager
def browser_of(console: LiveConsole) -> Iterator[Page]:
    """A page on which ada is signed in."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_context(base_url=console.url, viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        page.goto("/account/login/")
        page.fill("[name=login]", "ada")
        page.fill("[name=password]", PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile(r"/$"))
        yield page
        browser.close()


def job_of(page: Page) -> int:
    expect(page).to_have_url(re.compile(r"/jobs/\d+/"))
    return int(re.search(r"/jobs/(\d+)/", page.url).group(1))  # type: ignore[union-attr]


def add_and_delete(page: Page, console: LiveConsole, hub: Hub) -> None:
    """The model gets known by a download; then its files go again, so that no host has them."""
    page.goto("/sources/new/")
    page.select_option("[name=kind]", "mirror")
    page.fill("[name=name]", "The mirror")
    page.fill("[name=endpoint]", hub.url)
    page.locator("main form button[type=submit]").click()
    wait_for(
        "the source stands", lambda: console.one("select 1 from catalog_source where name = 'The mirror'"), seconds=30
    )
    source = console.one("select id from catalog_source where name = 'The mirror'")
    page.goto(f"/models/new/?source={source}&q={NAME}")
    expect(page.locator("#lookup")).to_contain_text("model.safetensors")
    page.get_by_role("button", name="Download and verify").click()
    console.wait_job(job_of(page), seconds=300)
    copy = copy_on(console, "local", "verified")
    page.goto(f"/copies/{copy}/delete/")
    if page.locator("[name=reason]").count():
        page.locator("[name=reason]").fill("start from nothing")
    page.locator("main form button[type=submit]").click()
    wait_for("its files are gone", lambda: copy_on(console, "local", "removed"), seconds=120)
    assert not list((console.home / "models").rglob("*.safetensors"))


def deploy(page: Page, console: LiveConsole, host: str, *, shown: str, name: str) -> list[str]:
    """Deploy by the form to a host that hasn't the files, wait until it is ready; returns the job's steps."""
    revision = console.one("select id from catalog_revision")
    value = f"{revision}@{console.one('select id from fleet_host where name = ?', host)}"
    page.goto(f"/deployments/new/?copy={value}")
    expect(page.locator(f'[name=copy] option[value="{value}"]')).to_contain_text(shown)
    page.select_option("[name=engine]", str(engine_on(console, host)))
    page.fill("[name=name]", name)
    page.fill("[name=arguments]", "--enforce-eager --max-num-seqs 4 --max-model-len 1024")
    expect(page.locator("#preview")).to_contain_text(f"--served-model-name {name}")
    page.locator("#deploy-form button[type=submit]").click()
    job = job_of(page)
    console.wait_job(job, seconds=900)
    expect(page.locator("body")).to_contain_text("Paris")
    query = "select i.state from deployments_instance i join deployments_deployment d on d.id = i.deployment_id"
    assert console.one(f"{query} where d.name = ?", name) == "ready"
    return [row[0] for row in console.rows("select kind from jobs_step where job_id = ? order by position", job)]


def stop(page: Page, console: LiveConsole, name: str) -> None:
    deployment = console.one("select id from deployments_deployment where name = ?", name)
    page.goto(f"/deployments/{deployment}/stop/")
    page.locator("[name=reason]").fill("the test goes on")
    page.locator("main form button[type=submit]").click()
    state = "select state from deployments_deployment where id = ?"
    wait_for("it is stopped", lambda: console.one(state, deployment) == "stopped", seconds=120)


def test_a_model_that_no_host_has_is_fetched_and_served_and_then_copied_to_another_host(
    console: LiveConsole, hub: Hub
) -> None:
    with browser_of(console) as page:
        add_and_delete(page, console, hub)
        steps = deploy(page, console, "local", shown="downloaded", name="fetched")
        assert steps.index("download") < steps.index("verify") < steps.index("launch")
        assert "serve_copy" not in steps
        stop(page, console, "fetched")

        hub.faults = Faults(down=True)
        with second_host(console):
            steps = deploy(page, console, "second", shown="copied from local", name="copied")
            assert steps.index("serve_copy") < steps.index("download") < steps.index("verify") < steps.index("launch")
            assert copy_on(console, "second", "verified")
            stop(page, console, "copied")
