"""Other servers as targets: admins allow them, operators measure them, the key is shown to nobody."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import User
from console.benchmarks import endpoints
from console.benchmarks.forms import BenchmarkForm
from console.benchmarks.models import Benchmark, Endpoint
from console.jobs.kinds import handler_of
from tests.benchmarks.conftest import Stage

SECRET = "sk-their-key"


@pytest.fixture
def endpoint(admin: User) -> Endpoint:
    return endpoints.allow(name="rented", url="https://api.example/v1/", model="llama", key=SECRET, actor=admin)


def asked(stage: Stage, **changes: Any) -> dict[str, Any]:
    return {
        "target": "endpoint", "engine": stage.fleet.engine.pk, "tokenizer": stage.fleet.copy.pk, "profile": "chat",
        "by": "concurrency", "search": "fixed", "values": "1", "requests": 4, "repeats": 1, "warmups": 1, "seed": 0,
    } | changes  # fmt: skip


def test_an_operator_measures_what_an_admin_allowed_and_the_key_reaches_only_the_host(
    client: Client, stage: Stage, operator: User, endpoint: Endpoint
) -> None:
    client.force_login(operator)
    answer = client.post(reverse("benchmark_add"), asked(stage, endpoint=endpoint.pk), follow=True)
    benchmark = Benchmark.objects.get()
    assert (benchmark.remote_url, benchmark.remote_model) == ("https://api.example", "llama")
    assert SECRET not in answer.content.decode() + benchmark.remote_key + str(benchmark.subject)
    step = stage.step(benchmark)
    assert handler_of(step.job).secrets(step) == {"target_key": SECRET}
    assert SECRET not in str(step.payload)


def test_an_operator_types_no_server(client: Client, stage: Stage, operator: User) -> None:
    client.force_login(operator)
    answer = client.post(reverse("benchmark_add"), asked(stage, target="remote", url="http://10.0.0.1", model="x"))
    assert answer.status_code == 400
    assert not Benchmark.objects.exists()


def again(client: Client, benchmark: Benchmark) -> BenchmarkForm:
    form = client.get(reverse("benchmark_add"), {"from": benchmark.pk}).context["form"]
    assert isinstance(form, BenchmarkForm)
    return form


def test_an_allowed_server_is_asked_again_as_it_was_with_the_key_that_is_kept(
    client: Client, stage: Stage, operator: User, endpoint: Endpoint
) -> None:
    client.force_login(operator)
    client.post(reverse("benchmark_add"), asked(stage, endpoint=endpoint.pk))
    form = again(client, Benchmark.objects.get())
    names = ("target", "endpoint", "engine", "tokenizer")
    assert [form[name].value() for name in names] == [
        "endpoint",
        endpoint.pk,
        stage.fleet.engine.pk,
        stage.fleet.copy.pk,
    ]
    values = {name: form[name].value() for name in form.fields}
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    client.post(reverse("benchmark_add"), given)
    second = Benchmark.objects.first()
    assert second
    assert (Benchmark.objects.count(), second.endpoint) == (2, endpoint)
    step = stage.step(second)
    assert handler_of(step.job).secrets(step) == {"target_key": SECRET}


def test_a_typed_server_is_asked_again_but_its_key_is_not_known_any_more(
    client: Client, stage: Stage, admin: User, operator: User
) -> None:
    client.force_login(admin)
    typed = {"target": "remote", "url": "https://api.example", "model": "llama", "key": SECRET}
    client.post(reverse("benchmark_add"), asked(stage, **typed))
    benchmark = Benchmark.objects.get()
    form = again(client, benchmark)
    names = ("target", "url", "model", "engine", "tokenizer", "key")
    assert [form[name].value() for name in names] == [
        "remote", "https://api.example", "llama", stage.fleet.engine.pk, stage.fleet.copy.pk, None
    ]  # fmt: skip
    assert "enter it again" in str(form["key"])
    # Who may not type a server gets the same one where it is allowed, and otherwise chooses.
    client.force_login(operator)
    form = again(client, benchmark)
    assert (form["target"].value(), form["endpoint"].value()) == ("endpoint", None)
    allowed = endpoints.allow(name="rented", url="https://api.example", model="llama", key=SECRET, actor=admin)
    assert again(client, benchmark)["endpoint"].value() == allowed.pk


def test_a_server_that_is_allowed_no_longer_is_a_typed_one(
    client: Client, stage: Stage, admin: User, endpoint: Endpoint
) -> None:
    client.force_login(admin)
    client.post(reverse("benchmark_add"), asked(stage, endpoint=endpoint.pk))
    endpoints.forget(endpoint, actor=admin, reason="gone")
    form = again(client, Benchmark.objects.get())
    assert (form["target"].value(), form["url"].value()) == ("remote", "https://api.example")


def test_an_admin_allows_and_forgets_a_server(client: Client, admin: User) -> None:
    client.force_login(admin)
    given = {"name": "gateway", "url": "http://127.0.0.1:8480/v1", "model": "chat", "key": SECRET}
    page = client.post(reverse("endpoint_list"), given, follow=True).content.decode()
    assert "http://127.0.0.1:8480" in page
    assert SECRET not in page
    assert "already" in client.post(reverse("endpoint_list"), given).content.decode()
    there = reverse("endpoint_forget", args=[Endpoint.objects.get().pk])
    client.post(there, {"reason": "gone"})
    assert not Endpoint.objects.exists()


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_nobody_else_allows_servers(
    client: Client, request: pytest.FixtureRequest, endpoint: Endpoint, role: str
) -> None:
    client.force_login(request.getfixturevalue(role))
    assert client.get(reverse("endpoint_list")).status_code == 403
    assert client.post(reverse("endpoint_forget", args=[endpoint.pk]), {"reason": "x"}).status_code == 403
