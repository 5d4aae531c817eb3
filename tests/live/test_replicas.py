"""Two real engines of one deployment on one host: deployed, replaced, restarted one at a time, and ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import httpx2
import pytest

from tests.live.harness import LiveConsole, wait_for

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(3000)]

NAME = "pair"
JOB_SECONDS = 900
FORM = {
    "name": NAME,
    "replicas": "2",
    "arguments": "--enforce-eager --max-model-len 512 --max-num-seqs 4 --kv-cache-memory-bytes 134217728",
    "reason": "two of them",
}
OF_THE_PAIR = "from deployments_instance i join deployments_deployment d on d.id = i.deployment_id where d.name = ?"


def states(console: LiveConsole) -> list[str]:
    return [row[0] for row in console.rows(f"select i.state {OF_THE_PAIR} order by i.number", NAME)]


def serving(console: LiveConsole) -> list[int]:
    """Ports of those that are ready."""
    rows = console.rows(f"select i.port {OF_THE_PAIR} and i.state = 'ready' order by i.number", NAME)
    return [row[0] for row in rows]


def claims(console: LiveConsole) -> list[int]:
    """Bytes of the claims that count."""
    rows = console.rows(
        f"select c.nbytes {OF_THE_PAIR.replace(' where ', ' join deployments_claim c on c.instance_id = i.id where ')}"
        " and i.state not in ('stopped', 'crashed')",
        NAME,
    )
    return [row[0] for row in rows]


def models(port: int, key: str) -> int:
    answer = httpx2.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return int(answer.status_code)


def key_of(console: LiveConsole) -> str:
    return console.manage(
        "shell", "-v", "0", "-c",
        "from console.deployments import services; from console.deployments.models import Deployment;"
        f"print(services.endpoint(Deployment.objects.get(name={NAME!r})).key)",
    ).strip()  # fmt: skip


def last_job(console: LiveConsole) -> int:
    return int(console.one("select max(id) from jobs_job"))


@contextmanager
def fewest_ready(console: LiveConsole) -> Iterator[list[int]]:
    """Looks all the time how many are ready; afterwards the list holds the fewest."""
    found, over = [99], Event()

    def look() -> None:
        while not over.wait(0.1):
            count = console.one(f"select count(*) {OF_THE_PAIR} and i.state = 'ready'", NAME)
            found[0] = found[0] if count is None else min(found[0], count)  # None: the file couldn't be read just then

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join(30)


def test_two_replicas_serve_are_replaced_and_restarted_one_by_one_and_end_with_their_claims(
    live_console: LiveConsole, copy_of_the_model: int
) -> None:
    console = live_console
    engine = console.one("select id from fleet_engine where present order by id")
    form = FORM | {"copy": str(copy_of_the_model), "engine": str(engine)}
    console.post("/deployments/new/", form)
    deployment = wait_for(
        "it is deployed", lambda: console.one("select id from deployments_deployment where name = ?", NAME), seconds=60
    )
    console.wait_job(last_job(console), seconds=JOB_SECONDS)
    assert states(console) == ["ready", "ready"]
    first, second = serving(console)
    assert first != second
    key = key_of(console)
    assert [models(port, key) for port in (first, second)] == [200, 200]
    assert len(claims(console)) == 2
    page = console.get(f"/deployments/{deployment}/").text
    assert f":{first}/v1" in page
    assert f":{second}/v1" in page

    # A change: there is room for both, so the new ones are ready before the old ones end.
    changed = form | {"arguments": FORM["arguments"].replace("seqs 4", "seqs 5"), "reason": "one more at once"}
    seen = console.post(f"/deployments/{deployment}/change/", changed | {"go": "look"}).text
    assert "goes on serving all the time" in seen
    with fewest_ready(console) as fewest:
        console.post(f"/deployments/{deployment}/change/", changed | {"go": "apply"})
        console.wait_job(last_job(console), seconds=JOB_SECONDS)
    assert fewest == [2]
    assert states(console) == ["stopped", "stopped", "ready", "ready"]
    # A new one may listen where the one before it has just ended: the numbers of `states` say that both are new.
    assert len(set(serving(console))) == 2
    assert [models(port, key) for port in serving(console)] == [200, 200]
    assert len(claims(console)) == 2

    # A restart: the next one ends only once the one before serves again.
    before = serving(console)
    with fewest_ready(console) as fewest:
        console.post(f"/deployments/{deployment}/restart/", {"reason": "does it roll?"})
        console.wait_job(last_job(console), seconds=JOB_SECONDS)
    assert fewest == [1]
    assert serving(console) == before
    assert [models(port, key) for port in before] == [200, 200]

    console.post(f"/deployments/{deployment}/stop/", {"reason": "seen"})
    console.wait_job(last_job(console), seconds=180)
    assert set(states(console)) == {"stopped"}
    assert claims(console) == []
