"""Three machines that have only Python 3.11 join, serve, and are cut off: in network namespaces, each with its own agent.

Once all serve with the stand-in, once one of them with the real engine. What the namespaces install comes from the
console itself: they have no way to a package index.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import wait_for
from tests.live.joining import OpenConsole, deploy, host_id, is_online, join_command, serving
from tests.live.namespaces import NamespaceHost, can_make_namespaces

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and `ip`"),
]
CUT_SECONDS = 60


@pytest.fixture(scope="module", params=["standin", pytest.param(ENGINE, marks=pytest.mark.live)])
def first_engine(request: pytest.FixtureRequest) -> str:
    """The engine of the first host, which is the one that is cut off."""
    return str(request.param)


@pytest.fixture(scope="module")
def hosts(first_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NamespaceHost]]:
    directory = tmp_path_factory.mktemp("machines")
    made: list[NamespaceHost] = []
    try:
        for number, name in enumerate(("gpu-a", "gpu-b", "gpu-c"), start=1):
            made.append(NamespaceHost(name, number, directory))
        yield made
    finally:
        for host in made:
            host.remove()


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory, wheels: Path, hosts: list[NamespaceHost]
) -> Iterator[OpenConsole]:
    addresses = ",".join(host.gateway for host in hosts)
    made = OpenConsole(tmp_path_factory.mktemp("open"), addresses=addresses, wheels=wheels)
    with made.running():
        yield made


def join(console: OpenConsole, host: NamespaceHost) -> str:
    """Add the host on the page and run the command that stands there; returns that command."""
    command = join_command(console, host.name)
    done = host.run(command)
    assert done.returncode == 0, done.stderr[-3000:]
    return command


def test_three_bare_machines_join_by_the_command_on_the_page(
    console: OpenConsole, hosts: list[NamespaceHost], first_engine: str
) -> None:
    for number, host in enumerate(hosts):
        if number:
            host.share_agent_of(hosts[0])
        if number or first_engine == "standin":
            host.add_standin_engine()
        else:
            host.share_engines(engine_cache())
        command = join(console, host)
        wait_for(f"{host.name} is online", lambda host=host: is_online(console, host.name), seconds=120)
        again = host.run(command)
        assert again.returncode == 1
        assert "used already" in again.stderr
    site = next((hosts[0].slipway_home / "agent").glob("*/lib/python3*/site-packages"))
    assert (site / "celery").is_dir()
    assert not (site / "django").exists()
    for host in hosts:
        page = console.get(f"/hosts/{host_id(console, host.name)}/").text
        assert "It is the version that this console comes with." in page


def test_a_wrong_pin_stops_the_join_before_the_token_is_spent(console: OpenConsole, hosts: list[NamespaceHost]) -> None:
    command = join_command(console, "never")
    pin = re.search(r"--ca-sha256 ([0-9a-f]{64})", command)
    assert pin
    other = hosts[1].run(command.replace(pin[1], "0" * 64), "--home", str(hosts[1].home / "other"))
    assert other.returncode == 1
    assert "another certificate authority" in other.stderr
    assert console.one("select join_token_sha256 from fleet_host where name = 'never'")


def test_each_serves_and_one_is_cut_off_without_anything_stopping(
    console: OpenConsole, hosts: list[NamespaceHost], first_engine: str
) -> None:
    model = engine_cache() / "models" / MODEL
    jobs = [
        deploy(console, host.name, "standin" if number else first_engine, model.resolve())
        for number, host in enumerate(hosts)
    ]
    for job in jobs:
        console.wait_job(job, seconds=600)
    cut = hosts[0]
    port, pid = serving(console, cut.name)
    assert cut.answers(port)
    cut.cut_off()
    began = time.monotonic()
    number = host_id(console, cut.name)
    wait_for(f"{cut.name} is offline", lambda: not is_online(console, cut.name), seconds=40)
    copy = console.one("select id from catalog_copy where host_id = ?", number)
    console.post(f"/copies/{copy}/verify/", {})
    job = console.one("select max(id) from jobs_job where kind = 'verify'")
    page = console.get(f"/hosts/{number}/").text
    assert "what it does since then is unknown" in page
    assert "last known: ready" in page
    assert "crashed" not in page
    while time.monotonic() - began < CUT_SECONDS:
        assert cut.answers(port)
        assert console.one("select state from deployments_instance where host_id = ?", number) == "ready"
        time.sleep(2)
    assert console.one("select state from jobs_job where id = ?", job) in ("queued", "running")
    cut.reconnect()
    wait_for(f"{cut.name} is back", lambda: is_online(console, cut.name), seconds=60)
    console.wait_job(job, seconds=120)
    started = "select count(*) from jobs_event where job_id = ? and text like 'Verify files succeeded%'"
    assert console.one(started, job) == 1
    assert serving(console, cut.name) == (port, pid)
    assert Path(f"/proc/{pid}").exists()
    assert console.one("select restarts from deployments_instance where host_id = ?", number) == 0
