"""Deploying a model whose files the host hasn't yet: what is offered, what the job does, and how it ends."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import Team, User
from console.catalog.copy_presentation import shown_copies
from console.catalog.models import Copy, File, Model, Revision, Source
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.deployments import changes, services
from console.deployments.forms import DeployForm
from console.deployments.models import Deployment
from console.fleet import desired
from console.fleet.models import Host
from console.jobs import copy_fetching, copy_jobs, dispatch
from console.jobs import services as jobs
from console.jobs.kinds import handler_of
from console.jobs.models import Job, Step
from tests.factories import Fleet
from workers.contracts import Failure, StepFinished

SUMS = {"config.json": "1" * 64, "model.safetensors": "2" * 64}
FAILURE = Failure(code="hub.unreachable", message="nothing answers", next="Look at the network.")


@pytest.fixture
def revision(db: None) -> Revision:
    """A published revision that the console knows, and no host has."""
    source = Source.objects.create(name="A hub", endpoint="https://hub.example", token=encrypt("hf_secret"))
    model = Model.objects.create(name="Qwen3", source="hub", origin=source, repository="Qwen/Qwen3-0.6B")
    revision = Revision.objects.create(model=model, commit="c" * 40, ref="main", size_bytes=20)
    for name, digest in {**SUMS, "original/consolidated.pth": "3" * 64}.items():
        File.objects.create(revision=revision, path=name, size_bytes=10, sha256=digest)
    return revision


@pytest.fixture
def giver(revision: Revision) -> Copy:
    """The same on another host."""
    return verified(revision, Fleet.make().host)


def verified(revision: Revision, host: Host) -> Copy:
    files = [{"path": name, "size": 10, "mtime_ns": 1, "inode": 2, "sha256": digest} for name, digest in SUMS.items()]
    return Copy.objects.create(
        revision=revision, host=host, path="/hub/q", state="verified", manifest={"files": files}, size_bytes=20,
        verified_at=timezone.now(),
    )  # fmt: skip


def absent(user: User, revision: Revision, host: Host) -> Copy:
    found = copy_fetching.find(user, f"{revision.pk}@{host.pk}")
    assert found
    return found.copy


def kinds(job: Job) -> list[str]:
    return [step.kind for step in job.steps.order_by("position")]


def current(job: Job) -> Step:
    step = job.steps.select_related("job", "host").exclude(state="succeeded").order_by("position").first()
    assert step
    return step


def finish(job: Job, outcome: str = "succeeded", **more: Any) -> Step:
    """The host reports the end of the job's current step."""
    step = current(job)
    dispatch.send(step.pk)
    step.refresh_from_db()
    jobs.started(step)
    jobs.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome=outcome, **more))
    jobs.advance(step.job_id)
    return step


def fetched(job: Job) -> None:
    finish(job, result={"model_path": "/hub/models/q", "size_bytes": 20, "fetched_bytes": 20})


def checked(job: Job) -> None:
    found = [{"path": name, "size": 10, "mtime_ns": 1, "inode": 2, "sha256": digest} for name, digest in SUMS.items()]
    finish(job, result={"model_path": "/hub/models/q", "size_bytes": 20, "manifest": found, "findings": []})


def test_files_that_are_nowhere_are_downloaded_and_verified_by_the_deploy_itself(
    fleet: Fleet, operator: User, revision: Revision
) -> None:
    job = fleet.deploy(operator, copy=absent(operator, revision, fleet.host))
    assert kinds(job) == ["preflight", "download", "verify", "launch", "listening", "validate", "warmup"]
    assert handler_of(job).payload(current(job))["model_path"] == ""
    finish(job, result={"port": 18000})
    copy = Copy.objects.get(revision=revision, host=fleet.host)
    assert copy.state == "downloading"
    running = shown_copies([copy])[0].job
    assert running
    assert running.pk == job.pk  # the copy's page leads to the deploy
    payload = handler_of(job).payload(current(job))
    assert sorted(file["path"] for file in payload["files"]) == sorted(SUMS)  # none of the other formats
    assert handler_of(job).secrets(current(job)) == {"hub_token": "hf_secret"}
    fetched(job)
    verify = handler_of(job).payload(current(job))
    assert (verify["model_path"], verify["trust_unchanged"], len(verify["checksums"])) == ("/hub/models/q", False, 2)
    checked(job)
    copy.refresh_from_db()
    assert (copy.state, current(job).kind) == ("verified", "launch")
    order = desired.compose(Host.objects.get(pk=fleet.host.pk)).instances[0]
    assert order.model_path == "/hub/models/q"


