"""Routes, and which instances of which deployments get their requests."""

from typing import Any

import pytest
from django.utils import timezone

from console.access.models import Team, User
from console.common.errors import Refused
from console.deployments import observations, public
from console.deployments.models import Attempt, Deployment, Instance
from console.gateway import names, plan, publishing, routes
from console.gateway.models import Route
from console.gateway.routes import Share
from tests.factories import Fleet
from workers.gateway import maps


def deployed(
    fleet: Fleet, name: str, *, served: list[str] | None = None, state: str = "ready", port: int = 18001
) -> Instance:
    """A deployment whose engine runs, as its host reports it."""
    fleet.deploy(name=name)
    instance = Deployment.objects.get(name=name).instances.get()
    Instance.objects.filter(pk=instance.pk).update(state=state, port=port, run=True, ordered=True)
    argv = ["vllm", "serve", "/m", "--port", str(port), names.FLAG, *(served or [name])]
    Attempt.objects.create(instance=instance, number=1, argv=argv, started_at=timezone.now())
    instance.refresh_from_db()
    return instance


def save(name: str, *shares: Share, aliases: tuple[str, ...] = (), **fields: Any) -> Route:
    return routes.save(Route(name=name), aliases=aliases, shares=shares, actor=None, **fields)


def servers() -> dict[str, list[int]]:
    return {
        f"{route.names[0]}/{target.deployment}": [server.instance for server in target.servers]
        for route in plan.read().routes
        for target in route.targets
    }


@pytest.mark.parametrize(
    "state", ["starting", "loading", "validating", "warming", "unhealthy", "restarting", "stopped"]
)
def test_only_ready_instances_get_requests(fleet: Fleet, state: str) -> None:
    instance = deployed(fleet, "chat")
    save("chat", Share(instance.deployment))
    assert servers() == {"chat/chat": [instance.pk]}
    Instance.objects.filter(pk=instance.pk).update(state=state)
    assert servers() == {"chat/chat": []}


def test_an_instance_that_was_told_to_stop_drains(fleet: Fleet) -> None:
    instance = deployed(fleet, "chat")
    save("chat", Share(instance.deployment))
    Instance.objects.filter(pk=instance.pk).update(run=False)
    (server,) = plan.read().routes[0].targets[0].servers
    assert server.draining


def restarted(instance: Instance) -> None:
    """Its engine runs anew, with the names that it is told now."""
    argv = ["vllm", names.FLAG, *public.served_names(instance.deployment)]
    number = Attempt.objects.filter(instance=instance).count() + 1
    Attempt.objects.create(instance=instance, number=number, argv=argv, started_at=timezone.now())


def answering() -> list[str]:
    publishing.settle(Route.objects.all())
    return sorted(maps.build(plan.read())["names"])


def two_behind_chat(fleet: Fleet) -> tuple[Instance, Instance, Route]:
    first = deployed(fleet, "chat-a", served=["chat-a", "chat"])
    second = deployed(fleet, "chat-b", served=["chat-b", "chat"], port=18002)
    return first, second, save("chat", Share(first.deployment), Share(second.deployment))


def test_a_new_alias_answers_once_all_engines_know_it_and_the_old_name_never_stops(fleet: Fleet) -> None:
    first, second, route = two_behind_chat(fleet)
    everybody = {"chat/chat-a": [first.pk], "chat/chat-b": [second.pk]}
    shares = [Share(first.deployment), Share(second.deployment)]
    routes.save(route, aliases=["gpt-4o"], shares=shares, actor=None)
    assert (servers(), answering(), route.waiting) == (everybody, ["chat"], ["gpt-4o"])
    assert public.served_names(first.deployment) == ["chat-a", "chat", "gpt-4o"]
    assert observations.order(first).served_model_names == ["chat-a", "chat", "gpt-4o"]
    restarted(first)
    assert (servers(), answering()) == (everybody, ["chat"])
    Instance.objects.filter(pk=second.pk).update(state="loading")
    assert answering() == ["chat", "gpt-4o"]
    Instance.objects.filter(pk=second.pk).update(state="ready")
    # One that comes back without the name, such as a host that was away, waits: what answers is never taken back.
    assert (servers(), answering()) == (everybody | {"chat/chat-b": []}, ["chat", "gpt-4o"])
    restarted(second)
    assert (servers(), answering()) == (everybody, ["chat", "gpt-4o"])
    routes.save(route, aliases=["gpt-4o"], shares=shares, actor=None, notes="the same names")
    assert answering() == ["chat", "gpt-4o"]


def test_a_deployment_that_joins_a_route_waits_itself_and_takes_no_name_away(fleet: Fleet) -> None:
    first = deployed(fleet, "chat-a", served=["chat-a", "chat", "gpt-4o"])
    route = save("chat", Share(first.deployment), aliases=("gpt-4o",))
    assert answering() == ["chat", "gpt-4o"]
    joins = deployed(fleet, "chat", port=18002)
    shares = [Share(first.deployment), Share(joins.deployment)]
    routes.save(route, aliases=["gpt-4o"], shares=shares, actor=None)
    assert (servers(), answering()) == ({"chat/chat-a": [first.pk], "chat/chat": []}, ["chat", "gpt-4o"])


