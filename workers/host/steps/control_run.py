"""Control run: the same question to the same files, answered by transformers in the engine's own environment.

It separates the two suspects that look alike from outside: if this answer is sane, the engine (or its quantisation kernels)
is at fault; if it is not, the files are.
"""

import json
from pathlib import Path

import psutil

from workers.host.engines import find_engine
from workers.host.failures import StepFailedError
from workers.host.helpers import clean_environment, run_helper
from workers.host.step_context import StepContext
from workers.step_payloads import ControlRunPayload as Payload
from workers.step_payloads import ControlRunResult
from workers.vllm.answer_comparison import compare_answers
from workers.vllm.sanity import judge_answer

__all__ = ["Payload", "run"]

_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "control_answer.py"
_ROOM = 1.3
"""RAM needed, as a multiple of the weights."""


def run(context: StepContext, payload: Payload) -> ControlRunResult:
    """Return the answer, whether it is sane, and what follows."""
    config = context.config
    engine = find_engine(config.engines_dir, payload.engine)
    model = config.models_dir / payload.model_path
    _refuse_without_room(model)
    context.event("Loading the model with transformers on the CPU: slow, and independent of the engine.")
    argv = [engine.python, str(_SCRIPT), str(model), payload.mode, str(payload.max_tokens), payload.question]
    ended = run_helper(
        context, argv, environment=clean_environment(HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1"),
        on_line=lambda _line: None, waiting_for=lambda: "transformers to answer",
    )  # fmt: skip
    answer = _answer_of(ended.lines[-1] if ended.lines else "")
    if ended.code != 0 or answer is None:
        last = ended.lines[-1] if ended.lines else f"exit code {ended.code}"
        raise StepFailedError(
            "control_run.failed",
            f"transformers can't answer with these files either: {last[:300]}",
            next_step="That points at the files (or at an architecture that transformers doesn't know): verify them.",
            evidence=ended.evidence(),
        )
    return _judge(context, payload, str(answer["text"]), [str(name) for name in answer["missing"]])  # type: ignore[attr-defined]


def _refuse_without_room(model: Path) -> None:
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if weights * _ROOM > free:
        raise StepFailedError(
            "memory.out_of_memory",
            f"the control run needs about {weights * _ROOM / 2**30:.1f} GiB of RAM; {free / 2**30:.1f} GiB are free",
            next_step="Stop what runs on this host, or do it on a host with more memory.",
        )


def _answer_of(line: str) -> dict[str, object] | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and {"text", "missing"} <= set(answer) else None


def _judge(context: StepContext, payload: Payload, text: str, missing: list[str]) -> ControlRunResult:
    judgement = judge_answer(text, expected=payload.expected or None, language=payload.language or None)
    sane = judgement.ok and not missing
    if missing:
        verdict = f"the files are at fault: {len(missing)} weights are not in them, such as {missing[0]}"
    elif not judgement.ok:
        verdict = f"the files are at fault, not the engine: {judgement.findings[0].message} here, too"
    elif payload.engine_answer and compare_answers(payload.engine_answer, text).same:
        verdict = "files and engine agree: the answer is the same"
    else:
        verdict = "the files are fine: the engine, its version, or its quantisation kernels are at fault"
    context.event(f"{verdict[0].upper()}{verdict[1:]}.")
    return ControlRunResult(
        answer=text,
        engine_answer=payload.engine_answer,
        sane=sane,
        verdict=verdict,
        missing=missing,
        seconds=round(context.seconds, 3),
    )
