"""Quality: the fixed question set, asked one by one at temperature 0, so that no batch changes an answer.

Answers that came before an interruption are kept, as long as the same process of the engine goes on.
"""

from pathlib import Path
from typing import Any

from workers.benchmark_payloads import QualityAnswer, QualityResult
from workers.benchmark_payloads import QualityPayload as Payload
from workers.host.bring_up import Target
from workers.host.device_locks import measured_alone
from workers.host.engine_client import EngineError
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host.instance_files import InstanceFiles
from workers.host.step_context import StepContext
from workers.vllm.quality import ANSWER_TOKENS, THINKING_TOKENS, Question, is_right, question_set

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> QualityResult:
    """Return every question's answer, and whether it is right."""
    asked = question_set()
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    target = Target(files, payload.start, context.config.private_keys)
    with measured_alone(context, payload.devices):
        attempt = target.running().attempt
        answers = _kept(context, attempt)
        for done, question in enumerate(asked.questions):
            context.progress(done, len(asked.questions), unit="items", waiting_for="answers to the question set")
            if question.key not in answers:
                answers[question.key] = _ask(context, target, question)
                write_json(_file(context), {"attempt": attempt, "answers": answers})
        if target.running().attempt != attempt:
            raise StepFailedError(
                "engine.restarted", "the engine's process ended and was started again meanwhile",
                next_step="Read on the instance's page why it ended; then retry, which asks anew.",
            )  # fmt: skip
    found = [_judged(question, answers[question.key]) for question in asked.questions]
    result = QualityResult(question_set=asked.name, answers=found, attempt=attempt, seconds=round(context.seconds, 3))
    context.event(f"{result.right} of {len(found)} questions were answered rightly")
    return result


def _ask(context: StepContext, target: Target, question: Question) -> str:
    order = target.order()
    model = order.served_model_names[0]
    # Models without a chat template go on with a text: that must lead to the answer.
    with target.client() as client:
        try:
            mode = client.asked_as(order.probe.mode)
            if mode == "embeddings":
                raise StepFailedError(
                    "quality.no_text", "the model gives vectors, so it can't answer questions",
                    next_step="Leave the question set out for models of embeddings, classes and scores.",
                )  # fmt: skip
            prompt = question.prompt if mode == "chat" else f"Question: {question.prompt}\nAnswer:"
            answer = context.in_background(
                lambda: client.ask(model, prompt, max_tokens=ANSWER_TOKENS, mode=mode), waiting_for=question.prompt
            )
            if answer.thinking:
                answer = context.in_background(
                    lambda: client.ask(model, prompt, max_tokens=THINKING_TOKENS, mode=mode),
                    waiting_for=question.prompt,
                )
        except EngineError as error:
            target.running()
            raise StepFailedError(
                "quality.no_answer", f"“{question.prompt}” was not answered: {error}",
                next_step="Ask it in the playground, and read the engine's log.",
            ) from error  # fmt: skip
    return answer.text


def _judged(question: Question, answer: str) -> QualityAnswer:
    return QualityAnswer(question=question.key, answer=answer.strip()[:400], right=is_right(question, answer))


def _kept(context: StepContext, attempt: int) -> dict[str, str]:
    raw: dict[str, Any] = read_json(_file(context)) or {}
    return dict(raw["answers"]) if raw.get("attempt") == attempt else {}


def _file(context: StepContext) -> Path:
    return context.files.directory / "quality.json"
