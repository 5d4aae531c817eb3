"""Adapters as model names of their base's route: who may ask, where requests go, how they are counted."""

from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from console.access.models import User
from console.common.errors import Refused
from console.deployments import adapters as services
from console.deployments.models import Adapter, AdapterLoad, Attempt, Deployment, Instance
from console.gateway import access_log, keys, plan, routes
from console.gateway.models import GatewayRequest, Route, UsageDay
from console.gateway.routes import Share
from tests.deployments.test_adapters import LORA, adapter_on
from tests.factories import Fleet
from tests.gateway.backend import Engine, Running, key_of, route_of, server_of, target_of
from tests.gateway.test_access_log import line, write
from tests.gateway.test_routes import deployed
from workers.gateway import config, maps
from workers.gateway.description import Gateway, Limits, Listener, is_of_canary

LIMITS = Limits(requests_per_minute=4)
KEYS = (key_of("secret"), key_of("other", 2, routes=(2,)))


def adapter_route(*targets: Any, name: str = "polite", **changes: Any) -> Any:
    return route_of(*(replace(one, adapter=3) for one in targets), names=(name,), adapter=3, base="chat", **changes)


# -- the data plane ---------------------------------------------------------------------------------------------------


@pytest.fixture
def with_adapter(haproxy: Running, engine: Engine, second: Engine) -> Running:
    """`chat` on two engines; the adapter `polite` is loaded in the second one only."""
    both = target_of(engine, servers=(server_of(engine), server_of(second, 2)))
    haproxy.start(
        routes=(
            route_of(replace(both, engine_key=engine.key)),
            adapter_route(target_of(second, servers=(server_of(second, 2),)), limits=LIMITS),
        ),
        keys=KEYS,
    )
    return haproxy


def test_its_requests_go_only_where_it_is_loaded_and_are_logged_by_its_name(
    with_adapter: Running, engine: Engine, second: Engine
) -> None:
    for _number in range(3):
        answer = with_adapter.ask("polite")
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"].endswith("second")
    assert [body["model"] for _headers, body in second.asked] == ["polite"] * 3
    assert engine.asked == []
    logged = with_adapter.line(answer.headers["x-request-id"])
    assert (logged["route"], logged["backend"], logged["server"]) == ("r1a3", "b1a3", "i2")


def test_the_base_routes_keys_may_use_it_and_list_it_and_others_may_not(with_adapter: Running) -> None:
    with with_adapter.client() as client:
        listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
        assert listed.keys() == {"chat", "polite"}
        assert listed["polite"]["parent"] == "chat"
        assert client.get("/v1/models/polite").json()["id"] == "polite"
    assert with_adapter.ask("polite", key="other").status_code == 403
    with with_adapter.client("other") as client:
        assert client.get("/v1/models").json()["data"] == []


def test_limits_count_by_its_name(with_adapter: Running) -> None:
    assert [with_adapter.ask("polite").status_code for _number in range(5)] == [200] * 4 + [429]
    assert with_adapter.ask("chat").status_code == 200


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/polite"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_what_loads_and_unloads_in_an_engine_is_out_of_reach(
    with_adapter: Running, engine: Engine, second: Engine, path: str, method: str
) -> None:
    with with_adapter.client() as client:
        answer = client.request(method, path, json={"lora_name": "x", "lora_path": "/etc", "model": "chat"})
    assert answer.status_code == 404
    assert engine.asked == second.asked == []


def test_loaded_elsewhere_or_nowhere_it_follows_without_a_reload(
    with_adapter: Running, engine: Engine, second: Engine
) -> None:
    base = with_adapter.gateway.routes[0]
    here = adapter_route(target_of(second, servers=(server_of(engine),)), limits=LIMITS)
    assert with_adapter.change(routes=(base, here)).way == "runtime"
    assert with_adapter.ask("polite").json()["choices"][0]["message"]["content"].endswith("engine")
    nowhere = adapter_route(target_of(second, servers=()), limits=LIMITS)
    assert with_adapter.change(routes=(base, nowhere)).way == "runtime"
    answer = with_adapter.ask("polite")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instance")
    assert with_adapter.ask("chat").status_code == 200


