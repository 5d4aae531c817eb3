"""Quantize: llm-compressor, in its own environment, makes a smaller model directory from one of this host.

It works in a hidden folder beside the models; only what is complete gets its name. A run that ended half-way leaves nothing,
and a retry begins anew: llm-compressor itself can't go on in the middle.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import psutil

from workers.contracts import Level
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.quantizers import Quantizer, find_quantizer
from workers.host.step_context import StepContext, Unit
from workers.host.steps.preflight import resolve_model_path
from workers.quantization_payloads import SCHEMES, QuantizeResult
from workers.quantization_payloads import QuantizePayload as Payload

__all__ = ["Payload", "run"]

_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "quantize_model.py"
_ROOM = 1.4
"""RAM needed, as a multiple of the weights."""
_DISK = 1.1
"""Disk needed, as a multiple of the weights that will be left."""
_STAGE = re.compile(r"^slipway: stage (\d+) of (\d+): (.+)$")
_BAR = re.compile(r"^(.{0,60}?):?\s*(\d{1,3})%\|")
_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b")
_MOST_EVENTS = 200
_OTHER_SCHEME = "Take W8A8 or FP8: they have a scale for each row, whatever its length."
_PLAN = "plan.json"
_MADE_BY = "slipway.json"
_WHOLE = 100.0


class _Told:
    """How far the script is: its stages, and the bar of the one that runs."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._done = self._stages = self._percent = 0
        self._events = 0
        self.doing = "llm-compressor to be loaded"
        self.error = ""
        """The last exception that was printed: what follows it may be long."""

    def note(self, line: str) -> None:
        """One line of its output."""
        if _ERROR.match(line):
            self.error = line
        if found := _STAGE.match(line):
            self._done, self._stages, self._percent = int(found[1]) - 1, int(found[2]), 0
            self.doing = found[3]
            self._context.event(f"{found[3][:1].upper()}{found[3][1:]}.")
        elif bar := _BAR.match(line):
            self._percent = min(100, int(bar[2]))
            self.doing = f"{bar[1].strip() or self.doing.partition(': ')[0]}: {self._percent} %"
        elif self._events < _MOST_EVENTS and not line.startswith("slipway:"):
            self._events += 1
            self._context.event(line[:500], Level.WARNING if "WARN" in line else Level.INFO)

    def measure(self, _written: int) -> tuple[float, float | None, Unit]:
        """Stages, the running one by its bar."""
        return self._done + self._percent / _WHOLE, self._stages or None, "items"


def run(context: StepContext, payload: Payload) -> QuantizeResult:
    """Return what was made; quick if this very order was carried out already."""
    models = context.config.models_dir
    source, target = resolve_model_path(models, payload.model_path), models / payload.name
    plan = _plan(payload, source)
    if (read_json(target / _MADE_BY) or {}) == plan:
        return _result(context, payload, source, target)
    if target.exists():
        raise StepFailedError(
            "quantize.exists", f"{target} is there already", next_step="Give the new model another name."
        )
    quantizer = find_quantizer(context.config, payload.quantizer)
    _check(payload, source, models)
    work = models / f".{payload.name}.quantising"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, mode=0o755)
    try:
        made = _make(context, payload, quantizer, source, work)
        write_json(made / _MADE_BY, plan, mode=0o644)
        made.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    context.event(f"{payload.name} lies in {target}.")
    return _result(context, payload, source, target)


def _plan(payload: Payload, source: Path) -> dict[str, object]:
    """What a directory was made from and how: it lies with it, and tells whether an order was carried out already."""
    asked = payload.model_dump(mode="json", exclude={"prompts", "name", "model_path"})
    return {**asked, "source": str(source), "prompts": len(payload.prompts)}


