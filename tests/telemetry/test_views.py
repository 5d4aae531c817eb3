"""The overview and the search."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access import services as access
from console.access.models import Team, User
from console.common.states import move
from console.deployments.models import Deployment
from console.fleet.models import Host
from console.jobs.models import Job
from tests.factories import Fleet


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def overview(user: User) -> str:
    answer = signed_in(user).get(reverse("overview"))
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_empty_console_shows_the_way_to_a_first_answer(admin: User, viewer: User) -> None:
    page = overview(admin)
    assert "Nothing is deployed yet." in page
    for name in ("host_add", "engine_install", "model_add", "deployment_add"):
        assert f'href="{reverse(name)}"' in page
    page = overview(viewer)
    assert "An admin of this console does these steps" in page
    assert f'href="{reverse("host_add")}"' not in page


def test_what_is_done_of_the_way_is_ticked_off(admin: User, fleet: Fleet) -> None:
    steps = signed_in(admin).get(reverse("overview")).context["milestones"]
    assert [step.done for step in steps] == [True, True, True, False]


def test_the_first_line_says_what_serves_and_what_failed_why_and_when(admin: User, fleet: Fleet) -> None:
    for _number in range(3):
        fleet.deploy(admin)
    good, better, bad = Deployment.objects.order_by("pk")
    for one in (good, better):
        move(one, to="serving")
    move(bad, to="failed", reason="no memory left for the KV cache")
    Deployment.objects.filter(pk=bad.pk).update(state_since=timezone.now() - timedelta(minutes=4))
    page = overview(admin)
    assert "2 deployments serve." in page
    trouble = page[page.index('class="truth"') :]
    assert trouble.index(bad.name) < trouble.index("4 min ago") < trouble.index("no memory left for the KV cache")


def test_a_silent_hosts_deployments_are_unknown_not_failed(viewer: User, fleet: Fleet) -> None:
    fleet.deploy()
    deployment = Deployment.objects.get()
    move(deployment, to="serving")
    deployment.instances.update(state="ready", ordered=True)
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now() - timedelta(minutes=2))
    page = overview(viewer)
    assert "Nothing serves; 1 is unknown." in page
    assert "silent" in page
    assert "state-red" not in page


def test_running_jobs_show_their_step_and_progress(viewer: User, fleet: Fleet) -> None:
    job = fleet.deploy()
    step = job.steps.order_by("position")[0]
    step.progress = {"done": 3 * 1024**3, "total": 6 * 1024**3, "unit": "bytes", "rate": 1024**3}
    step.save()
    page = overview(viewer)
    assert "step 1 of" in page
    assert "3 GiB of 6 GiB" in page
    assert "1 GiB/s" in page
    assert "3 s left" in page


def test_what_people_did_is_for_those_who_may_read_the_audit(operator: User, viewer: User, fleet: Fleet) -> None:
    fleet.deploy()
    access.record(actor=operator, action="instance.restart", target="chat #1", reason="stuck")
    assert "otto restarted" in overview(operator)
    assert "otto restarted" not in overview(viewer)


def test_nothing_of_another_team_is_shown_or_found(admin: User, fleet: Fleet) -> None:
    team = Team.objects.create(name="others")
    stranger = User.objects.create_user("stranger", role="admin", team=team)
    fleet.deploy(stranger, name="theirs")
    for rows in (Deployment, Host, Job):
        rows.objects.update(team=team)  # type: ignore[attr-defined]
    assert "theirs" not in overview(admin)
    found = signed_in(admin).get(reverse("search"), {"q": "theirs"}).content.decode()
    assert reverse("deployment_detail", args=[Deployment.objects.get().pk]) not in found


def test_the_overview_costs_the_same_with_many_deployments(admin: User, django_assert_max_num_queries: Any) -> None:
    for _number in range(8):
        Fleet.make().deploy(admin)
    client = signed_in(admin)
    with django_assert_max_num_queries(20):
        client.get(reverse("overview"))


@pytest.mark.parametrize("query", ["chat", "CHAT 1", "cha"])
def test_the_search_finds_by_parts_of_names(viewer: User, fleet: Fleet, query: str) -> None:
    fleet.deploy(name="my-chat-1")
    part = signed_in(viewer).get(reverse("search"), {"q": query}, headers={"HX-Request": "true"}).content.decode()
    assert "my-chat-1" in part
    assert "<html" not in part


def test_the_search_offers_only_pages_that_the_role_may_open(admin: User, viewer: User) -> None:
    assert reverse("host_add") in signed_in(admin).get(reverse("search"), {"q": "host"}).content.decode()
    found = signed_in(viewer).get(reverse("search"), {"q": "host"}).content.decode()
    assert reverse("host_list") in found
    assert reverse("host_add") not in found


def test_a_search_without_a_hit_says_so_harmlessly(viewer: User) -> None:
    found = signed_in(viewer).get(reverse("search"), {"q": "<script>x"}).content.decode()
    assert "Nothing is called" in found
    assert "<script>x" not in found
