"""Pages of deployments and instances."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, Team, User
from console.common.secrets import decrypt
from console.deployments.models import Attempt, Deployment, Instance, Spec
from console.jobs.models import Job
from tests.factories import Fleet

pytestmark = pytest.mark.django_db

PAGES = ["detail", "logs", "specs"]


@pytest.fixture
def deployment(fleet: Fleet, admin: User) -> Deployment:
    fleet.deploy(admin, name="chat")
    return Deployment.objects.get(name="chat")


@pytest.fixture
def serving(deployment: Deployment) -> Deployment:
    """The deployment with a ready instance and no job in the way."""
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    Instance.objects.update(state="ready", port=18001, ordered=True, run=True)
    Deployment.objects.update(state="serving")
    deployment.refresh_from_db()
    return deployment


@pytest.fixture
def attempt(deployment: Deployment) -> Attempt:
    made = Attempt.objects.create(
        instance=deployment.instances.get(),
        number=1,
        pid=4711,
        argv=["vllm", "serve", "/models/a b", "--port", "18001"],
        environment={"VLLM_API_KEY": "***", "VLLM_CPU_KVCACHE_SPACE": "1"},
        started_at=timezone.now(),
        exit_code=1,
        ended_at=timezone.now(),
        diagnosis={
            "code": "kv_cache.too_small",
            "title": "KV cache too small",
            "message": "ValueError: <x>",
            "fix": "Lower the context.",
            "evidence": [{"line": 7, "text": "ValueError: 6.1 GiB"}],
        },
    )
    made.log_path.parent.mkdir(parents=True, exist_ok=True)
    made.log_path.write_bytes(b"")
    return made


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page_of(user: User, name: str, *args: Any, **query: Any) -> str:
    response = signed_in(user).get(reverse(name, args=args), query)
    assert response.status_code == 200, (name, response.status_code)
    return response.content.decode()


def key_of(deployment: Deployment) -> str:
    return decrypt(deployment.api_key)


@pytest.mark.parametrize(
    ("name", "viewer_may", "operator_may"),
    [
        ("deployment_detail", True, True),
        ("deployment_logs", True, True),
        ("deployment_specs", True, True),
        ("deployment_log_part", True, True),
        ("deployment_playground", False, True),
        ("deployment_start", False, True),
        ("deployment_stop", False, True),
        ("deployment_settings", False, False),
        ("deployment_delete", False, False),
    ],
)
def test_each_role_sees_what_it_may(
    deployment: Deployment, admin: User, operator: User, viewer: User, name: str, viewer_may: bool, operator_may: bool
) -> None:
    url = reverse(name, args=[deployment.pk])
    assert signed_in(admin).get(url).status_code == 200
    assert signed_in(operator).get(url).status_code == (200 if operator_may else 403)
    assert signed_in(viewer).get(url).status_code == (200 if viewer_may else 403)
    assert Client().get(url).status_code == 302
    for person in (admin, operator, viewer):
        person.team = Team.objects.get_or_create(name="others")[0]
        person.save()
    assert signed_in(admin).get(url).status_code == 404


@pytest.mark.parametrize("name", ["deployment_start", "deployment_stop", "deployment_delete", "deployment_key"])
def test_a_viewer_can_press_nothing(serving: Deployment, viewer: User, name: str) -> None:
    response = signed_in(viewer).post(reverse(name, args=[serving.pk]), {"reason": "because"})
    assert response.status_code == 403
    assert Deployment.objects.get(pk=serving.pk).state == "serving"


def test_an_operator_can_neither_deploy_nor_delete(serving: Deployment, operator: User) -> None:
    client = signed_in(operator)
    for name, args in (("deployment_add", []), ("deployment_preview", []), ("deployment_delete", [serving.pk])):
        assert client.post(reverse(name, args=args), {"reason": "because"}).status_code == 403
    assert reverse("deployment_add") not in page_of(operator, "deployment_list")


def test_instances_of_another_team_are_not_there(attempt: Attempt, admin: User) -> None:
    admin.team = Team.objects.create(name="others")
    admin.save()
    client = signed_in(admin)
    urls = [
        reverse(name, args=[attempt.instance_id])
        for name in ("instance_detail", "instance_restart", "instance_log_part")
    ]
    urls += [
        reverse(name, args=[attempt.pk]) for name in ("attempt_log_lines", "attempt_log_matches", "attempt_log_file")
    ]
    assert [client.get(url, {"before": "1"}).status_code for url in urls] == [404] * len(urls)
    assert attempt.instance.deployment.name not in page_of(admin, "deployment_list")


def test_the_first_line_says_the_truth(serving: Deployment, viewer: User) -> None:
    assert "Serving on 1 of 1 instances." in page_of(viewer, "deployment_detail", serving.pk)


def test_a_key_is_in_no_page_until_someone_who_may_asks_for_it(
    serving: Deployment, viewer: User, operator: User, admin: User
) -> None:
    key = key_of(serving)
    for person in (viewer, operator, admin):
        for name in ("deployment_detail", "deployment_specs", "deployment_logs"):
            assert key not in page_of(person, name, serving.pk)
    assert reverse("deployment_key", args=[serving.pk]) not in page_of(viewer, "deployment_detail", serving.pk)
    response = signed_in(operator).post(reverse("deployment_key", args=[serving.pk]))
    assert response["cache-control"] == "no-store"
    page = response.content.decode()
    assert page.count(key) >= 3  # by itself, in curl, in Python
    assert AuditEntry.objects.filter(action="deployment.reveal_key", actor=operator).count() == 1


def test_the_endpoint_card_has_calls_to_paste(serving: Deployment, viewer: User) -> None:
    page = page_of(viewer, "deployment_detail", serving.pk)
    assert "curl http://127.0.0.1:18001/v1/chat/completions" in page
    assert "OpenAI(base_url=&quot;http://127.0.0.1:18001/v1&quot;" in page
    assert "$SLIPWAY_KEY" in page


def test_without_a_ready_instance_the_endpoint_card_says_so(deployment: Deployment, admin: User) -> None:
    page = page_of(admin, "deployment_detail", deployment.pk)
    assert "No instance is ready." in page
    assert "curl http" not in page


def test_a_failed_deployment_says_what_failed_and_what_to_do_next(deployment: Deployment, viewer: User) -> None:
    failure = {
        "code": "port.taken",
        "message": "Port 18000 is taken by pid 7.",
        "next": "Choose another.",
        "evidence": [],
    }
    Job.objects.update(state="failed", failure=failure)
    Deployment.objects.update(state="failed", state_reason=failure["message"])
    page = page_of(viewer, "deployment_detail", deployment.pk)
    assert "Not serving: Port 18000 is taken by pid 7." in page
    assert "Choose another." in page
    Instance.objects.update(
        state="crashed", failure=failure | {"message": "It ran out of memory.", "next": "Use less."}
    )
    assert "It ran out of memory." in page_of(viewer, "deployment_detail", deployment.pk)


def test_stopping_asks_for_a_reason_and_leads_to_its_job(serving: Deployment, operator: User) -> None:
    client = signed_in(operator)
    url = reverse("deployment_stop", args=[serving.pk])
    assert "requests in flight have 20 s" in client.get(url).content.decode()
    assert client.post(url, {"reason": " "}).status_code == 400
    response = client.post(url, {"reason": "maintenance"})
    job = Job.objects.get(kind="stop")
    assert response["location"] == reverse("job_detail", args=[job.pk])
    assert (job.reason, job.requested_by) == ("maintenance", operator)


def test_restarting_asks_for_a_reason_and_leads_to_its_job(serving: Deployment, operator: User, viewer: User) -> None:
    instance = serving.instances.get()
    url = reverse("instance_restart", args=[instance.pk])
    assert signed_in(viewer).post(url, {"reason": "x"}).status_code == 403
    assert url in page_of(operator, "deployment_detail", serving.pk)
    assert url not in page_of(viewer, "deployment_detail", serving.pk)
    response = signed_in(operator).post(url, {"reason": "slow since noon"})
    job = Job.objects.get(kind="restart")
    assert response["location"] == reverse("job_detail", args=[job.pk])
    assert AuditEntry.objects.get(action="instance.restart").reason == "slow since noon"


def test_a_refused_action_is_explained_where_it_was_asked_for(serving: Deployment, operator: User) -> None:
    response = signed_in(operator).post(reverse("deployment_start", args=[serving.pk]), {"reason": "go"})
    assert response.status_code == 400
    assert "only a stopped or failed deployment can be started" in response.content.decode()


def test_deleting_a_stopped_deployment(serving: Deployment, admin: User) -> None:
    client = signed_in(admin)
    url = reverse("deployment_delete", args=[serving.pk])
    refused = client.post(url, {"reason": "unused"})
    assert refused.status_code == 400
    assert "Stop it first" in refused.content.decode()
    Instance.objects.update(state="stopped", ordered=False, run=False)
    Deployment.objects.update(state="stopped")
    assert client.post(url, {"reason": "unused"})["location"] == reverse("deployment_list")
    assert not Deployment.objects.exists()


def test_notes_are_kept_and_shown_as_text(deployment: Deployment, admin: User) -> None:
    signed_in(admin).post(reverse("deployment_settings", args=[deployment.pk]), {"notes": "for <b>docs</b>"})
    page = page_of(admin, "deployment_detail", deployment.pk)
    assert "for &lt;b&gt;docs&lt;/b&gt;" in page
    assert AuditEntry.objects.filter(action="deployment.note").exists()


def test_two_specs_are_compared_argument_by_argument(deployment: Deployment, viewer: User) -> None:
    first = deployment.specs.get()
    Spec.objects.create(
        deployment=deployment, number=2, copy=first.copy, engine=first.engine, host=first.host, probe=first.probe,
        arguments=["--enforce-eager", "--max-model-len", "4096"], restart=first.restart, reason="long contracts",
    )  # fmt: skip
    page = page_of(viewer, "deployment_specs", deployment.pk)
    assert "From spec 1 to 2" in page
    assert '<b class="sign" aria-hidden="true">+</b><code class="code-quiet">--max-model-len</code>' in page
    assert '<td class="is">4096</td>' in page
    backwards = page_of(viewer, "deployment_specs", deployment.pk, **{"from": "2", "to": "1"})
    assert '<td class="was">4096</td>' in backwards
    fewer = page_of(viewer, "deployment_specs", deployment.pk, only="changed")
    assert "only-changed" in fewer
    assert (
        signed_in(viewer).get(reverse("deployment_specs", args=[deployment.pk]), {"from": "77", "to": "x"}).status_code
        == 200
    )


def test_an_instance_shows_its_attempts_with_command_environment_and_cause(attempt: Attempt, viewer: User) -> None:
    page = page_of(viewer, "instance_detail", attempt.instance_id)
    for text in ("KV cache too small", "Lower the context.", "ValueError: &lt;x&gt;", "VLLM_API_KEY", "***", "4711"):
        assert text in page, text
    assert "vllm serve &#x27;/models/a b&#x27; \\\n  --port 18001" in page
    assert f'data-attempt="{attempt.pk}"' in page


def test_an_instance_of_a_silent_host_is_unknown_not_dead(serving: Deployment, fleet: Fleet, viewer: User) -> None:
    fleet.host.last_seen_at = None
    fleet.host.save()
    page = page_of(viewer, "instance_detail", serving.instances.get().pk)
    assert "is silent, so this is not known now" in page
    assert "state-red" not in page


@pytest.mark.django_db(transaction=True)
async def test_a_log_is_downloaded_as_it_is(attempt: Attempt, viewer: User, async_client: Any) -> None:
    attempt.log_path.write_bytes(b"\xff raw \xe2\x82\xac\n" * 1000)
    await async_client.aforce_login(viewer)
    response = await async_client.get(reverse("attempt_log_file", args=[attempt.pk]))
    assert b"".join([part async for part in response.streaming_content]) == attempt.log_path.read_bytes()
    assert response["content-disposition"] == 'attachment; filename="chat-1-attempt-1.log"'
    attempt.log_path.unlink()
    assert (await async_client.get(reverse("attempt_log_file", args=[attempt.pk]))).status_code == 404


def test_a_shown_log_is_not_sent_again(attempt: Attempt, viewer: User) -> None:
    for name, pk in (
        ("instance_log_part", attempt.instance_id),
        ("deployment_log_part", attempt.instance.deployment_id),
    ):
        url = reverse(name, args=[pk])
        assert f'data-attempt="{attempt.pk}"' in signed_in(viewer).get(url, {"shown": ""}).content.decode()
        assert signed_in(viewer).get(url, {"shown": str(attempt.pk)}).status_code == 204
        newer = Attempt.objects.create(instance=attempt.instance, number=2)
        assert f'data-attempt="{newer.pk}"' in signed_in(viewer).get(url, {"shown": str(attempt.pk)}).content.decode()
        newer.delete()


def test_before_the_first_attempt_the_log_part_says_so_once(deployment: Deployment, viewer: User) -> None:
    url = reverse("deployment_log_part", args=[deployment.pk])
    assert "has not been started yet" in signed_in(viewer).get(url).content.decode()
    assert signed_in(viewer).get(url, {"shown": "none"}).status_code == 204


def test_the_list_filters_sorts_and_says_when_nothing_matches(fleet: Fleet, admin: User, viewer: User) -> None:
    for name in ("beta", "alpha", "gamma"):
        fleet.deploy(admin, name=name)
    Deployment.objects.filter(name="gamma").update(state="serving")
    client = signed_in(viewer)

    def names(**query: str) -> list[str]:
        return [one.name for one in client.get("/deployments/", query).context["page"]]

    assert names() == ["alpha", "beta", "gamma"]
    assert names(sort="-name") == ["gamma", "beta", "alpha"]
    assert names(sort="'; drop") == ["alpha", "beta", "gamma"]
    assert names(state="serving") == ["gamma"]
    assert names(q="bet") == ["beta"]
    assert names(host=str(fleet.host.pk), page="99") == ["alpha", "beta", "gamma"]
    assert "No deployment matches" in client.get("/deployments/", {"q": "zzz"}).content.decode()


def test_an_empty_list_offers_the_next_step_to_whoever_may_take_it(admin: User, viewer: User) -> None:
    assert reverse("deployment_add") in page_of(admin, "deployment_list")
    page = page_of(viewer, "deployment_list")
    assert "Nothing is deployed yet" in page
    assert reverse("deployment_add") not in page


def test_pages_need_the_same_few_queries_for_any_number_of_rows(
    fleet: Fleet, admin: User, viewer: User, django_assert_max_num_queries: Any
) -> None:
    for number in range(8):
        fleet.deploy(admin, name=f"chat-{number}")
    client = signed_in(viewer)
    with django_assert_max_num_queries(7):
        client.get("/deployments/")
    deployment = Deployment.objects.first()
    assert deployment
    for number in range(2, 8):
        Instance.objects.create(deployment=deployment, spec=deployment.current_spec, host=fleet.host, number=number)
    for number in range(1, 8):
        Attempt.objects.create(instance=deployment.instances.first(), number=number)
    with django_assert_max_num_queries(20):
        client.get(reverse("deployment_detail", args=[deployment.pk]))
    with django_assert_max_num_queries(8):
        client.get(reverse("instance_detail", args=[deployment.instances.first().pk]))  # type: ignore[union-attr]