def test_a_route_that_changes_its_name_goes_on_under_the_old_one(fleet: Fleet) -> None:
    instance = deployed(fleet, "chat")
    route = save("chat", Share(instance.deployment))
    renamed: dict[str, Any] = {"name": "talk", "shares": [Share(instance.deployment)], "actor": None}
    routes.save(route, aliases=["chat"], **renamed)
    assert (list(servers().values()), answering(), route.waiting) == ([[instance.pk]], ["chat"], ["talk"])
    found = public.endpoint(instance.deployment)
    assert found
    assert found.model == "chat"
    restarted(instance)
    assert answering() == ["chat", "talk"]
    routes.save(route, aliases=[], **renamed)
    assert answering() == ["talk"]
    routes.save(route, aliases=[], **renamed | {"name": "new"})
    assert (servers(), answering()) == ({"new/chat": []}, ["new"])


def test_who_is_fallen_back_to_keeps_its_requests_and_takes_the_others_once_it_knows_their_names(fleet: Fleet) -> None:
    own, spared = deployed(fleet, "chat"), deployed(fleet, "spare", port=18002)
    spare = save("spare", Share(spared.deployment))
    chat = save("chat", Share(own.deployment), fallback=spare)
    everybody = {"spare/spare": [spared.pk], "chat/chat": [own.pk]}

    def fallback() -> int | None:
        publishing.settle(Route.objects.all())
        return {route.names[0]: route.fallback for route in plan.read().routes}["chat"]

    assert set(public.served_names(spared.deployment)) == {"spare", "chat"}
    assert (servers(), fallback()) == (everybody, None)
    restarted(spared)
    assert (servers(), fallback()) == (everybody, spare.pk)
    chat.refresh_from_db()
    routes.save(chat, aliases=["org/chat"], shares=[Share(own.deployment)], actor=None)
    restarted(own)
    assert (servers(), fallback(), answering()) == (everybody, spare.pk, ["chat", "spare"])
    restarted(spared)
    assert (servers(), fallback(), answering()) == (everybody, spare.pk, ["chat", "org/chat", "spare"])


def test_a_route_without_deployments_answers_by_its_fallback(fleet: Fleet) -> None:
    spared = deployed(fleet, "spare")
    spare = save("spare", Share(spared.deployment))
    save("chat", aliases=("org/chat",), fallback=spare)
    assert answering() == ["chat", "spare"]
    restarted(spared)
    assert answering() == ["chat", "org/chat", "spare"]


def test_a_name_belongs_to_one_route(fleet: Fleet) -> None:
    save("chat", aliases=("gpt",))
    for name, aliases in (("gpt", ()), ("other", ("chat",)), ("other", ("other",))):
        with pytest.raises(Refused):
            save(name, aliases=aliases)
    assert Route.objects.count() == 1


def test_another_teams_deployment_can_not_be_behind_a_route(fleet: Fleet) -> None:
    fleet.deploy(name="theirs")
    theirs = Deployment.objects.get(name="theirs")
    theirs.team = Team.objects.create(name="others")
    theirs.save()
    with pytest.raises(Refused):
        save("chat", Share(theirs))


def test_versions_may_change_places(fleet: Fleet) -> None:
    for name in ("a", "b"):
        fleet.deploy(name=name)
    first, second = Deployment.objects.get(name="a"), Deployment.objects.get(name="b")
    route = save("chat", Share(first, version="old"), Share(second, version="new"))
    swapped = [Share(first, version="new"), Share(second, version="old")]
    routes.save(route, aliases=(), shares=swapped, actor=None)
    assert {one.deployment.name: one.version for one in route.targets.all()} == {"a": "new", "b": "old"}


def test_weights_change_alone_and_are_recorded(fleet: Fleet, operator: User) -> None:
    fleet.deploy(name="a")
    route = save("chat", Share(Deployment.objects.get(name="a")))
    target = route.targets.get()
    routes.weigh(route, {target.pk: 5, 99_999: 1}, actor=operator, reason="canary")
    target.refresh_from_db()
    assert target.weight == 5


def test_the_endpoint_of_a_deployment_is_its_route(fleet: Fleet) -> None:
    instance = deployed(fleet, "chat-v1")
    assert public.endpoint(instance.deployment) is None
    save("chat", Share(instance.deployment))
    found = public.endpoint(instance.deployment)
    assert found
    assert found.model == "chat"


def test_names_are_read_from_the_last_of_a_commands_flags() -> None:
    assert names.served(["vllm", names.FLAG, "a", "b", "--port", "1"]) == ["a", "b"]
    assert names.served(["vllm", names.FLAG, "a", "--x", names.FLAG, "b", "c"]) == ["b", "c"]
    assert names.served(["vllm"]) == []


def test_a_deployment_with_a_public_name_gets_its_route_and_a_taken_name_deploys_nothing(
    fleet: Fleet, admin: User
) -> None:
    fleet.deploy(actor=admin, name="chat", public_name="org/chat-8b")
    chat = Deployment.objects.get()
    assert [(route.name, route.team_id, route.created_by) for route in Route.objects.all()] == [
        ("org/chat-8b", chat.team_id, admin)
    ]
    assert public.served_names(chat) == ["chat", "org/chat-8b"]
    found = public.endpoint(chat)
    assert found
    assert found.model == "org/chat-8b"
    for name, why in (("org/chat-8b", "belongs to the route"), ("no spaces", "Use letters")):
        with pytest.raises(Refused, match=why) as refused:
            fleet.deploy(actor=admin, name="other", public_name=name)
        assert refused.value.field == "public_name"
    assert Deployment.objects.count() == Route.objects.count() == 1