def test_names_of_canaries_backends_are_told_from_others() -> None:
    assert [is_of_canary(name) for name in ("b7", "b7n", "b7a3", "b7na3")] == [False, True, False, True]


def test_an_engine_with_many_adapters_is_asked_for_its_health_less_often_by_each() -> None:
    assert "inter 400ms" in config.check_of("b7n")
    assert "inter 1s" in config.check_of("b7na12")


# -- from rows to the description -------------------------------------------------------------------------------------


def loaded(fleet: Fleet, admin: User, name: str = "chat", adapter: str = "polite") -> tuple[Instance, Adapter]:
    """A deployment with adapters on, whose instance has one loaded."""
    instance = deployed(fleet, name)
    spec = instance.spec
    spec.arguments = LORA
    spec.save()
    revision = adapter_on(fleet.host, f"{name}-{adapter}")
    made = services.add(instance.deployment, name=adapter, revision=revision, other_base=False, actor=admin)
    AdapterLoad.objects.filter(adapter=made).update(state="loaded", attempt=1)
    return instance, made


def described() -> dict[str, list[int]]:
    return {
        name: [server.instance for target in route.targets for server in target.servers]
        for route in plan.read().routes
        for name in route.names
    }


@pytest.mark.django_db
def test_an_adapter_is_a_model_of_its_bases_route_where_its_process_has_it(fleet: Fleet, admin: User) -> None:
    instance, adapter = loaded(fleet, admin)
    routes.save(Route(name="chat"), aliases=[], shares=[Share(instance.deployment)], actor=None)
    assert described() == {"chat": [instance.pk], "polite": [instance.pk]}
    AdapterLoad.objects.update(state="queued")
    assert described()["polite"] == []
    AdapterLoad.objects.update(state="loaded")
    argv = Attempt.objects.get().argv
    Attempt.objects.create(instance=instance, number=2, argv=argv, started_at=timezone.now())
    assert described() == {"chat": [instance.pk], "polite": []}
    AdapterLoad.objects.update(attempt=2)
    assert described()["polite"] == [instance.pk]
    services.remove(adapter, actor=admin, reason="old")
    assert described() == {"chat": [instance.pk]}


@pytest.mark.django_db
def test_behind_two_routes_it_is_a_name_of_the_first_and_never_falls_back(fleet: Fleet, admin: User) -> None:
    instance, adapter = loaded(fleet, admin)
    first = routes.save(Route(name="chat"), aliases=[], shares=[Share(instance.deployment)], actor=None)
    routes.save(Route(name="chat-2", fallback=first), aliases=[], shares=[Share(instance.deployment)], actor=None)
    (route,) = [one for one in plan.read().routes if one.adapter]
    assert (route.number, route.key, route.base, route.fallback) == (
        first.pk, f"r{first.pk}a{adapter.pk}", "chat", None,
    )  # fmt: skip


@pytest.mark.django_db
def test_one_name_on_two_deployments_of_a_route_goes_to_both(fleet: Fleet, admin: User) -> None:
    instance, _adapter = loaded(fleet, admin)
    other = deployed(fleet, "chat-b", served=["chat-b", "chat"], port=18002)
    other.spec.arguments = LORA
    other.spec.save()
    Attempt.objects.filter(instance=instance).update(argv=["vllm", "--served-model-name", "chat"])
    shares = [Share(instance.deployment), Share(other.deployment)]
    revision = adapter_on(fleet.host, "again")
    with pytest.raises(Refused, match="stands behind no route of this one"):
        services.add(other.deployment, name="polite", revision=revision, other_base=False, actor=admin)
    routes.save(Route(name="chat"), aliases=[], shares=shares, actor=None)
    made = services.add(other.deployment, name="polite", revision=revision, other_base=False, actor=admin)
    AdapterLoad.objects.filter(adapter=made).update(state="loaded", attempt=1)
    assert described() == {"chat": [instance.pk, other.pk], "polite": [instance.pk, other.pk]}


