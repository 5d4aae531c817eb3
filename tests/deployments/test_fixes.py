"""What Slipway offers to do about a failure: read off real logs, shown before it is done, done by whoever may."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.common.states import move
from console.deployments import fixing, remedies, what_changed
from console.deployments.models import Attempt, Deployment, Instance
from console.deployments.remedies import Kind, Situation, value_of, with_arguments
from console.fleet.models import Engine, Host
from console.jobs.models import Job
from tests.factories import Fleet
from workers.vllm.diagnosis import diagnose_file

LOGS = Path(__file__).parents[1] / "vllm" / "diagnosis" / "logs"
TOO_SMALL = "fail-kv-too-small.log"


def situation(log: str, **more: Any) -> Situation:
    found = diagnose_file(LOGS / log, 1)
    text = "\n".join([found.message, *(line.text for line in found.evidence)])
    return Situation(code=found.code, text=text, **more)


@pytest.mark.parametrize(
    ("log", "arguments", "expected"),
    [
        (TOO_SMALL, [], ["--max-model-len", "1920"]),
        ("fail-len-too-big.log", ["--max-model-len", "8192"], ["--max-model-len", "4096"]),
        ("fail-batched-lt-len.log", ["--max-num-batched-tokens=512"], ["--max-num-batched-tokens", "1024"]),
        ("fail-util-too-high.log", ["--gpu-memory-utilization", "0.99"], ["--gpu-memory-utilization", "0.88"]),
        ("fail-swap-flag.log", ["--swap-space", "4", "--seed", "1"], ["--seed", "1"]),
        ("fail-bad-choice.log", ["--kv-cache-dtype", "int3"], []),
        ("fail-quant-unknown.log", ["--quantization", "int3"], []),
        ("block16.log", ["--block-size", "16"], []),
        ("fail-tp3.log", ["--tensor-parallel-size", "3"], ["--tensor-parallel-size", "2"]),
    ],
)
def test_a_real_log_gives_the_argument_that_would_have_worked(
    log: str, arguments: list[str], expected: list[str]
) -> None:
    (remedy,) = remedies.remedies(situation(log, arguments=arguments))
    assert remedy.kind == Kind.ARGUMENTS
    assert with_arguments(arguments, sets=remedy.sets, drops=remedy.drops) == expected


def test_a_kv_cache_asked_for_by_a_variable_is_halved_from_what_is_there() -> None:
    (remedy,) = remedies.remedies(situation("fail-kv-too-big.log"))
    assert remedy.variables == {"VLLM_CPU_KVCACHE_SPACE": "7"}


def test_a_taken_port_is_left_to_the_host_or_tried_again() -> None:
    assert [one.kind for one in remedies.remedies(situation("fail-port-in-use.log", has_fixed_port=True))] == [
        Kind.PORT
    ]
    assert [one.kind for one in remedies.remedies(situation("fail-port-in-use.log"))] == [Kind.START]


def test_damaged_files_are_repaired_only_where_they_can_be_fetched() -> None:
    assert [one.kind for one in remedies.remedies(situation("fail-truncated.log", has_source=True))] == [Kind.REPAIR]
    assert remedies.remedies(situation("fail-truncated.log")) == []


def test_an_unknown_architecture_wants_a_newer_engine_never_an_older_one() -> None:
    known = situation("fail-unknown-arch.log", engine_version="0.32.0", engines=[(1, "0.9.2"), (2, "0.33.1")])
    (remedy,) = remedies.remedies(known)
    assert (remedy.kind, remedy.value) == (Kind.ENGINE, "2")
    only_older = situation("fail-unknown-arch.log", engine_version="0.32.0", engines=[(1, "0.9.2")])
    assert [one.kind for one in remedies.remedies(only_older)] == [Kind.INSTALL]


def test_nothing_is_guessed_where_the_log_names_no_number() -> None:
    assert remedies.remedies(Situation(code="kv_cache.too_small", text="No available memory.")) == []
    assert remedies.remedies(Situation(code="unknown", text="RuntimeError: what")) == []


def test_whatever_the_cause_the_last_good_spec_can_be_brought_back() -> None:
    (remedy,) = remedies.remedies(Situation(code="unknown", good_spec=3))
    assert (remedy.kind, remedy.value) == (Kind.ROLL_BACK, "3")


def test_arguments_are_found_in_every_spelling() -> None:
    words = ["--max_model_len=4096", "--enforce-eager", "--max-model-len", "8192"]
    assert value_of(words, "--max-model-len") == "8192"
    assert value_of(words, "--enforce-eager") == ""
    assert value_of(words, "--seed") is None
    assert with_arguments(words, sets={"--max-model-len": "1"}) == ["--enforce-eager", "--max-model-len", "1"]


@pytest.fixture
def failed(fleet: Fleet, admin: User) -> Deployment:
    """A deployment whose start failed because its context doesn't fit."""
    job = fleet.deploy(admin, arguments=["--max-model-len", "4096"])
    instance = Instance.objects.get(pk=job.payload["instance"])
    found = diagnose_file(LOGS / TOO_SMALL, 1)
    failure = {"code": found.code, "message": found.message, "next": found.fix, "evidence": []}
    Job.objects.update(state="failed", failure=failure)
    Instance.objects.update(failure=failure, run=False, ordered=False)
    instance.refresh_from_db()
    move(instance, to="crashed", reason=found.title)
    Attempt.objects.create(
        instance=instance, number=1, started_at=timezone.now(), ended_at=timezone.now(), exit_code=1,
        diagnosis=found.as_dict(), surroundings=what_changed.surroundings(instance),
    )  # fmt: skip
    deployment = Deployment.objects.get()
    move(deployment, to="failed", reason=found.message)
    return deployment


