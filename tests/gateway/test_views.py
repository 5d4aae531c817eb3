"""Pages of the gateway, as each role meets them."""

import csv
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import env
from console.access.models import Team, User
from console.deployments.models import Deployment
from console.gateway import keys, routes
from console.gateway.models import GatewayRequest, Key, Route, UsageDay
from console.gateway.routes import Share
from tests.factories import Fleet
from tests.gateway.test_routes import deployed


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def route(fleet: Fleet) -> Route:
    fleet.deploy(name="chat-a")
    shares = [Share(Deployment.objects.get(name="chat-a"))]
    return routes.save(Route(name="chat"), aliases=["gpt"], shares=shares, actor=None)


@pytest.fixture
def key(route: Route) -> Key:
    made, _secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    UsageDay.objects.create(
        day=timezone.now().date(), team_id=1, key=made, route="chat", deployment="chat-a", requests=3,
        prompt_tokens=1200, output_tokens=34,
    )  # fmt: skip
    GatewayRequest.objects.create(
        request_id="abc-1",
        at=timezone.now(),
        team_id=1,
        key=made,
        path="/v1/chat/completions",
        route="chat",
        status=200,
    )
    return made


PAGES: list[tuple[str, str, dict[str, int]]] = [
    # name, what, status by role
    ("route_list", "", {"viewer": 200, "operator": 200, "admin": 200}),
    ("route_detail", "route", {"viewer": 200, "operator": 200, "admin": 200}),
    ("route_add", "", {"viewer": 403, "operator": 403, "admin": 200}),
    ("route_edit", "route", {"viewer": 403, "operator": 403, "admin": 200}),
    ("route_weights", "route", {"viewer": 403, "operator": 200, "admin": 200}),
    ("route_remove", "route", {"viewer": 403, "operator": 403, "admin": 200}),
    ("key_list", "", {"viewer": 403, "operator": 200, "admin": 200}),
    ("key_detail", "key", {"viewer": 403, "operator": 200, "admin": 200}),
    ("key_add", "", {"viewer": 403, "operator": 403, "admin": 200}),
    ("key_edit", "key", {"viewer": 403, "operator": 403, "admin": 200}),
    ("key_rotate", "key", {"viewer": 403, "operator": 403, "admin": 200}),
    ("key_revoke", "key", {"viewer": 403, "operator": 200, "admin": 200}),
    ("team_limits", "", {"viewer": 403, "operator": 403, "admin": 200}),
    ("usage", "", {"viewer": 200, "operator": 200, "admin": 200}),
    ("request_list", "", {"viewer": 200, "operator": 200, "admin": 200}),
]


@pytest.mark.parametrize(("name", "what", "statuses"), PAGES, ids=[page[0] for page in PAGES])
def test_each_role_meets_what_it_may(
    admin: User, operator: User, viewer: User, route: Route, key: Key, name: str, what: str, statuses: dict[str, int]
) -> None:
    arguments = {"route": [route.pk], "key": [key.pk]}.get(what, [])
    for user in (viewer, operator, admin):
        client = signed_in(user)
        assert client.get(reverse(name, args=arguments)).status_code == statuses[user.role], user
        if statuses[user.role] == 403:
            assert client.post(reverse(name, args=arguments)).status_code in (403, 405)


def test_another_teams_routes_keys_and_usage_are_invisible(admin: User, route: Route, key: Key) -> None:
    admin.team = Team.objects.create(name="others")
    admin.save()
    client = signed_in(admin)
    for name, pk in (
        ("route_detail", route.pk),
        ("route_edit", route.pk),
        ("key_detail", key.pk),
        ("key_revoke", key.pk),
    ):
        assert client.get(reverse(name, args=[pk])).status_code == 404
    for name in ("route_list", "key_list", "usage", "request_list"):
        page = client.get(reverse(name), {"show": "all"}).content.decode()
        assert "abc-1" not in page
        assert "1,200" not in page
        assert "chat-a" not in page


def test_a_route_is_made_with_its_aliases_and_weights(admin: User, fleet: Fleet) -> None:
    fleet.deploy(name="chat-a")
    deployment = Deployment.objects.get(name="chat-a")
    form = {
        "name": "org/chat", "aliases": "gpt, gpt-4o", "balance": "leastconn", "output_assumed": 512, "in_flight_each": 256,
        "queue_limit": 10, "queue_seconds": 5, "silence_seconds": 60, "enabled": "on",
        f"target-{deployment.pk}-weight": "70", f"target-{deployment.pk}-version": "v1",
    }  # fmt: skip
    client = signed_in(admin)
    answer = client.post(reverse("route_add"), form)
    made = Route.objects.get()
    assert answer.headers["Location"] == reverse("route_detail", args=[made.pk])
    assert made.names == ["org/chat", "gpt", "gpt-4o"]
    assert [(one.weight, one.version) for one in made.targets.all()] == [(70, "v1")]
    page = client.get(reverse("route_detail", args=[made.pk])).content.decode()
    assert "/v1/chat/completions" in page
    again = client.post(reverse("route_add"), form | {"name": "other"})
    assert again.status_code == 400
    assert "belongs to the route org/chat" in again.content.decode()


