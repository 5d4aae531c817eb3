"""What Prometheus reads: by prometheus_client's own parser, and by a real Prometheus that finds its targets itself."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from console.access.models import User
from console.deployments.models import Instance
from tests.factories import Fleet
from tests.host.conftest import wait_for
from tests.ports import free_port
from tests.telemetry.samples import FakeLoad
from workers.contracts import samples_stream
from workers.vllm.metrics import parse_metrics

pytestmark = pytest.mark.django_db(transaction=True)

DOCS = Path(__file__).parents[2] / "docs" / "prometheus"
TOKEN = "scrape-me-1234567890"


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(settings.ENV, "slipway_metrics_token", TOKEN)
    return TOKEN


@pytest.fixture
def instance(fleet: Fleet) -> Instance:
    fleet.deploy()
    Instance.objects.update(state="ready", ordered=True)
    return Instance.objects.select_related("host", "deployment").get()


@pytest.fixture
def load(instance: Instance, broker: redis.Redis) -> FakeLoad:
    load = FakeLoad(running=3, kv=0.25)
    load.answer(7)
    tell(broker, instance, load)
    return load


def tell(broker: redis.Redis, instance: Instance, load: FakeLoad) -> None:
    text = load.batch(instance.uuid, time.time()).model_dump_json()
    broker.xadd(samples_stream(instance.host.name), {"json": text})


def scraped(name: str, *args: Any, token: str = TOKEN) -> str:
    answer = Client().get(reverse(name, args=args), headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("name", ["console_metrics", "prometheus_sd"])
def test_only_the_token_or_an_admin_gets_in(name: str, token: str, viewer: User, operator: User, admin: User) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}):
        answer = Client().get(reverse(name), headers=headers)
        assert answer.status_code == 401
        assert b"SLIPWAY_METRICS_TOKEN" in answer.content
    for person, status in ((viewer, 401), (operator, 401), (admin, 200)):
        client = Client()
        client.force_login(person)
        assert client.get(reverse(name)).status_code == status


def test_without_a_token_of_its_own_the_console_says_how_to_set_one(db: None) -> None:
    answer = Client().get(reverse("console_metrics"), headers={"Authorization": "Bearer "})
    assert answer.status_code == 401
    assert b"Set SLIPWAY_METRICS_TOKEN" in answer.content


def test_the_consoles_own_metrics_are_what_the_database_has(token: str, instance: Instance) -> None:
    families = {family.name: family for family in text_string_to_metric_families(scraped("console_metrics"))}
    states = {sample.labels["state"]: sample.value for sample in families["slipway_instances"].samples}
    assert states == {"ready": 1}
    (host,) = families["slipway_host_up"].samples
    assert (host.labels["host"], host.value) == (instance.host.name, 1)


def test_an_instances_metrics_are_read_back_as_they_were_sampled(
    token: str, instance: Instance, load: FakeLoad
) -> None:
    text = scraped("instance_metrics", instance.uuid)
    assert list(text_string_to_metric_families(text))
    read = parse_metrics(text, taken_at=0)
    sampled = load.sample(0)
    for name in (
        "prompt_tokens",
        "generation_tokens",
        "finished",
        "kv_cache_usage",
        "time_to_first_token",
        "started_at",
    ):
        assert getattr(read, name) == getattr(sampled, name), name


def test_an_instance_that_tells_nothing_is_down(token: str, instance: Instance) -> None:
    answer = Client().get(
        reverse("instance_metrics", args=[instance.uuid]), headers={"Authorization": f"Bearer {TOKEN}"}
    )
    assert answer.status_code == 503


def test_the_grafana_dashboard_asks_for_metrics_that_there_are(token: str, instance: Instance, load: FakeLoad) -> None:
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    text = scraped("instance_metrics", instance.uuid) + scraped("console_metrics")
    import re

    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in re.findall(r"(?:vllm:|slipway_)\w+", expression)}
    assert len(named) > 10
    assert not [name for name in named if f"\n{name}" not in text]


class Prometheus:
    """A real one, with the configuration of the documents."""

    def __init__(self, folder: Path, console: str) -> None:
        for file in DOCS.glob("*.yml"):
            shutil.copy(file, folder)
        config = (folder / "prometheus.yml").read_text()
        (folder / "prometheus.yml").write_text(
            config.replace("127.0.0.1:8400", console.removeprefix("http://")).replace("5s", "1s").replace("10s", "1s")
        )
        (folder / "slipway-token").write_text(TOKEN)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=5) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []


needs_prometheus = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed (apt)")


@needs_prometheus
@pytest.mark.parametrize("name", ["recording-rules.yml", "alert-rules.yml"])
def test_promtool_takes_the_rule_files(name: str) -> None:
    done = subprocess.run(["promtool", "check", "rules", str(DOCS / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(tmp_path: Path, live_server: Any, token: str) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path, live_server.url)
    yield made
    made.process.terminate()
    made.process.wait(20)


@needs_prometheus
def test_a_real_prometheus_finds_instances_scrapes_them_and_computes_the_recorded_series(
    prometheus: Prometheus, instance: Instance, load: FakeLoad, broker: redis.Redis
) -> None:
    def scraped_tokens() -> bool:
        load.answer(2)
        tell(broker, instance, load)
        time.sleep(0.3)
        found = prometheus.ask("vllm:generation_tokens_total")
        return bool(found) and float(found[0]["value"][1]) > 0

    wait_for(scraped_tokens, 90, what="the instance's tokens")
    (series,) = prometheus.ask("vllm:generation_tokens_total")
    assert series["metric"]["deployment"] == instance.deployment.name
    assert series["metric"]["host"] == instance.host.name
    assert wait_for(lambda: prometheus.ask('slipway_instances{state="ready"} == 1'), 30)
    assert {one["metric"]["job"] for one in prometheus.ask("up == 1")} == {"slipway", "slipway-instances"}