@pytest.mark.django_db
def test_the_fix_says_what_it_will_do_and_then_does_it(failed: Deployment, admin: User, client: Client) -> None:
    client.force_login(admin)
    page = client.get(f"/deployments/{failed.pk}/").content.decode()
    assert "Set context to 1,920 and redeploy" in page
    asked = client.get(f"/deployments/{failed.pk}/fix/max-model-len-1920/").content.decode()
    assert "--max-model-len: 4096 → 1920" in asked
    answer = client.post(f"/deployments/{failed.pk}/fix/max-model-len-1920/", {"reason": "it doesn't fit"})
    failed.refresh_from_db()
    assert failed.current_spec
    assert failed.current_spec.arguments == ["--max-model-len", "1920"]
    assert failed.state == "deploying"
    assert answer["Location"] == f"/jobs/{Job.objects.order_by('-pk')[0].pk}/"
    entry = AuditEntry.objects.get(action="deployment.fix")
    assert (entry.actor, entry.reason, entry.details["fix"]) == (admin, "it doesn't fit", "max-model-len-1920")


@pytest.mark.django_db
def test_a_fix_needs_a_reason_and_is_refused_once_the_failure_is_another(
    failed: Deployment, admin: User, client: Client
) -> None:
    client.force_login(admin)
    url = f"/deployments/{failed.pk}/fix/max-model-len-1920/"
    assert client.post(url, {"reason": ""}).status_code == 400
    Instance.objects.update(failure={"code": "engine.died", "message": "gone"})
    answer = client.post(url, {"reason": "late"})
    assert answer.status_code == 400
    assert "no longer offered" in answer.content.decode()
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_viewers_see_no_fix_and_operators_only_what_makes_nothing_new(
    failed: Deployment, viewer: User, operator: User, client: Client
) -> None:
    url = f"/deployments/{failed.pk}/fix/max-model-len-1920/"
    client.force_login(viewer)
    assert "/fix/" not in client.get(f"/deployments/{failed.pk}/").content.decode()
    assert client.get(url).status_code == 403
    client.force_login(operator)
    assert "/fix/" not in client.get(f"/deployments/{failed.pk}/").content.decode()
    assert client.post(url, {"reason": "x"}).status_code == 400
    Instance.objects.update(failure={"code": "engine.died", "message": "gone"})
    assert f"/deployments/{failed.pk}/fix/start/" in client.get(f"/deployments/{failed.pk}/").content.decode()
    assert client.post(f"/deployments/{failed.pk}/fix/start/", {"reason": "again"}).status_code == 302
    failed.refresh_from_db()
    assert failed.state == "deploying"