def test_a_new_alias_says_that_it_waits_and_offers_the_rolling_restart(admin: User, fleet: Fleet) -> None:
    instance = deployed(fleet, "chat")
    route = routes.save(Route(name="chat"), aliases=[], shares=[Share(instance.deployment)], actor=None)
    form = {
        "name": "chat", "aliases": "gpt-4o", "balance": "leastconn", "output_assumed": 512, "in_flight_each": 256,
        "queue_limit": 10, "queue_seconds": 5, "silence_seconds": 60, "enabled": "on",
        f"target-{instance.deployment_id}-weight": "100",
    }  # fmt: skip
    client = signed_in(admin)
    page = client.post(reverse("route_edit", args=[route.pk]), form, follow=True).content.decode()
    assert "Until every instance behind it was restarted, clients that ask for gpt-4o get 404." in page
    assert "Names that answered before go on answering." in page
    assert reverse("deployment_restart", args=[instance.deployment_id]) in page


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "no spaces"}, "name"),
        ({"name": ""}, "name"),
        ({"aliases": "a b"}, "aliases"),
        ({"queue_limit": 0}, "queue_limit"),
        ({"weight": "101"}, "__all__"),
        ({"weight": "x"}, "__all__"),
        ({"version": "a b", "weight": "1"}, "__all__"),
    ],
)
def test_a_bad_route_is_refused_where_it_is_bad(admin: User, fleet: Fleet, changes: dict[str, Any], field: str) -> None:
    fleet.deploy(name="chat-a")
    pk = Deployment.objects.get(name="chat-a").pk
    form: dict[str, Any] = {
        "name": "chat", "balance": "leastconn", "output_assumed": 512, "in_flight_each": 1, "queue_limit": 1,
        "queue_seconds": 1, "silence_seconds": 60,
    }  # fmt: skip
    for name, value in changes.items():
        form[f"target-{pk}-{name}" if name in ("weight", "version") else name] = value
    answer = signed_in(admin).post(reverse("route_add"), form)
    assert answer.status_code == 400
    assert field in answer.context["form"].errors
    assert not Route.objects.exists()


def test_a_key_is_shown_once_and_never_again(admin: User, route: Route) -> None:
    client = signed_in(admin)
    answer = client.post(reverse("key_add"), {"name": "app", "all_routes": "on", "tokens_per_minute": 60_000})
    made = Key.objects.get()
    page = answer.content.decode()
    assert "no-store" in answer.headers["Cache-Control"]
    (secret,) = {word for word in page.replace("<", " ").replace(">", " ").split() if keys.digest(word) == made.sha256}
    for name, arguments in (("key_list", []), ("key_detail", [made.pk]), ("key_edit", [made.pk])):
        assert secret not in client.get(reverse(name, args=arguments)).content.decode()
    rotated = client.post(reverse("key_rotate", args=[made.pk]), {"overlap": "1", "reason": "yearly"})
    assert rotated.status_code == 200
    assert Key.objects.count() == 2


def test_a_key_for_nothing_is_refused(admin: User, route: Route) -> None:
    answer = signed_in(admin).post(reverse("key_add"), {"name": "app"})
    assert answer.status_code == 400
    assert "routes" in answer.context["form"].errors


def test_revoking_asks_for_a_reason(operator: User, key: Key) -> None:
    client = signed_in(operator)
    assert client.post(reverse("key_revoke", args=[key.pk]), {"reason": ""}).status_code == 400
    client.post(reverse("key_revoke", args=[key.pk]), {"reason": "leaked"})
    key.refresh_from_db()
    assert key.revoked_at


def test_usage_adds_up_on_the_page_and_in_the_export(viewer: User, key: Key) -> None:
    client = signed_in(viewer)
    for by in ("key", "route", "deployment", "team", "nonsense"):
        assert "1,200" in client.get(reverse("usage"), {"by": by, "days": "30"}).content.decode()
    answer = client.get(reverse("usage"), {"format": "csv"})
    rows = list(csv.DictReader(b"".join(answer.streaming_content).decode().splitlines()))  # type: ignore[attr-defined]
    assert [(row["key"], row["prompt_tokens"], row["requests"]) for row in rows] == [("app", "1200", "3")]


def test_a_request_is_found_by_its_id(viewer: User, key: Key) -> None:
    client = signed_in(viewer)
    assert "abc-1" in client.get(reverse("request_list"), {"q": "abc"}).content.decode()
    assert "abc-1" not in client.get(reverse("request_list"), {"q": "zzz"}).content.decode()
    assert "abc-1" not in client.get(reverse("request_list"), {"outcome": "failed"}).content.decode()


@pytest.mark.parametrize("name", ["route_list", "key_list", "request_list", "usage"])
def test_lists_take_a_constant_number_of_queries(
    admin: User, fleet: Fleet, key: Key, name: str, django_assert_max_num_queries: Any
) -> None:
    for number in range(8):
        fleet.deploy(name=f"more-{number}")
        shares = [Share(Deployment.objects.get(name=f"more-{number}"))]
        routes.save(Route(name=f"more-{number}"), aliases=[f"also-{number}"], shares=shares, actor=None)
        made, _secret = keys.create(name=f"k{number}", owner=admin, routes=None, expires_at=None, actor=None, team_id=1)
        GatewayRequest.objects.create(
            request_id=f"r{number}", at=timezone.now(), team_id=1, key=made, path="/", status=200
        )
    client = signed_in(admin)
    with django_assert_max_num_queries(16):
        assert client.get(reverse(name)).status_code == 200


def test_the_deployments_page_shows_the_gateways_address(viewer: User, route: Route) -> None:
    pk = route.targets.get().deployment_id
    page = signed_in(viewer).get(reverse("deployment_detail", args=[pk])).content.decode()
    assert f"{env.gateway_url()}/v1" in page
    assert "SLIPWAY_KEY" in page