def _check(payload: Payload, source: Path, models: Path) -> None:
    config = read_json(source / "config.json")
    if config is None:
        raise StepFailedError(
            "path.not_a_model", f"{source} has no config.json that can be read", next_step="Verify the copy."
        )
    if config.get("quantization_config"):
        method = str((config["quantization_config"] or {}).get("quant_method", "quantised"))
        raise StepFailedError(
            "quantize.already", f"its weights are quantised already ({method})",
            next_step="Take the model as it was published before, in 16 bits.",
        )  # fmt: skip
    _check_columns(payload, config)
    weights = _weights(source)
    left, needed = shutil.disk_usage(models).free, weights * SCHEMES[payload.scheme].share * _DISK
    if left < needed:
        raise StepFailedError(
            "disk.not_enough", f"it needs about {needed / 1e9:.1f} GB; {left / 1e9:.1f} GB are free in {models}",
            next_step="Free space there: delete a copy that nothing uses.",
        )  # fmt: skip
    free, room = psutil.virtual_memory().available, weights * _ROOM
    if free < room:
        raise StepFailedError(
            "memory.out_of_memory", f"it needs about {room / 2**30:.1f} GiB of RAM; {free / 2**30:.1f} GiB are free",
            next_step="Stop what runs on this host, or do it on a host with more memory.",
        )  # fmt: skip


def _check_columns(payload: Payload, config: dict[str, Any]) -> None:
    """Columns that share a scale must fill the layers; llm-compressor finds out only once everything is loaded."""
    group = SCHEMES[payload.scheme].group_size
    for name in ("hidden_size", "intermediate_size"):
        size = config.get(name)
        if group and isinstance(size, int) and size >= group and size % group:
            raise StepFailedError(
                "quantize.columns",
                f"{payload.scheme} shares a scale among {group} columns; this model's {name}, {size}, is no multiple of it",
                next_step=_OTHER_SCHEME,
            )


def _make(context: StepContext, payload: Payload, quantizer: Quantizer, source: Path, work: Path) -> Path:
    made, told = work / "made", _Told(context)
    plan = {
        "model": str(source), "output": str(made), "scheme": payload.scheme, "ignore": payload.ignore,
        "prompts": payload.prompts if SCHEMES[payload.scheme].calibrated else [], "max_tokens": payload.max_tokens,
    }  # fmt: skip
    (work / _PLAN).write_text(json.dumps(plan), encoding="utf-8")
    environment = clean_environment(
        HF_HUB_OFFLINE="1", HF_HOME=str(work / "cache"), TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1", CUDA_VISIBLE_DEVICES=payload.device, HIP_VISIBLE_DEVICES=payload.device,
    )  # fmt: skip
    context.event(f"{quantizer.key}: {payload.scheme} of {source.name}, on {payload.device or 'the processors'}.")
    ended = run_helper(
        context, [quantizer.python, str(_SCRIPT), str(work / _PLAN)], environment=environment, on_line=told.note,
        waiting_for=lambda: told.doing, measure=told.measure,
    )  # fmt: skip
    if ended.code != 0 or not (made / "config.json").exists():
        raise _failure(ended, told.error)
    return made


def _failure(ended: Ended, error: str) -> StepFailedError:
    text = f"{error}\n{ended.text}"
    last = error or (ended.lines[-1] if ended.lines else f"exit code {ended.code}")
    next_step = "Read the last lines. The original is as it was; nothing of the attempt is left."
    if "group_size" in text:
        next_step = _OTHER_SCHEME
    elif "trust_remote_code" in text:
        next_step = "This model brings its own code, which is not run for this. Take one that transformers knows."
    elif "out of memory" in text.lower() or ended.code in (-9, 137):
        next_step = "It ran out of memory: stop what runs there, shorten the texts, or compute on the processors."
    return StepFailedError(
        "quantize.failed", f"llm-compressor failed: {last[:300]}", next_step=next_step, evidence=ended.evidence()
    )


def _weights(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def _result(context: StepContext, payload: Payload, source: Path, target: Path) -> QuantizeResult:
    return QuantizeResult(
        model_path=str(target), size_bytes=sum(one.stat().st_size for one in target.rglob("*") if one.is_file()),
        source_bytes=sum(one.stat().st_size for one in source.rglob("*") if one.is_file()), scheme=payload.scheme,
        quantizer=payload.quantizer, prompts=len(payload.prompts), seconds=round(context.seconds, 3),
    )  # fmt: skip