@pytest.mark.django_db
def test_an_operator_brings_the_last_good_spec_back(
    failed: Deployment, fleet: Fleet, operator: User, client: Client
) -> None:
    good = failed.current_spec
    assert good
    Attempt.objects.update(validation={"sound": True})
    wrong = failed.specs.create(number=2, copy=good.copy, engine=good.engine, host=good.host, arguments=["--bad"],
                                probe=good.probe, restart=good.restart)  # fmt: skip
    Deployment.objects.update(current_spec=wrong)
    client.force_login(operator)
    url = f"/deployments/{failed.pk}/fix/roll-back-1/"
    assert "--bad: on →" in client.get(url).content.decode()
    assert client.post(url, {"reason": "back"}).status_code == 302
    failed.refresh_from_db()
    assert failed.current_spec
    assert (failed.current_spec.number, failed.current_spec.arguments) == (3, good.arguments)
    assert failed.state == "deploying"


@pytest.mark.django_db
def test_every_failure_shows_what_changed_since_the_last_good_start(
    failed: Deployment, fleet: Fleet, viewer: User, client: Client
) -> None:
    client.force_login(viewer)
    assert "It never started well" in client.get(f"/deployments/{failed.pk}/").content.decode()
    Attempt.objects.update(validation={"sound": True})
    assert what_changed.since_good(failed).differences == ()
    assert "Nothing that Slipway knows of" in client.get(f"/deployments/{failed.pk}/").content.decode()
    Host.objects.update(facts={"host": {"gpus": {"driver": "580.95"}, "system": {"kernel": "6.8.1"}}})
    Engine.objects.update(path="/engines/b")
    names = {one.name: (one.before, one.after) for one in what_changed.since_good(failed).differences}
    assert names["NVIDIA driver"] == ("", "580.95")
    assert names["Engine"][1].endswith("(/engines/b)")
    page = client.get(f"/instances/{Instance.objects.get().pk}/").content.decode()
    assert "Changed since the last good start" in page
    assert "580.95" in page


@pytest.mark.django_db
def test_the_page_of_the_failed_job_has_the_same_buttons(failed: Deployment, admin: User, client: Client) -> None:
    client.force_login(admin)
    there = f"/deployments/{failed.pk}/fixes/"
    assert f'hx-get="{there}"' in client.get(f"/jobs/{Job.objects.get().pk}/").content.decode()
    assert "Set context to 1,920 and redeploy" in client.get(there).content.decode()


@pytest.mark.django_db
def test_a_start_that_asked_for_the_model_s_code_is_mended_by_an_admin_only(
    failed: Deployment, admin: User, operator: User
) -> None:
    Instance.objects.update(
        failure={"code": "code.remote_required", "message": "It contains custom code which must be executed."}
    )
    keys = {user.username: [one.remedy.key for one in fixing.current_fixes(user, failed)] for user in (admin, operator)}
    assert "trust-remote-code" in keys["ada"]
    assert "trust-remote-code" not in keys["otto"]
    fix = fixing.find(admin, failed, "trust-remote-code")
    assert fix.label == "Add --trust-remote-code and redeploy"
    fixing.apply(failed, fix.remedy, actor=admin, reason="read it")
    failed.refresh_from_db()
    assert failed.current_spec
    assert failed.current_spec.arguments == ["--max-model-len", "4096", "--trust-remote-code"]
