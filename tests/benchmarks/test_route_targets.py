"""A route as the target: what it is measured with, and the key that lives as long as its measurement."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import env
from console.access.models import User
from console.benchmarks import subjects
from console.benchmarks.forms import BenchmarkForm
from console.benchmarks.models import Benchmark
from console.deployments.models import Instance
from console.gateway import keys, routes
from console.gateway.models import Key, Route
from console.gateway.routes import Share
from console.jobs import services as jobs
from console.jobs.kinds import handler_of
from tests.benchmarks.conftest import Stage


@pytest.fixture
def route(stage: Stage) -> Route:
    return routes.save(Route(name="chat"), aliases=[], shares=[Share(stage.instance.deployment)], actor=None)


def asked(route: Route, **changes: Any) -> dict[str, Any]:
    return {
        "target": "route", "route": route.pk, "profile": "chat", "by": "concurrency", "search": "fixed", "values": "1",
        "requests": 4, "repeats": 1, "warmups": 1, "seed": 0,
    } | changes  # fmt: skip


def secret(stage: Stage, benchmark: Benchmark) -> str:
    """As its host gets it when the step is sent."""
    step = stage.step(benchmark)
    return handler_of(step.job).secrets(step)["target_key"]


def test_an_operator_measures_a_route_with_what_an_instance_behind_it_has(
    client: Client, stage: Stage, operator: User, route: Route
) -> None:
    client.force_login(operator)
    assert "a route, through the gateway" in client.get(reverse("benchmark_add")).content.decode()
    assert client.post(reverse("benchmark_add"), asked(route)).status_code == 302
    benchmark = Benchmark.objects.get()
    assert (benchmark.title, benchmark.host) == ("chat, through the gateway", stage.fleet.host)
    payload = stage.step(benchmark).payload
    assert payload["remote"] == {"url": env.gateway_url(), "model": "chat"}
    assert (payload["engine"], payload["tokenizer_path"]) == (stage.fleet.engine.key, stage.fleet.copy.path)
    assert payload["devices"] == [device.uuid for device in subjects.devices_of(stage.instance)]
    form = client.get(reverse("benchmark_add"), {"from": benchmark.pk}).context["form"]
    assert isinstance(form, BenchmarkForm)
    assert (form["target"].value(), form["route"].value()) == ("route", route.pk)


def test_its_key_is_for_this_route_alone_has_no_limits_and_is_revoked_at_the_end(
    client: Client, stage: Stage, operator: User, route: Route
) -> None:
    client.force_login(operator)
    client.post(reverse("benchmark_add"), asked(route))
    benchmark = Benchmark.objects.get()
    assert not Key.objects.exists(), "it is made when the host is told to ask"
    given = secret(stage, benchmark)
    key = Key.objects.get()
    assert (key.sha256, key.all_routes, list(key.routes.all()), key.owner) == (
        keys.digest(given),
        False,
        [route],
        operator,
    )
    assert {getattr(key, name) for name in keys.LIMITS} == {None}
    assert key.is_usable
    assert key.expires_at
    step = stage.step(benchmark)
    assert 0 < (key.expires_at - timezone.now()).total_seconds() - step.deadline_seconds <= 600
    benchmark.refresh_from_db()
    assert given not in f"{step.payload}{benchmark.remote_key}{client.get(f'/benchmarks/{benchmark.pk}/').content!r}"
    assert secret(stage, benchmark) == given, "the same step sent once more"
    stage.end(benchmark)
    key.refresh_from_db()
    assert key.revoked_at
    assert benchmark.remote_key == ""


def test_one_that_failed_has_no_key_any_more_and_a_retry_gets_another(
    client: Client, stage: Stage, operator: User, route: Route
) -> None:
    client.force_login(operator)
    client.post(reverse("benchmark_add"), asked(route))
    benchmark = Benchmark.objects.get()
    first = secret(stage, benchmark)
    stage.end(benchmark, "failed", failure={"code": "benchmark.no_answers", "message": "none"})
    assert not Key.objects.get().is_usable
    assert benchmark.job
    jobs.retry(benchmark.job, actor=operator)
    second = secret(stage, benchmark)
    assert second != first
    assert [key.sha256 for key in Key.objects.filter(revoked_at=None)] == [keys.digest(second)]
    benchmark.job.refresh_from_db()
    jobs.cancel(benchmark.job, actor=operator, reason="too late")
    stage.end(benchmark, "cancelled")
    assert not Key.objects.filter(revoked_at=None).exists()


def test_a_route_that_people_use_needs_a_yes(
    client: Client, operator: User, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "traffic_of", lambda _instance: 30)
    client.force_login(operator)
    page = client.post(reverse("benchmark_add"), asked(route)).content.decode()
    assert "chat is in use: about 30 requests" in page
    assert 'name="despite_traffic"' in page
    assert client.post(reverse("benchmark_add"), asked(route, despite_traffic="on")).status_code == 302


def test_nothing_ready_behind_a_route_is_said_at_its_field(client: Client, operator: User, route: Route) -> None:
    Instance.objects.update(state="stopped")
    client.force_login(operator)
    answer = client.post(reverse("benchmark_add"), asked(route))
    assert answer.status_code == 400
    assert "route" in answer.context["form"].errors
    assert (
        "Say what is measured" in client.post(reverse("benchmark_add"), asked(route) | {"route": ""}).content.decode()
    )