def test_files_that_another_host_has_are_copied_from_there(
    fleet: Fleet, operator: User, revision: Revision, giver: Copy
) -> None:
    job = fleet.deploy(operator, copy=absent(operator, revision, fleet.host))
    assert [(step.kind, step.host) for step in job.steps.order_by("position")][:4] == [
        ("preflight", fleet.host), ("serve_copy", giver.host), ("download", fleet.host), ("verify", fleet.host),
    ]  # fmt: skip
    finish(job, result={"port": 18000})
    giving = Host.objects.get(pk=giver.host_id)
    assert [offer.number for offer in desired.compose(giving).copy_offers] == [job.pk]
    finish(job, result={"endpoint": "http://10.0.0.7:18003", "files": 2, "size_bytes": 20})
    payload = handler_of(job).payload(current(job))
    assert (payload["endpoint"], payload["giver"]) == ("http://10.0.0.7:18003", giver.host.name)
    with pytest.raises(Refused, match="reads from it"):
        copy_jobs.delete(giver, actor=operator, reason="space")
    fetched(job)
    assert desired.compose(giving).copy_offers == []
    sources = {one["source"] for one in handler_of(job).payload(current(job))["checksums"]}
    assert f"the copy on {giver.host}" in sources


def test_a_download_that_fails_fails_the_deploy_keeps_its_parts_and_is_gone_on_with(
    fleet: Fleet, operator: User, revision: Revision
) -> None:
    job = fleet.deploy(operator, copy=absent(operator, revision, fleet.host))
    finish(job, result={"port": 18000})
    step = finish(job, "failed", failure=FAILURE)
    copy = Copy.objects.get(revision=revision, host=fleet.host)
    deployment = Deployment.objects.get(pk=job.about)
    assert (copy.state, deployment.state, deployment.state_reason) == ("incomplete", "failed", "nothing answers")
    jobs.retry(Job.objects.get(pk=job.pk), actor=operator)
    copy.refresh_from_db()
    assert (copy.state, current(job).pk) == ("downloading", step.pk)
    fetched(job)
    checked(job)
    assert current(job).kind == "launch"


def test_a_failed_preflight_and_a_cancelled_job_leave_no_copy_that_seems_to_be_on_its_way(
    fleet: Fleet, operator: User, revision: Revision, giver: Copy
) -> None:
    job = fleet.deploy(operator, copy=absent(operator, revision, fleet.host))
    finish(job, "failed", failure=Failure(code="port.none_free", message="no port", next="Free one."))
    copy = Copy.objects.get(revision=revision, host=fleet.host)
    assert copy.state == "incomplete"
    jobs.retry(Job.objects.get(pk=job.pk), actor=operator)
    copy.refresh_from_db()
    assert copy.state == "downloading"
    with pytest.raises(Refused, match="still runs"):
        copy_jobs.fetch_to(
            revision, list(SUMS), hosts=[fleet.host], actor=operator, idempotency_key="other", rate_limit=0
        )
    jobs.cancel(Job.objects.get(pk=job.pk), actor=operator, reason="not now")
    finish(job, "cancelled")
    copy.refresh_from_db()
    assert copy.state == "incomplete"
    assert desired.compose(Host.objects.get(pk=giver.host_id)).copy_offers == []


def test_a_stopped_deployment_whose_files_were_deleted_fetches_them_when_it_starts_again(
    fleet: Fleet, operator: User, revision: Revision
) -> None:
    job = fleet.deploy(operator, copy=absent(operator, revision, fleet.host))
    finish(job, "failed", failure=FAILURE)
    Copy.objects.filter(revision=revision).update(state="removed")
    again = services.start(Deployment.objects.get(pk=job.about), actor=operator, reason="again")
    assert kinds(again)[:3] == ["preflight", "download", "verify"]


def test_a_change_to_a_revision_that_is_not_there_fetches_it_while_the_old_one_serves(
    fleet: Fleet, operator: User, revision: Revision
) -> None:
    first = fleet.deploy(operator)
    for result in ({"port": 18000}, {"size_bytes": 10}, {}, {}, {}, {}):
        finish(first, result=result)
    deployment = Deployment.objects.get(pk=first.about)
    wish = changes.Wish.of_spec(deployment.current_spec)
    wish = changes.replace(wish, copy=absent(operator, revision, fleet.host))
    assert changes.effect(deployment, wish).restarts
    assert not Copy.objects.filter(revision=revision).exists()  # only looked at
    job = changes.change(deployment, wish, reason="newer", actor=operator)
    assert job
    assert kinds(job)[:2] == ["download", "verify"]
    finish(job, "failed", failure=FAILURE)
    deployment.refresh_from_db()
    assert (deployment.state, deployment.current_spec.copy) == ("serving", fleet.copy)
    assert Copy.objects.get(revision=revision).state == "incomplete"


