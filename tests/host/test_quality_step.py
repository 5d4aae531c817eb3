"""The quality step: the question set, asked of a real process that speaks the engine's interface."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.host.measured import Measured
from workers.benchmark_payloads import QualityResult
from workers.contracts import StepFinished, StepKind
from workers.host.step_files import StepFiles
from workers.vllm.quality import by_key, compare, is_right, question_set

QUESTIONS = question_set().questions


@pytest.fixture
def measured(measure: Callable[..., Measured]) -> Measured:
    """The engine of these tests always gives the same answer."""
    return measure(answer="Tokyo")


def ask(measured: Measured, **changes: Any) -> StepFinished:
    payload = {"instance": str(measured.order.instance), "devices": ["cpu"]}
    return measured.step(payload, kind=StepKind.QUALITY, **changes)


def interrupt(measured: Measured, answers: dict[str, str], *, attempt: int = 1) -> None:
    """Leave the step as its process leaves it when it is killed after these answers."""
    directory = StepFiles(measured.host.config.state_dir, 7).directory
    (directory / "outcome.json").unlink()
    assert json.loads((directory / "quality.json").read_text())["attempt"] == 1
    (directory / "quality.json").write_text(json.dumps({"attempt": attempt, "answers": answers}))


def test_every_question_is_asked_and_judged(measured: Measured) -> None:
    ended = ask(measured)
    assert ended.outcome == "succeeded", ended.failure
    result = QualityResult.model_validate(ended.result)
    assert result.question_set == question_set().name
    assert [one.question for one in result.answers] == [one.key for one in QUESTIONS]
    assert {one.answer for one in result.answers} == {"Tokyo"}
    assert [one.question for one in result.answers if one.right] == [q.key for q in QUESTIONS if is_right(q, "Tokyo")]
    assert result.right == 1


def test_answers_that_came_before_an_interruption_are_kept_while_the_engine_goes_on(measured: Measured) -> None:
    first = QualityResult.model_validate(ask(measured).result)
    interrupt(measured, {QUESTIONS[1].key: QUESTIONS[1].expected[0]})
    second = QualityResult.model_validate(ask(measured, fence=2).result)
    assert second.right == first.right + 1
    found = compare(by_key(_rows(first)), by_key(_rows(second)))
    assert found.won == (QUESTIONS[1].key,)
    assert found.verdict == "noise"


def test_answers_of_another_process_of_the_engine_do_not_count(measured: Measured) -> None:
    ask(measured)
    interrupt(measured, {one.key: one.expected[0] for one in QUESTIONS}, attempt=0)
    assert QualityResult.model_validate(ask(measured, fence=2).result).right == 1


def test_an_engine_that_answers_with_an_error_fails_the_step_by_name(measure: Callable[..., Measured]) -> None:
    ended = ask(measure(chat_error="no chat template"))
    assert ended.outcome == "failed"
    assert ended.failure
    assert ended.failure.code == "quality.no_answer"
    assert QUESTIONS[0].prompt in ended.failure.message
    assert "no chat template" in ended.failure.message


def _rows(result: QualityResult) -> list[dict[str, object]]:
    return [one.model_dump() for one in result.answers]


def test_a_model_that_gives_vectors_is_asked_nothing(measure: Callable[..., Measured]) -> None:
    ended = ask(measure(pools="embed"))
    assert (ended.outcome, ended.failure and ended.failure.code) == ("failed", "quality.no_text")