@pytest.mark.django_db
def test_names_of_routes_and_of_adapters_exclude_each_other(fleet: Fleet, admin: User) -> None:
    instance, _adapter = loaded(fleet, admin)
    for name, aliases in (("polite", []), ("chat", ["polite"])):
        with pytest.raises(Refused, match="is an adapter of chat"):
            routes.save(Route(name=name), aliases=aliases, shares=[], actor=None)
    routes.save(Route(name="terse"), aliases=["short"], shares=[], actor=None)
    for name in ("terse", "short"):
        revision = adapter_on(fleet.host, name)
        with pytest.raises(Refused, match="belongs to the route terse"):
            services.add(instance.deployment, name=name, revision=revision, other_base=False, actor=admin)


@pytest.mark.django_db
def test_usage_and_corrections_are_of_the_adapters_name(fleet: Fleet, admin: User, tmp_path: Any) -> None:
    instance, adapter = loaded(fleet, admin)
    route = routes.save(Route(name="chat"), aliases=[], shares=[Share(instance.deployment)], actor=None)
    keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    key, backend = f"r{route.pk}a{adapter.pk}", f"b{route.targets.get().pk}a{adapter.pk}"
    write(tmp_path / "access.log", line(1, route=key, backend=backend, model="polite"), line(2))
    reader = access_log.Reader(tmp_path / "access.log")
    assert reader.read() == 2
    assert [(one.route, one.deployment) for one in GatewayRequest.objects.order_by("request_id")] == [
        ("polite", "chat"), ("chat", "chat"),
    ]  # fmt: skip
    assert set(UsageDay.objects.values_list("route", "requests")) == {("polite", 1), ("chat", 1)}
    assert {name for name in reader.corrections.sums(timezone.now().timestamp()) if name[0] == "r"} == {
        key, f"r{route.pk}",
    }  # fmt: skip


@pytest.mark.django_db
def test_it_has_as_large_a_budget_as_its_base_and_spends_its_own(fleet: Fleet, admin: User) -> None:
    instance, adapter = loaded(fleet, admin)
    route = routes.save(Route(name="chat", daily_tokens=9), aliases=[], shares=[Share(instance.deployment)], actor=None)
    key, _secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    now = timezone.now()
    UsageDay.objects.create(day=now.date(), team_id=1, key=key, route="polite", prompt_tokens=9)
    assert set(plan.spent(now)) == {f"r{route.pk}a{adapter.pk}"}


def test_maps_grant_an_adapter_to_the_keys_of_its_base(engine: Engine) -> None:
    target = target_of(engine)
    listener = Listener("/nowhere", "/nowhere.lua")
    built = maps.build(Gateway(listener, routes=(route_of(target), adapter_route(target)), keys=KEYS))
    assert sorted(key.rpartition("/")[2] for key in built["grants"]) == ["r1", "r1a3"]
    assert built["names"] == {"chat": "r1", "polite": "r1a3"}
    assert set(built["slots"].values()) == {"b1", "b1a3"}


@pytest.mark.django_db
def test_queries_do_not_grow_with_adapters(fleet: Fleet, admin: User, django_assert_max_num_queries: Any) -> None:
    instance, _adapter = loaded(fleet, admin)
    for number in range(5):
        revision = adapter_on(fleet.host, f"more-{number}")
        services.add(instance.deployment, name=f"more-{number}", revision=revision, other_base=False, actor=admin)
    routes.save(Route(name="chat"), aliases=[], shares=[Share(instance.deployment)], actor=None)
    with django_assert_max_num_queries(20):
        assert len(plan.read().routes) == 7
    assert Deployment.objects.get(name="chat").adapters.count() == 6