def test_what_nobody_has_and_nobody_can_fetch_is_not_offered(fleet: Fleet, operator: User, revision: Revision) -> None:
    other = Fleet.make()
    hosts = Host.objects.all()
    pairs = {one.value for one in copy_fetching.offered(operator, hosts)}
    assert pairs == {f"{revision.pk}@{fleet.host.pk}", f"{revision.pk}@{other.host.pk}"}
    verified(revision, fleet.host)
    assert {one.value for one in copy_fetching.offered(operator, hosts)} == {f"{revision.pk}@{other.host.pk}"}
    Source.objects.all().delete()
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=None)
    assert copy_fetching.offered(operator, hosts) == []  # its source is forgotten, and who has it is silent
    assert copy_fetching.find(operator, f"{revision.pk}@{other.host.pk}") is None


def test_another_team_neither_sees_nor_fetches_it(fleet: Fleet, operator: User, revision: Revision) -> None:
    Model.objects.filter(pk=revision.model_id).update(team=Team.objects.create(name="Others"))
    assert copy_fetching.offered(operator, Host.objects.all()) == []
    assert copy_fetching.find(operator, f"{revision.pk}@{fleet.host.pk}") is None


@pytest.mark.parametrize("value", ["@", "1@", "x@y", "9@9", "1@1@1", "²@1"])
def test_a_pair_that_is_not_offered_is_a_wrong_choice(fleet: Fleet, operator: User, value: str) -> None:
    form = DeployForm({"copy": value, "engine": str(fleet.engine.pk), "name": "chat"}, user=operator)
    assert not form.is_valid()
    assert "copy" in form.errors


def test_the_form_offers_it_and_deploys_it(fleet: Fleet, admin: User, operator: User, revision: Revision) -> None:
    client, value = Client(), f"{revision.pk}@{fleet.host.pk}"
    client.force_login(admin)
    page = client.get(reverse("deployment_add"), {"copy": value}).content.decode()
    assert f'<option value="{value}" selected data-host="{fleet.host.pk}">' in page
    assert "Qwen3 · " in page
    sent = {"copy": value, "engine": fleet.engine.pk, "name": "fresh", "idempotency_key": "6" * 32, "reason": "try it"}
    preview = client.post(reverse("deployment_preview"), sent).content.decode()
    assert "vllm serve MODEL" in preview
    answer = client.post(reverse("deployment_add"), sent)
    assert answer.status_code == 302, answer.content.decode()[:3000]
    assert "download" in kinds(Job.objects.get(kind="deploy"))
    client.force_login(operator)
    assert client.post(reverse("deployment_add"), sent).status_code == 403


def test_a_link_to_a_revision_on_a_host_chooses_the_files_once_they_are_there(
    fleet: Fleet, admin: User, operator: User, revision: Revision
) -> None:
    client, value = Client(), f"{revision.pk}@{fleet.host.pk}"
    arrived = verified(revision, fleet.host)
    client.force_login(admin)
    page = client.get(reverse("deployment_add"), {"copy": value}).content.decode()
    assert f'<option value="{arrived.pk}" selected data-host="{fleet.host.pk}">' in page
    sent = {"copy": value, "engine": fleet.engine.pk, "name": "fresh", "idempotency_key": "7" * 32}
    answer = client.post(reverse("deployment_add"), sent)
    assert answer.status_code == 302, answer.content.decode()[:3000]
    assert Deployment.objects.get(name="fresh").current_spec.copy == arrived
    assert "download" not in kinds(Job.objects.get(kind="deploy"))


def test_a_link_never_chooses_files_of_another_team(fleet: Fleet, operator: User, revision: Revision) -> None:
    verified(revision, fleet.host)
    Model.objects.filter(pk=revision.model_id).update(team=Team.objects.create(name="Others"))
    form = DeployForm({"copy": f"{revision.pk}@{fleet.host.pk}"}, user=operator)
    assert form.chosen_copy is None
    assert "copy" in form.errors
