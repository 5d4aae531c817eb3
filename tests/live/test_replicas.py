"""Two real engines of one deployment on one host: both answer, both claim, and both end."""

import httpx2
import pytest

from tests.live.harness import LiveConsole, wait_for

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1200)]

NAME = "pair"
FORM = {
    "name": NAME,
    "replicas": "2",
    "arguments": "--enforce-eager --max-model-len 512 --max-num-seqs 4",
    "environment": "VLLM_CPU_KVCACHE_SPACE=1",
    "reason": "two of them",
}


def states(console: LiveConsole) -> list[str]:
    rows = console.rows(
        "select i.state from deployments_instance i join deployments_deployment d on d.id = i.deployment_id"
        " where d.name = ? order by i.number",
        NAME,
    )
    return [row[0] for row in rows]


def ports(console: LiveConsole) -> list[int]:
    rows = console.rows("select port from deployments_instance where state = 'ready' order by number")
    return [row[0] for row in rows]


def models(port: int, console: LiveConsole) -> int:
    key = console.manage(
        "shell", "-v", "0", "-c",
        "from console.deployments import services; from console.deployments.models import Deployment;"
        f"print(services.endpoint(Deployment.objects.get(name={NAME!r})).key)",
    ).strip()  # fmt: skip
    answer = httpx2.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=30)
    return int(answer.status_code)


def last_job(console: LiveConsole) -> int:
    return int(console.one("select max(id) from jobs_job"))


def test_two_replicas_serve_and_end_with_their_claims(live_console: LiveConsole, copy_of_the_model: int) -> None:
    console = live_console
    engine = console.one("select id from fleet_engine where present order by id")
    console.post("/deployments/new/", FORM | {"copy": copy_of_the_model, "engine": engine})
    deployment = wait_for(
        "it is deployed", lambda: console.one("select id from deployments_deployment where name = ?", NAME), seconds=10
    )
    console.wait_job(last_job(console), seconds=500)
    assert states(console) == ["ready", "ready"]
    first, second = ports(console)
    assert first != second
    assert [models(port, console) for port in (first, second)] == [200, 200]
    claimed = console.rows("select nbytes from deployments_claim")
    assert len(claimed) == 2
    assert all(nbytes > 2**30 for (nbytes,) in claimed)
    page = console.get(f"/deployments/{deployment}/").text
    assert f":{first}/v1" in page
    assert f":{second}/v1" in page

    console.post(f"/deployments/{deployment}/stop/", {"reason": "seen"})
    console.wait_job(last_job(console), seconds=180)
    assert states(console) == ["stopped", "stopped"]
    holding = console.one(
        "select count(*) from deployments_claim c join deployments_instance i on i.id = c.instance_id"
        " where i.state not in ('stopped', 'crashed')"
    )
    assert holding == 0
