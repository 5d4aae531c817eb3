"""Pages of the test's own console in a real Chromium: fixtures for tests that look at them as people do."""

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, sync_playwright

from console.access.models import User
from console.asgi import application
from tests.live.test_browser_walk import ARGUMENTS, CHROMIUM
from tests.ports import free_port


@pytest.fixture
def site(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The console's own application on a port of its own, sockets included; its address."""
    monkeypatch.setattr(settings, "ALLOWED_HOSTS", ["127.0.0.1"])
    port = free_port()
    config = uvicorn.Config(
        application, host="127.0.0.1", port=port, ws="websockets-sansio", lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = server.force_exit = True
    thread.join(20)


@pytest.fixture
def chromium(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, on which Django refuses to ask; nothing of ours runs in it.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    assert CHROMIUM, "Chromium is missing: apt-get install --no-install-recommends chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def opened(
    browser: Browser, site: str, person: User, *, width: int = 1440, theme: str = "light"
) -> tuple[Page, list[str]]:
    """A page of a person who is signed in, and what its console complains about."""
    client = Client()
    client.force_login(person)
    context = browser.new_context(base_url=site, viewport={"width": width, "height": 900}, timezone_id="Europe/Berlin")
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    cookies = {settings.SESSION_COOKIE_NAME: session, "theme": theme}
    context.add_cookies([{"name": name, "value": value, "url": site} for name, value in cookies.items()])
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    return page, problems
