"""Clients of a live gateway: openai-python that streams and httpx, all the time, and what went wrong for them."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from tests.live.harness import LiveConsole, wait_for

SHORT = [{"role": "user", "content": "Name a colour."}]
LONG = [{"role": "user", "content": "Name a colour. " + "The sky is blue and the grass is green. " * 40}]


@dataclass
class Seen:
    """What clients met."""

    answered: Counter[str] = field(default_factory=Counter)
    """By client."""
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    """A deployment behind a route, and a key for it."""

    console: LiveConsole
    deployment: int
    route: str
    secret: str

    @property
    def url(self) -> str:
        """The gateway's address."""
        runtime = json.loads((self.console.home / "console" / "runtime.json").read_text())
        return f"http://127.0.0.1:{runtime['gateway_port']}"


def serve(
    console: LiveConsole,
    name: str,
    engine: str,
    copy: int,
    arguments: str,
    *,
    asked: Callable[[Served], bool] | None = None,
) -> Served:
    """Deploy the model behind a route of the same name, and make a key. `asked`: whether it answers, if not to a chat."""
    row = wait_for(
        f"{engine} is known",
        lambda: console.one("select id from fleet_engine where key = ? and present", engine), seconds=90,
    )  # fmt: skip
    form = {
        "name": name, "public_name": name, "copy": copy, "engine": row, "expected": "Paris", "reason": "to roll over",
        "arguments": arguments, "environment": "VLLM_CPU_KVCACHE_SPACE=1",
    }  # fmt: skip
    answer = console.post("/deployments/new/", form)
    job = re.search(r"/jobs/(\d+)/", str(answer.url))
    assert job, answer.text[:3000]
    console.wait_job(int(job[1]), seconds=900)
    deployment = console.one("select id from deployments_deployment where name = ?", name)
    code = (
        "from console.gateway import keys;"
        f"print(keys.create(name={name!r}, owner=None, routes=None, expires_at=None, actor=None, team_id=1)[1])"
    )
    secret = console.manage("shell", "-v", "0", "-c", code).split()[-1]
    served = Served(console, deployment, name, secret)
    wait_for("the gateway sends requests there", lambda: (asked or answers)(served), seconds=60)
    return served


def answers(served: Served) -> bool:
    body = {"model": served.route, "messages": SHORT, "max_tokens": 1}
    headers = {"Authorization": f"Bearer {served.secret}"}
    return httpx2.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code == 200


@contextmanager
def under_load(served: Served, *, prompt: list[dict[str, str]] = SHORT, streams: int = 2) -> Iterator[Seen]:
    """`streams` openai-python clients that stream and one of httpx, one request after the other, without retries."""
    seen, stop, url = Seen(), threading.Event(), served.url
    asked: dict[str, Any] = {"model": served.route, "messages": prompt, "max_tokens": 8, "temperature": 0}

    def by_openai() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=served.secret, max_retries=0, timeout=120) as client:
            while not stop.is_set():
                _count(seen, "openai", lambda: _streamed(client, asked))

    def by_httpx() -> None:
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {served.secret}"}, timeout=120) as client:
            while not stop.is_set():
                _count(seen, "httpx", lambda: client.post("/v1/chat/completions", json=asked).raise_for_status())

    threads = [threading.Thread(target=by_openai) for _number in range(streams)] + [threading.Thread(target=by_httpx)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


def _streamed(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    chunks = list(client.chat.completions.create(stream=True, **asked))
    assert chunks[-1].choices[0].finish_reason, "the stream ended before its answer did"


def _count(seen: Seen, name: str, ask: Any) -> None:
    try:
        ask()
    except Exception as error:  # whatever a client meets is what the test is about
        seen.failed.append(f"{name}: {error!r}"[:300])
    else:
        seen.answered[name] += 1
