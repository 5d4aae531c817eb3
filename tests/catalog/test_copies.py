"""Copies: their pages, what may be done to them, and what their jobs make of them."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, Team, User
from console.catalog import consents
from console.catalog.copy_presentation import shown_copies
from console.catalog.models import Consent, Copy, File, Model, Revision, Source
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.deployments import services as deployments
from console.deployments.forms import DeployForm
from console.deployments.models import Deployment
from console.fleet.models import Host
from console.jobs import copy_fetching, copy_jobs, dispatch, host_jobs
from console.jobs import services as jobs
from console.jobs.copy_checks import bad_files, store_damage, store_verification, verify_payload
from console.jobs.kinds import handler_of
from console.jobs.models import Job
from tests.factories import Fleet
from workers.contracts import Failure, StepFinished

SUM = "a" * 64


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def manifest(*names: str) -> list[dict[str, Any]]:
    return [{"path": name, "size": 10, "mtime_ns": 1, "inode": 2, "sha256": SUM} for name in names]


def result(*names: str, **more: Any) -> dict[str, Any]:
    """What a verify step reports of sound files."""
    return {
        "model_path": "/models/x", "files": len(names), "size_bytes": 10 * len(names), "seconds": 1.5, "findings": [],
        "details": {"hashed": True}, "manifest": manifest(*names), "checked_against": {"A hub": 2}, "unchanged": False,
    } | more  # fmt: skip


def finding(code: str, severity: str = "error", file: str = "model.safetensors") -> dict[str, Any]:
    return {"code": code, "severity": severity, "file": file, "message": f"about {file}", "fix": "Do this."}


def failure(code: str, *findings: dict[str, Any]) -> dict[str, Any]:
    return {"code": code, "message": "it is broken", "next": "Repair it.", "evidence": list(findings)}


def finish(step: Any, outcome: str = "succeeded", **more: Any) -> None:
    """The host reports the end of a step."""
    dispatch.send(step.pk)
    step.refresh_from_db()
    jobs.started(step)
    jobs.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome=outcome, **more))
    jobs.advance(step.job_id)


@pytest.fixture
def source(db: None) -> Source:
    return Source.objects.create(name="A hub", endpoint="https://hub.example", token=encrypt("hf_secret"))


@pytest.fixture
def fetched(fleet: Fleet, source: Source) -> Copy:
    """A copy that came from a source."""
    model = Model.objects.create(name="Qwen3", source="hub", origin=source, repository="Qwen/Qwen3-0.6B")
    revision = Revision.objects.create(model=model, commit="c" * 40, ref="main")
    File.objects.create(revision=revision, path="model.safetensors", size_bytes=10, sha256=SUM)
    File.objects.create(revision=revision, path="config.json", size_bytes=10, git_oid="b" * 40)
    return Copy.objects.create(
        revision=revision,
        host=fleet.host,
        path="/hub/q",
        state="verified",
        selection=["config.json", "model.safetensors"],
    )


class TestPages:
    def test_everybody_may_look(self, admin: User, operator: User, viewer: User, fetched: Copy) -> None:
        store_verification(fetched, result("config.json", "model.safetensors"))
        for user in (admin, operator, viewer):
            page = signed_in(user).get(reverse("copy_detail", args=[fetched.pk])).content.decode()
            assert "Every byte of 2 files was read (20 B), in 1.5 s." in page
            assert "A hub" in page
            assert signed_in(user).get(reverse("host_copies", args=[fetched.host_id])).status_code == 200

    def test_what_a_role_may_not_do_it_doesnt_see(
        self, admin: User, operator: User, viewer: User, fetched: Copy
    ) -> None:
        Copy.objects.filter(pk=fetched.pk).update(state="damaged")
        page = reverse("copy_detail", args=[fetched.pk])
        seen = {
            user.username: {
                name
                for name in ("copy_verify", "copy_repair", "copy_delete", "copy_forget")
                if reverse(name, args=[fetched.pk]) in signed_in(user).get(page).content.decode()
            }
            for user in (admin, operator, viewer)
        }
        assert seen["vera"] == set()
        assert seen["otto"] == {"copy_verify", "copy_repair"}
        assert seen["ada"] == {"copy_verify", "copy_repair", "copy_delete", "copy_forget"}

    @pytest.mark.parametrize(
        ("name", "refused"),
        [("copy_repair", ["vera"]), ("copy_delete", ["vera", "otto"]), ("copy_forget", ["vera", "otto"])],
    )
    def test_what_a_role_may_not_do_it_cant_call(
        self, operator: User, viewer: User, fetched: Copy, name: str, refused: list[str]
    ) -> None:
        page = reverse(name, args=[fetched.pk])
        for user in (operator, viewer):
            assert (signed_in(user).post(page, {"reason": ""}).status_code == 403) == (user.username in refused)

    def test_copies_of_another_team_are_invisible(self, admin: User, fleet: Fleet) -> None:
        team = Team.objects.create(name="others")
        revision = Revision.objects.create(model=Model.objects.create(name="Secret", team=team), commit="x")
        copy = Copy.objects.create(revision=revision, host=fleet.host, path="/s")
        client = signed_in(admin)
        assert client.get(reverse("copy_detail", args=[copy.pk])).status_code == 404
        for name in ("copy_repair", "copy_delete", "copy_forget"):
            assert client.get(reverse(name, args=[copy.pk])).status_code == 404
        assert client.get(reverse("copy_allow", args=[copy.pk, "pickle"])).status_code == 404

    def test_findings_stand_by_severity_with_file_and_fix(self, viewer: User, fetched: Copy) -> None:
        store_damage(fetched, failure("weights.truncated", finding("weights.truncated"), finding("checksum.mismatch")))
        answer = signed_in(viewer).get(reverse("copy_detail", args=[fetched.pk]))
        assert answer.context["shown"].counts == {"error": 2}
        page = answer.content.decode()
        for text in ("Damaged: it is broken", "about model.safetensors", "Do this.", "weights.truncated"):
            assert text in page

    def test_sources_that_disagree_hold_the_copy_and_offer_the_last_verified_one(
        self, admin: User, fetched: Copy
    ) -> None:
        before = Revision.objects.create(model=fetched.revision.model, commit="d" * 40)
        sound = Copy.objects.create(revision=before, host=fetched.host, path="/hub/before")
        store_verification(sound, result("config.json"))
        store_damage(fetched, failure("checksum.sources_disagree", finding("checksum.sources_disagree")))
        page = signed_in(admin).get(reverse("copy_detail", args=[fetched.pk])).content.decode()
        assert "Held: its sources contradict each other" in page
        assert f"{reverse('deployment_add')}?copy={sound.pk}" in page

    def test_a_hosts_copies_cost_the_same_however_many(
        self, viewer: User, fleet: Fleet, django_assert_max_num_queries: Any
    ) -> None:
        for number in range(30):
            revision = Revision.objects.create(model=Model.objects.create(name=f"M{number}"), commit="x")
            Copy.objects.create(revision=revision, host=fleet.host, path=f"/m/{number}", size_bytes=number << 30)
        client = signed_in(viewer)
        with django_assert_max_num_queries(10):
            answer = client.get(reverse("host_copies", args=[fleet.host.pk]))
        assert len(answer.context["copies"]) == 31
        bars = answer.context["figure"]["data"][0]
        assert bars["y"][0] == "M29"
        assert bars["x"][0] == 29

    def test_the_disk_is_whole_in_the_chart(self, viewer: User, fetched: Copy) -> None:
        Copy.objects.filter(pk=fetched.pk).update(size_bytes=5 << 30)
        fetched.host.vitals = {"disk_total": 100 << 30, "disk_free": 60 << 30}
        fetched.host.save()
        figure = signed_in(viewer).get(reverse("host_copies", args=[fetched.host_id])).context["figure"]
        assert dict(zip(figure["data"][0]["y"], figure["data"][0]["x"], strict=True)) == {
            "Qwen3": 5, "other files": 35, "free": 60,
        }  # fmt: skip

    def test_models_may_lie_on_a_disk_of_their_own(self, viewer: User, fetched: Copy) -> None:
        Copy.objects.filter(pk=fetched.pk).update(size_bytes=5 << 30)
        models = {"models_disk_total": 80 << 30, "models_disk_free": 70 << 30}
        fetched.host.vitals = {"disk_total": 10 << 30, "disk_free": 1 << 30, **models}
        fetched.host.save()
        figure = signed_in(viewer).get(reverse("host_copies", args=[fetched.host_id])).context["figure"]
        assert dict(zip(figure["data"][0]["y"], figure["data"][0]["x"], strict=True)) == {
            "Qwen3": 5, "other files": 5, "free": 70,
        }  # fmt: skip


class TestUse:
    def test_a_copy_in_use_is_not_deleted_and_the_user_is_named(self, admin: User, fleet: Fleet) -> None:
        fleet.deploy(actor=admin, name="chat-live")
        for act in (copy_jobs.delete, copy_jobs.forget):
            with pytest.raises(Refused, match="chat-live"):
                act(fleet.copy, actor=admin, reason="x")  # type: ignore[operator]
        page = signed_in(admin).get(reverse("copy_detail", args=[fleet.copy.pk])).content.decode()
        assert "serves from it" in page
        assert reverse("copy_delete", args=[fleet.copy.pk]) not in page

    def test_a_stopped_user_is_named_but_holds_nothing(self, admin: User, fleet: Fleet) -> None:
        fleet.deploy(actor=admin, name="chat-idle")
        Deployment.objects.update(state="stopped")
        page = signed_in(admin).get(reverse("copy_delete", args=[fleet.copy.pk])).content.decode()
        assert "chat-idle could not start again without it." in page
        job = copy_jobs.delete(fleet.copy, actor=admin, reason="room")
        fleet.copy.refresh_from_db()
        assert fleet.copy.state == "deleting"
        finish(job.steps.get(), result={"freed_bytes": 10})
        fleet.copy.refresh_from_db()
        assert fleet.copy.state == "removed"
        assert Copy.objects.filter(pk=fleet.copy.pk).exists()

    def test_a_deletion_that_fails_says_so_and_can_be_tried_again(self, admin: User, fleet: Fleet) -> None:
        job = copy_jobs.delete(fleet.copy, actor=admin, reason="room")
        finish(job.steps.get(), "failed", failure=Failure(code="delete.failed", message="read-only disk"))
        fleet.copy.refresh_from_db()
        assert (fleet.copy.state, fleet.copy.state_reason) == ("incomplete", "read-only disk")
        jobs.retry(job, actor=admin)
        fleet.copy.refresh_from_db()
        assert fleet.copy.state == "deleting"

    def test_a_host_that_refuses_leaves_the_copy_as_it_was(self, admin: User, fleet: Fleet) -> None:
        job = copy_jobs.delete(fleet.copy, actor=admin, reason="room")
        refusal = Failure(code="path.outside", message="nothing was removed: not ours")
        finish(job.steps.get(), "failed", failure=refusal)
        fleet.copy.refresh_from_db()
        assert fleet.copy.state == "verified"

    def test_of_a_download_that_stopped_the_parts_are_removed(self, admin: User, fetched: Copy) -> None:
        Copy.objects.filter(pk=fetched.pk).update(state="incomplete", path="hub/Qwen/Qwen3-0.6B/c")
        fetched.refresh_from_db()
        (step,) = copy_jobs.delete(fetched, actor=admin, reason="room").steps.all()
        assert step.payload["parts_only"]
        assert step.payload["repository"] == "Qwen/Qwen3-0.6B"
        finish(step, result={"freed_bytes": 10})
        fetched.refresh_from_db()
        assert fetched.state == "removed"

    def test_of_a_download_that_stopped_the_page_offers_to_resume_or_to_discard(
        self, admin: User, fetched: Copy
    ) -> None:
        changes = {"state": "incomplete", "state_reason": "the line is needed", "path": "hub/Qwen/Qwen3-0.6B/c"}
        Copy.objects.filter(pk=fetched.pk).update(**changes)
        client = signed_in(admin)
        page = client.get(reverse("copy_detail", args=[fetched.pk])).content.decode()
        assert "Not complete: the line is needed. What has come is kept" in page
        for text in ("Resume", "Discard parts", "parts of a download"):
            assert text in page, text
        for text in ("Repair", "Delete files", "hub/Qwen/Qwen3-0.6B/c", reverse("copy_verify", args=[fetched.pk])):
            assert text not in page, text
        asked = client.get(reverse("copy_repair", args=[fetched.pk])).content.decode()
        assert "what has not come yet" in asked
        asked = client.get(reverse("copy_delete", args=[fetched.pk])).content.decode()
        assert "Another download begins from nothing." in asked

    def test_two_jobs_dont_work_on_one_copy(self, admin: User, fleet: Fleet) -> None:
        host_jobs.verify_copy(fleet.copy, actor=admin)
        with pytest.raises(Refused, match="still runs"):
            copy_jobs.delete(fleet.copy, actor=admin, reason="x")

    def test_a_forgotten_directory_can_be_added_again(self, admin: User, fleet: Fleet) -> None:
        copy_jobs.forget(fleet.copy, actor=admin, reason="moved")
        copy, job = host_jobs.add_directory(name="again", host=fleet.host, path=fleet.copy.path, actor=admin)
        assert copy == fleet.copy
        assert job.kind == "verify"

    def test_what_is_gone_or_on_its_way_is_not_deployed(self, fleet: Fleet) -> None:
        for state in ("downloading", "incomplete", "deleting", "removed"):
            Copy.objects.filter(pk=fleet.copy.pk).update(state=state)
            fleet.copy.refresh_from_db()
            with pytest.raises(Refused, match="Choose another copy"):
                fleet.deploy()


class TestDownloads:
    def fetch(self, copy: Copy, actor: User) -> Job:
        store_damage(copy, failure("weights.truncated", finding("weights.truncated")))
        return copy_jobs.repair(copy, actor=actor)

    def test_a_repair_fetches_only_the_bad_files_then_verifies(self, operator: User, fetched: Copy) -> None:
        job = self.fetch(fetched, operator)
        download, verify = job.steps.all()
        assert download.payload["repair"] == ["model.safetensors"]
        assert len(download.payload["files"]) == 2
        assert handler_of(job).secrets(download) == {"hub_token": "hf_secret"}
        assert handler_of(job).secrets(verify) == {}
        assert "hf_secret" not in str(list(Job.objects.values())) + str(download.payload)
        finish(download, result={"model_path": "/hub/real", "size_bytes": 20, "fetched_bytes": 10})
        fetched.refresh_from_db()
        assert (fetched.state, fetched.path) == ("unverified", "/hub/real")
        finish(verify, result=result("config.json", "model.safetensors"))
        fetched.refresh_from_db()
        assert fetched.state == "verified"
        assert fetched.manifest["files"] == manifest("config.json", "model.safetensors")
        verify.refresh_from_db()
        assert verify.result["files"] == 2
        assert "manifest" not in verify.result  # it stands with the copy, not twice

    @pytest.mark.parametrize("outcome", ["failed", "cancelled"])
    def test_a_download_that_stops_leaves_an_incomplete_copy(self, operator: User, fetched: Copy, outcome: str) -> None:
        job = self.fetch(fetched, operator)
        step = job.steps.first()
        assert step
        if outcome == "failed":
            finish(step, "failed", failure=Failure(code="hub.unreachable", message="no network"))
            fetched.refresh_from_db()
            assert fetched.state == "incomplete"
            jobs.retry(job, actor=operator)
            fetched.refresh_from_db()
            assert fetched.state == "downloading"
        else:
            jobs.cancel(job, actor=operator, reason="not now")
            step.refresh_from_db()
            if step.state == "cancelling":
                jobs.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome="cancelled"))
                jobs.advance(job.pk)
            fetched.refresh_from_db()
            assert fetched.state == "incomplete"

    def test_a_source_that_has_wrong_files_is_not_asked_for_them_again(self, operator: User, fetched: Copy) -> None:
        sound = Copy.objects.create(revision=fetched.revision, host=fetched.host, path="/hub/other", state="verified")
        Copy.objects.filter(pk=sound.pk).update(verified_at=timezone.now())
        job = self.fetch(fetched, operator)
        assert shown_copies([Copy.objects.get(pk=fetched.pk)])[0].as_published is False
        download = job.steps.first()
        assert download
        wrong = Failure(code="hub.checksum_mismatch", message="the source sends other bytes")
        finish(download, "failed", failure=wrong)
        fetched.refresh_from_db()
        shown = shown_copies([fetched])[0]
        assert (fetched.state, shown.as_published, shown.repair_first) == ("incomplete", True, False)
        assert shown.job is None  # the verification that was never reached is still queued, for a retry
        assert (
            "Running now"
            not in signed_in(operator).get(reverse("host_detail", args=[fetched.host_id])).content.decode()
        )
        assert bad_files(fetched) == ["model.safetensors"]
        search = f"{reverse('model_add')}?source="
        repair = reverse("copy_repair", args=[fetched.pk])
        for name, pk in (("copy_detail", fetched.pk), ("job_detail", job.pk)):
            page = signed_in(operator).get(reverse(name, args=[pk])).content.decode()
            assert "can serve meanwhile" in page
            assert f'btn-primary" href="{repair}"' not in page
            assert search not in page  # operators add no models
        Copy.objects.filter(pk=sound.pk).delete()

    def test_files_that_are_wrong_as_they_were_published_lead_elsewhere(self, admin: User, fetched: Copy) -> None:
        job = self.fetch(fetched, admin)
        download, verify = job.steps.all()
        finish(download, result={"model_path": "/hub/q", "size_bytes": 20, "fetched_bytes": 10})
        bad = failure("weights.truncated", finding("weights.truncated"))
        finish(verify, "failed", failure=Failure.model_validate(bad))
        fetched.refresh_from_db()
        assert shown_copies([fetched])[0].as_published
        query = f"source={fetched.revision.model.origin_id}&amp;q=Qwen%2FQwen3-0.6B"
        search = f'btn-primary" href="{reverse("model_add")}?{query}"'
        for name, pk in (("copy_detail", fetched.pk), ("job_detail", job.pk)):
            page = signed_in(admin).get(reverse(name, args=[pk])).content.decode()
            assert search in page
        assert "fetching them again from there changes nothing" in (
            signed_in(admin).get(reverse("copy_detail", args=[fetched.pk])).content.decode()
        )

    def test_a_checksum_is_fetched_again_until_it_comes_as_wrong_as_before(self, admin: User, fetched: Copy) -> None:
        bad = failure("checksum.mismatch", finding("checksum.mismatch"))
        store_damage(fetched, bad, fetched=True)
        assert shown_copies([fetched])[0].repair_first
        store_damage(fetched, bad, fetched=True)
        assert not shown_copies([fetched])[0].repair_first
        store_damage(fetched, bad)  # read again, without a repair before it
        assert shown_copies([fetched])[0].as_published

    def test_a_token_never_goes_to_an_address_that_the_source_has_no_more(
        self, operator: User, source: Source, fetched: Copy
    ) -> None:
        job = self.fetch(fetched, operator)
        Source.objects.filter(pk=source.pk).update(endpoint="https://new.example", token=encrypt("hf_new"))
        step = job.steps.first()
        assert step
        assert handler_of(job).secrets(step) == {"hub_token": "hf_new"}
        assert handler_of(job).payload(step)["endpoint"] == "https://new.example"

    def test_a_directory_has_nowhere_to_be_repaired_from(self, operator: User, fleet: Fleet) -> None:
        Copy.objects.filter(pk=fleet.copy.pk).update(state="damaged")
        fleet.copy.refresh_from_db()
        with pytest.raises(Refused, match="Nobody knows where"):
            copy_jobs.repair(fleet.copy, actor=operator)

    def test_bad_files_are_those_that_the_source_knows(self, fetched: Copy) -> None:
        store_damage(fetched, failure("x.y", finding("x.y"), finding("x.y", file="model.safetensors/layer"),
                                      finding("x.y", "warning", file="config.json")))  # fmt: skip
        assert bad_files(fetched) == ["model.safetensors"]


class TestVerification:
    def test_a_launch_trusts_untouched_files_of_a_verified_copy_only(self, fetched: Copy) -> None:
        store_verification(fetched, result("config.json", "model.safetensors"))
        payload = verify_payload(fetched, launch=True)
        assert payload["trust_unchanged"]
        assert payload["mode"] == "full"
        assert payload["pinned"]
        assert [file["path"] for file in payload["manifest"]] == ["config.json", "model.safetensors"]
        store_damage(fetched, failure("weights.truncated", finding("weights.truncated")))
        assert not verify_payload(fetched, launch=True)["trust_unchanged"]

    def test_a_verification_compares_with_what_the_source_published(self, fetched: Copy) -> None:
        found = {item["path"]: item for item in verify_payload(fetched, launch=False)["checksums"]}
        assert found["model.safetensors"] == {
            "path": "model.safetensors", "algorithm": "sha256", "digest": SUM, "source": "A hub"
        }  # fmt: skip
        assert found["config.json"]["algorithm"] == "git"

    def test_files_left_out_of_the_download_are_not_missed(self, fetched: Copy) -> None:
        fetched.selection = ["config.json"]
        assert [item["path"] for item in verify_payload(fetched, launch=False)["checksums"]] == ["config.json"]

    def test_untouched_files_keep_their_verification(self, fetched: Copy) -> None:
        store_verification(fetched, result("config.json"))
        verified = fetched.verified_at
        store_verification(fetched, {"unchanged": True, "files": 1})
        fetched.refresh_from_db()
        assert fetched.verified_at == verified
        assert fetched.checked_at
        assert verified
        assert fetched.checked_at > verified
        assert fetched.manifest["files"] == manifest("config.json")

    def test_a_host_that_could_not_look_says_nothing_about_the_files(self, fetched: Copy) -> None:
        store_damage(fetched, failure("step.lost"))
        fetched.refresh_from_db()
        assert fetched.state == "verified"

    def test_a_directorys_files_become_the_revisions_files(self, fleet: Fleet) -> None:
        store_verification(fleet.copy, result("config.json", "a.safetensors"))
        assert list(fleet.copy.revision.files.values_list("path", flat=True)) == ["a.safetensors", "config.json"]


def test_an_adapter_is_not_offered_for_a_launch_and_refused(admin: User, fleet: Fleet) -> None:
    details = {"hashed": True, "kind": "adapter"}
    store_verification(fleet.copy, result("adapter_config.json", "adapter_model.safetensors", details=details))
    page = signed_in(admin).get(reverse("copy_detail", args=[fleet.copy.pk])).content.decode()
    assert "It is a LoRA adapter" in page
    offer = f"{reverse('deployment_add')}?copy={fleet.copy.pk}"
    assert offer not in page
    assert (
        offer not in signed_in(admin).get(reverse("model_detail", args=[fleet.copy.revision.model_id])).content.decode()
    )
    with pytest.raises(Refused, match="--lora-modules"):
        fleet.deploy()
    form = DeployForm(user=admin)
    assert fleet.copy.pk not in [getattr(value, "value", value) for value, _label in form.fields["copy"].choices]
    other = Fleet.make()
    offered = copy_fetching.offered(admin, Host.objects.filter(pk=other.host.pk))
    assert fleet.copy.revision not in [one.copy.revision for one in offered]


class TestConsent:
    @pytest.fixture
    def pickled(self, fleet: Fleet) -> Copy:
        store_verification(
            fleet.copy,
            result(
                "config.json", "pytorch_model.bin", findings=[finding("weights.pickle_only", file="pytorch_model.bin")]
            ),
        )
        return fleet.copy

    def test_without_a_yes_the_launch_is_refused_with_the_reason(self, fleet: Fleet, pickled: Copy) -> None:
        with pytest.raises(Refused, match="pickle weights") as refusal:
            fleet.deploy()
        assert refusal.value.field == "copy"
        payload = verify_payload(pickled, launch=True)
        assert not payload["trust_unchanged"]
        assert "weights.pickle_only" in payload["consent_needed"]

    def test_the_page_says_so_and_offers_no_launch(self, admin: User, pickled: Copy) -> None:
        page = signed_in(admin).get(reverse("copy_detail", args=[pickled.pk])).content.decode()
        assert "a launch is refused until an admin allows pickle weights" in page
        assert f"{reverse('deployment_add')}?copy={pickled.pk}" not in page

    def test_what_needs_a_yes_is_no_error_in_sound_files_and_a_note_once_allowed(
        self, admin: User, pickled: Copy
    ) -> None:
        def shown() -> list[str]:
            copy = Copy.objects.get(pk=pickled.pk)
            return [group.severity for group in shown_copies([copy])[0].groups]

        assert shown() == ["warning"]
        consents.allow(pickled, kind="pickle", reason="ours", actor=admin)
        assert shown() == ["info"]

    def test_an_admins_yes_is_recorded_and_opens_the_launch(self, admin: User, fleet: Fleet, pickled: Copy) -> None:
        page = reverse("copy_allow", args=[pickled.pk, "pickle"])
        assert page in signed_in(admin).get(reverse("copy_detail", args=[pickled.pk])).content.decode()
        assert signed_in(admin).post(page, {"reason": "ours"}).status_code == 400
        signed_in(admin).post(page, {"reason": "ours", "understood": "on"})
        assert AuditEntry.objects.get(action="copy.allow").reason == "ours"
        pickled.refresh_from_db()
        payload = verify_payload(pickled, launch=True)
        assert payload["trust_unchanged"]
        assert payload["allowed"] == ["weights.pickle_only"]
        assert fleet.deploy().kind == "deploy"

    def test_other_bytes_need_another_yes(self, admin: User, fleet: Fleet, pickled: Copy) -> None:
        consents.allow(pickled, kind="pickle", reason="ours", actor=admin)
        pickled.manifest["files"][1]["sha256"] = "f" * 64
        pickled.save()
        with pytest.raises(Refused, match="pickle weights"):
            fleet.deploy()

    def test_a_yes_taken_back_refuses_the_next_launch(self, admin: User, fleet: Fleet, pickled: Copy) -> None:
        given = consents.allow(pickled, kind="pickle", reason="ours", actor=admin)
        signed_in(admin).post(reverse("consent_withdraw", args=[given.pk]), {"reason": "doubt"})
        with pytest.raises(Refused, match="pickle weights"):
            fleet.deploy()

    def test_only_an_admin_says_yes(self, operator: User, viewer: User, pickled: Copy) -> None:
        page = reverse("copy_allow", args=[pickled.pk, "pickle"])
        for user in (operator, viewer):
            assert signed_in(user).post(page, {"reason": "x", "understood": "on"}).status_code == 403
            assert page not in signed_in(user).get(reverse("copy_detail", args=[pickled.pk])).content.decode()
        assert not Consent.objects.exists()

    def test_a_yes_without_hashed_files_is_refused(self, admin: User, pickled: Copy) -> None:
        for file in pickled.manifest["files"]:
            file["sha256"] = None
        with pytest.raises(Refused, match="Verify the copy in full"):
            consents.allow(pickled, kind="pickle", reason="ours", actor=admin)

    @pytest.mark.parametrize("arguments", [["--trust-remote-code"], ["--trust-remote-code=true"]])
    def test_remote_code_needs_a_yes_when_the_engine_is_told_to_run_it(
        self, admin: User, fleet: Fleet, arguments: list[str]
    ) -> None:
        store_verification(fleet.copy, result("config.json", "modeling_x.py"))
        with pytest.raises(Refused, match="own Python code"):
            fleet.deploy(arguments=arguments)
        consents.allow(fleet.copy, kind="remote_code", reason="read it", actor=admin)
        assert fleet.deploy(arguments=arguments).kind == "deploy"

    def test_a_launch_that_the_host_holds_for_want_of_a_yes_damages_nothing(self, fleet: Fleet) -> None:
        Copy.objects.filter(pk=fleet.copy.pk).update(state="unverified")
        fleet.copy.refresh_from_db()
        job = fleet.deploy()
        preflight, verify = job.steps.filter(kind__in=("preflight", "verify"))
        finish(preflight, result={"port": 18000})
        held = failure("consent.required", finding("code.remote_required", "warning", "config.json"))
        finish(verify, "failed", failure=Failure.model_validate(held))
        fleet.copy.refresh_from_db()
        assert fleet.copy.state == "unverified"
        with pytest.raises(Refused, match="own Python code"):
            deployments.start(Deployment.objects.get(), actor=None, reason="again")
