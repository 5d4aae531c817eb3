"""Copying a model from a host that has it: the job, what each host is told, how it ends, and who may ask for it."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.catalog.models import Copy, File, Model, Revision, Source
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.fleet import desired
from console.fleet.models import Host
from console.jobs import copy_checks, copy_jobs, copy_sharing, dispatch
from console.jobs import services as jobs
from console.jobs.kinds import handler_of
from console.jobs.models import Job, Step
from tests.factories import Fleet
from workers.contracts import Failure, StepFinished, StepProgress
from workers.sealing import unseal

SUMS = {"config.json": "1" * 64, "model.safetensors": "2" * 64}
ENDPOINT = "http://10.0.0.7:18003"


@pytest.fixture
def other(db: None) -> Fleet:
    return Fleet.make()


@pytest.fixture
def giver(fleet: Fleet) -> Copy:
    """A verified copy of a published revision."""
    source = Source.objects.create(name="A hub", endpoint="https://hub.example", token=encrypt("hf_secret"))
    model = Model.objects.create(name="Qwen3", source="hub", origin=source, repository="Qwen/Qwen3-0.6B")
    revision = Revision.objects.create(model=model, commit="c" * 40, ref="main")
    File.objects.create(revision=revision, path="model.safetensors", size_bytes=10, sha256=SUMS["model.safetensors"])
    File.objects.create(revision=revision, path="config.json", size_bytes=10, git_oid="b" * 40)
    return _verified(revision, fleet.host, "/hub/q")


def _verified(revision: Revision, host: Host, path: str) -> Copy:
    files = [{"path": name, "size": 10, "mtime_ns": 1, "inode": 2, "sha256": digest} for name, digest in SUMS.items()]
    return Copy.objects.create(
        revision=revision, host=host, path=path, state="verified", manifest={"files": files}, size_bytes=20,
        verified_at=timezone.now(),
    )  # fmt: skip


def share(giver: Copy, other: Fleet, actor: User, key: str = "key") -> Job:
    return copy_sharing.share(giver, hosts=[other.host], actor=actor, idempotency_key=key)[0]


def steps_of(job: Job) -> list[Step]:
    return list(job.steps.select_related("job", "host").order_by("position"))


def finish(step: Step, outcome: str = "succeeded", **more: Any) -> None:
    """The host reports the end of a step."""
    dispatch.send(step.pk)
    step.refresh_from_db()
    jobs.started(step)
    jobs.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome=outcome, **more))
    jobs.advance(step.job_id)


def offered(host: Host) -> list[int]:
    return [offer.number for offer in desired.compose(Host.objects.get(pk=host.pk)).copy_offers]


def opened(job: Job) -> None:
    finish(steps_of(job)[0], result={"endpoint": ENDPOINT, "files": 2, "size_bytes": 20})


def test_one_job_opens_on_one_host_and_fetches_and_verifies_on_the_other(
    giver: Copy, fleet: Fleet, other: Fleet, admin: User
) -> None:
    job = share(giver, other, admin)
    assert [(step.kind, step.host) for step in steps_of(job)] == [
        ("serve_copy", fleet.host), ("download", other.host), ("verify", other.host),
    ]  # fmt: skip
    offer = desired.compose(fleet.host).copy_offers[0]
    assert (offer.number, offer.repository, offer.commit) == (job.pk, "Qwen/Qwen3-0.6B", "c" * 40)
    assert desired.compose(other.host).copy_offers == []
    opened(job)
    fetch = steps_of(job)[1]
    payload = handler_of(job).payload(fetch)
    assert (payload["endpoint"], payload["giver"]) == (ENDPOINT, fleet.host.name)
    assert {file["path"]: file["sha256"] or file["git_oid"] for file in payload["files"]} == {
        "model.safetensors": SUMS["model.safetensors"], "config.json": "b" * 40,
    }  # fmt: skip
    token = handler_of(job).secrets(fetch)["hub_token"]
    assert token == unseal(fleet.private_key, offer.sealed_token)
    assert token not in str(job.payload)
    finish(fetch, result={"model_path": "/hub/there", "size_bytes": 20, "fetched_bytes": 20})
    assert offered(fleet.host) == []
    checks = handler_of(job).payload(steps_of(job)[2])["checksums"]
    assert {check["digest"] for check in checks} == {*SUMS.values(), "b" * 40}
    finish(steps_of(job)[2], result={"model_path": "/hub/there", "size_bytes": 20, "manifest": [], "details": {}})
    job.refresh_from_db()
    assert job.state == "succeeded"
    copy = copy_jobs.copy_of(job)
    assert (copy.state, copy.path, copy.host) == ("verified", "/hub/there", other.host)
    assert AuditEntry.objects.filter(action="copy.share").exists()


def test_the_giving_host_is_told_which_files_and_whether_loopback_will_do(
    giver: Copy, other: Fleet, admin: User
) -> None:
    job = share(giver, other, admin)
    payload = handler_of(job).payload(steps_of(job)[0])
    assert {file["path"] for file in payload["files"]} == set(SUMS)
    assert (payload["offer"], payload["same_machine"]) == (job.pk, False)
    Host.objects.update(facts={"boot_id": "one"})
    assert handler_of(job).payload(steps_of(job)[0])["same_machine"] is True


def test_a_directory_without_a_source_is_copied_under_a_name_of_its_files(
    fleet: Fleet, other: Fleet, admin: User
) -> None:
    model = Model.objects.create(name="Our own model (v2)")
    giver = _verified(Revision.objects.create(model=model, commit="local"), fleet.host, "/srv/own")
    job = share(giver, other, admin)
    opened(job)
    payload = handler_of(job).payload(steps_of(job)[1])
    assert payload["repository"] == f"slipway/Our-own-model-v2-{model.pk}"
    assert len(payload["commit"]) == 40
    assert {file["sha256"] for file in payload["files"]} == set(SUMS.values())


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_the_offer_goes_with_a_job_that_ends_early(
    giver: Copy, fleet: Fleet, other: Fleet, admin: User, ends: str
) -> None:
    job = share(giver, other, admin)
    opened(job)
    fetch = steps_of(job)[1]
    generation = Host.objects.get(pk=fleet.host.pk).generation
    if ends == "cancelled":
        jobs.cancel(job, actor=admin)
        fetch.refresh_from_db()
        jobs.finished(fetch, StepFinished(step=fetch.pk, fence=fetch.fence, outcome="cancelled"))
    else:
        finish(fetch, "failed", failure=Failure(code="copy.unreachable", message="no way"))
    assert offered(fleet.host) == []
    assert Host.objects.get(pk=fleet.host.pk).generation > generation
    assert copy_jobs.copy_of(job).state == "incomplete"


def test_a_retry_opens_the_copy_again_before_it_fetches(giver: Copy, fleet: Fleet, other: Fleet, admin: User) -> None:
    job = share(giver, other, admin)
    opened(job)
    finish(steps_of(job)[1], "failed", failure=Failure(code="copy.unreachable", message="no way"))
    jobs.retry(Job.objects.get(pk=job.pk), actor=admin)
    assert [step.state for step in steps_of(job)] == ["queued", "queued", "queued"]
    assert steps_of(job)[0].sent_at is not None
    assert offered(fleet.host) == [job.pk]
    assert copy_jobs.copy_of(job).state == "downloading"


@pytest.mark.parametrize("code", ["copy.source_changed", "copy.checksum_mismatch"])
def test_a_giving_copy_that_is_not_what_it_was_has_to_be_verified_anew(
    giver: Copy, other: Fleet, admin: User, code: str
) -> None:
    job = share(giver, other, admin)
    finish(steps_of(job)[0], "failed", failure=Failure(code=code, message="touched"))
    giver.refresh_from_db()
    assert giver.state == "unverified"
    with pytest.raises(Refused, match="not verified byte by byte"):
        jobs.retry(Job.objects.get(pk=job.pk), actor=admin)


def test_what_can_not_be_given_is_refused_with_the_reason(giver: Copy, fleet: Fleet, other: Fleet, admin: User) -> None:
    with pytest.raises(Refused, match="has it already"):
        copy_sharing.share(giver, hosts=[fleet.host], actor=admin, idempotency_key="a")
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=None)
    giver.refresh_from_db()
    with pytest.raises(Refused, match="is offline"):
        share(Copy.objects.get(pk=giver.pk), other, admin, "b")
    giver.manifest["files"][0]["sha256"] = None
    giver.save()
    with pytest.raises(Refused, match="Verify it first"):
        share(giver, other, admin, "c")
    assert not Job.objects.exists()


def test_a_copy_that_is_being_given_is_neither_deleted_nor_repaired(giver: Copy, other: Fleet, admin: User) -> None:
    share(giver, other, admin)
    with pytest.raises(Refused, match="reads from it"):
        copy_checks.refuse_busy(giver)


def test_sending_the_form_twice_starts_one_job(giver: Copy, other: Fleet, admin: User) -> None:
    assert share(giver, other, admin) == share(giver, other, admin)


def test_the_page_offers_every_sound_place_and_starts_the_job(
    client: Client, giver: Copy, other: Fleet, admin: User
) -> None:
    client.force_login(admin)
    address = reverse("copy_to", args=[giver.pk])
    page = client.get(address)
    assert page.status_code == 200
    assert [place.value for place in page.context["places"]] == [str(giver.pk), "origin"]
    assert (
        reverse("copy_to", args=[giver.pk])
        in client.get(reverse("model_detail", args=[giver.revision.model_id])).content.decode()
    )
    missing = client.post(address, {"source": str(giver.pk), "idempotency_key": "k"})
    assert missing.status_code == 400
    assert "Choose at least one host." in missing.content.decode()
    sent = client.post(address, {"source": str(giver.pk), "hosts": [other.host.pk], "idempotency_key": "k"})
    job = Job.objects.get(kind="copy")
    assert sent.headers["Location"] == reverse("job_detail", args=[job.pk])
    shown = client.get(sent.headers["Location"]).content.decode()
    assert f"on {giver.host.name}" in shown
    assert f"on {other.host.name}" in shown


def test_once_every_host_has_it_the_page_says_so_and_no_button_leads_there(
    client: Client, giver: Copy, other: Fleet, admin: User
) -> None:
    client.force_login(admin)
    address, model = reverse("copy_to", args=[giver.pk]), reverse("model_detail", args=[giver.revision.model_id])
    assert "Copy and verify" in client.get(address).content.decode()
    _verified(giver.revision, other.host, "/there")
    page = client.get(address).content.decode()
    assert "All 2 hosts have this revision" in page
    assert "Copy and verify" not in page
    assert address not in client.get(model).content.decode()
    assert address not in client.get(reverse("copy_detail", args=[giver.pk])).content.decode()


def test_the_same_page_fetches_from_the_source(client: Client, giver: Copy, other: Fleet, admin: User) -> None:
    client.force_login(admin)
    address = reverse("copy_to", args=[giver.pk])
    client.post(address, {"source": "origin", "hosts": [other.host.pk], "rate_limit_mib": 3, "idempotency_key": "k"})
    job = Job.objects.get(kind="download")
    payload = handler_of(job).payload(steps_of(job)[0])
    assert (payload["endpoint"], payload["rate_limit"]) == ("https://hub.example", 3 << 20)
    assert {file["path"] for file in payload["files"]} == set(SUMS)


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 403), ("admin", 200)])
def test_only_who_may_deploy_copies(
    client: Client, giver: Copy, role: str, status: int, request: pytest.FixtureRequest
) -> None:
    client.force_login(request.getfixturevalue(role))
    address = reverse("copy_to", args=[giver.pk])
    assert client.get(address).status_code == status
    assert client.post(address, {"source": "nowhere"}).status_code == (400 if status == 200 else 403)


def test_progress_of_files_is_kept_and_shown(client: Client, giver: Copy, other: Fleet, admin: User) -> None:
    job = share(giver, other, admin)
    opened(job)
    step = steps_of(job)[1]
    dispatch.send(step.pk)
    step.refresh_from_db()
    jobs.started(step)
    progress = StepProgress.model_validate(
        {
            "step": step.pk, "fence": step.fence, "done": 5, "total": 20, "unit": "bytes", "rate": 5.0,
            "remaining_seconds": 3.0, "files_total": 2, "files_done": 1,
            "files": [
                {"path": "model.safetensors", "done": 4, "total": 10, "state": "active", "rate": 2.0, "remaining_seconds": 3.0},
                {"path": "config.json", "done": 10, "total": 10, "state": "done"},
            ],
        }
    )  # fmt: skip
    jobs.progressed(step, progress)
    client.force_login(admin)
    page = client.get(reverse("job_detail", args=[job.pk])).content.decode()
    assert "model.safetensors" in page
    assert "1 of 2 files are here" in page


def test_a_job_that_failed_by_its_files_offers_the_copy_that_was_verified_last(
    client: Client, giver: Copy, other: Fleet, fleet: Fleet, admin: User, viewer: User
) -> None:
    copy = Copy.objects.create(revision=giver.revision, host=other.host, path="/models/bad", state="verified")
    other.copy = copy
    job = other.deploy(admin)
    verify = job.steps.get(kind="verify")
    Step.objects.filter(job=job, position__lt=verify.position).update(state="succeeded")
    damage = {"code": "checksum.mismatch", "severity": "error", "file": "model.safetensors", "message": "wrong"}
    finish(verify, "failed", failure=Failure(code="checksum.mismatch", message="wrong", evidence=[damage]))
    link = f'{reverse("deployment_change", args=[job.subject_id])}?copy={giver.pk}"'
    pages = [reverse("job_detail", args=[job.pk]), reverse("deployment_detail", args=[job.subject_id])]
    client.force_login(admin)
    for page in pages:
        assert link in client.get(page).content.decode(), page
    client.force_login(viewer)
    for page in pages:
        shown = client.get(page).content.decode()
        assert reverse("copy_detail", args=[giver.pk]) in shown
        assert link not in shown


def test_a_job_that_failed_for_another_reason_offers_no_other_copy(
    client: Client, giver: Copy, other: Fleet, admin: User
) -> None:
    other.copy = Copy.objects.create(revision=giver.revision, host=other.host, path="/models/good", state="verified")
    job = other.deploy(admin)
    finish(job.steps.get(position=1), "failed", failure=Failure(code="port.in_use", message="taken"))
    client.force_login(admin)
    assert "was verified last" not in client.get(reverse("job_detail", args=[job.pk])).content.decode()


def test_a_copy_without_a_source_is_repaired_from_the_host_that_has_it(
    client: Client, giver: Copy, other: Fleet, admin: User
) -> None:
    Source.objects.all().delete()
    giver.revision.refresh_from_db()
    path = f"/hub/models--Qwen--Qwen3-0.6B/snapshots/{giver.revision.commit}"
    copy = _verified(giver.revision, other.host, path)
    found = {
        "code": "checksum.mismatch",
        "severity": "error",
        "file": "config.json",
        "message": "wrong",
        "fix": "Fetch.",
    }
    copy_checks.store_damage(copy, {"code": "checksum.mismatch", "message": "wrong", "evidence": [found]})
    client.force_login(admin)
    assert reverse("copy_repair", args=[copy.pk]) in client.get(reverse("copy_detail", args=[copy.pk])).content.decode()
    assert giver.host.name in client.get(reverse("copy_repair", args=[copy.pk])).content.decode()
    answer = client.post(reverse("copy_repair", args=[copy.pk]), {"reason": "it is damaged"})
    assert answer.status_code == 302
    job = Job.objects.get()
    assert next((step.kind, step.host) for step in steps_of(job)) == ("serve_copy", giver.host)
    opened(job)
    assert handler_of(job).payload(steps_of(job)[1])["repair"] == ["config.json"]


def test_a_directory_of_a_persons_own_is_not_repaired_by_copying(giver: Copy, other: Fleet, admin: User) -> None:
    Source.objects.all().delete()
    copy = _verified(giver.revision, other.host, "/models/own")
    copy_checks.store_damage(copy, {"code": "checksum.mismatch", "message": "wrong", "evidence": []})
    with pytest.raises(Refused, match="by hand"):
        copy_sharing.repair(Copy.objects.get(pk=copy.pk), actor=admin)
