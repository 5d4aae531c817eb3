"""Other machines in live tests: a console that they can reach, the command of its page, and what serves on them."""

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from tests.live.harness import LiveConsole, wait_for


@dataclass
class OpenConsole(LiveConsole):
    """A console that other machines reach by TLS, and that serves them packages."""

    addresses: str = ""
    wheels: Path = Path()

    def environment(self) -> dict[str, str]:
        ports = {"SLIPWAY_HOSTS_PORT": str(self.port + 1), "SLIPWAY_HOSTS_BROKER_PORT": str(self.port + 2)}
        more = {"SLIPWAY_HOSTS_ADDRESS": self.addresses, "SLIPWAY_WHEELS_DIR": str(self.wheels)}
        return super().environment() | ports | more


def is_online(console: OpenConsole, name: str) -> bool:
    age = "(julianday('now') - julianday(last_seen_at)) * 86400"
    return bool(console.rows(f"select 1 from fleet_host where name = ? and {age} < 15", name))


def host_id(console: OpenConsole, name: str) -> int:
    return int(console.one("select id from fleet_host where name = ?", name))


def join_command(console: OpenConsole, name: str) -> str:
    """Add a host on the page; returns the command that stands there."""
    return command_on(console.post("/hosts/new/", {"name": name}).text)


def command_on(page: str) -> str:
    """The command for a bare machine on a page that shows it."""
    found = re.search(r"<code>(python3 -c .*?)</code>", page, re.DOTALL)
    assert found, page[:3000]
    return unescape(found[1])


def deploy(console: OpenConsole, host: str, engine: str, path: Path) -> int:
    """Add the model's directory, deploy it with this engine; returns the job."""
    number = host_id(console, host)
    console.post("/models/new/", {"name": f"model-{host}", "host": number, "path": str(path)})
    copy = wait_for(
        "the copy is verified",
        lambda: console.one("select id from catalog_copy where host_id = ? and state = 'verified'", number),
        seconds=240,
    )
    row = wait_for(
        "the engine is known",
        lambda: console.one("select id from fleet_engine where host_id = ? and key = ? and present", number, engine),
        seconds=90,
    )
    given = {
        "name": f"chat-{host}", "copy": copy, "engine": row, "arg_max_model_len": "1024",
        "arguments": "--enforce-eager --max-num-seqs 4", "expected": "Paris", "reason": "live test",
    }  # fmt: skip
    answer = console.post("/deployments/new/", given)
    job = re.search(r"/jobs/(\d+)/", str(answer.url) + answer.text)
    assert job, answer.text[:3000]
    return int(job[1])


def serving(console: OpenConsole, host: str) -> tuple[int, int]:
    """Port and pid of what serves on a host."""
    query = (
        "select i.port, a.pid from deployments_instance i join deployments_attempt a on a.instance_id = i.id"
        " where i.host_id = ? and i.state = 'ready' order by a.number desc"
    )
    return console.rows(query, host_id(console, host))[0]
