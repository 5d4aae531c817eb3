"""Asking an engine what it is: an import self-test and its argument schema, both by its own Python."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contracts import Level
from workers.host.engines import Engine, examined
from workers.host.failures import StepFailedError
from workers.host.files import write_json
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.step_context import StepContext
from workers.vllm import dump_arguments

SELF_TEST = Path(__file__).with_name("scripts") / "engine_self_test.py"
DUMP_ARGUMENTS = Path(dump_arguments.__file__)

_QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Examiner:
    """Examines the engine of one interpreter. `environment`: what the engine itself is started with."""

    context: StepContext
    python: Path
    environment: Mapping[str, str]

    def self_test(self) -> dict[str, Any]:
        """Import vLLM and return what it says of itself; raises `StepFailedError` (`engine.self_test_failed`)."""
        self.context.event("Testing that the engine can be imported.")
        ended = self._run(SELF_TEST, "the engine to pass its self-test")
        last = ended.lines[-1] if ended.lines else ""
        if ended.code == 0 and last.startswith("{"):
            facts: dict[str, Any] = json.loads(last)
            told = ", ".join(
                f"{name} {value}"
                for name, value in (
                    ("torch", facts["torch"]), ("built for", facts["torch_build"]), ("attention", facts["attention"])
                )
                if value
            )  # fmt: skip
            on = facts["platform"] or "no device"
            self.context.event(f"It is version {facts['version']} for {on}{f' ({told})' if told else ''}.")
            return facts
        raise StepFailedError(
            "engine.self_test_failed",
            f"{self.python} can't import vLLM: {last[:400] or f'exit code {ended.code}'}",
            next_step="Another version may fit this machine's Python, driver or processor better.",
            evidence=ended.evidence(),
        )

    def write_schema(self, target: Path) -> dict[str, Any]:
        """Have the engine print its arguments, keep them at `target`; returns their number and digest.

        An engine whose arguments can't be read is no failure: it serves, and Slipway's own table stands in.
        """
        ended = self._run(DUMP_ARGUMENTS, "the engine to print its arguments")
        printed = next((line for line in reversed(ended.lines) if line.startswith("{")), "")
        try:
            schema = json.loads(printed)
            # The model's place is no argument that a form has.
            count = sum(bool(argument["flags"]) for argument in schema["args"])
        except (ValueError, KeyError, TypeError):
            said = ended.lines[-1] if ended.lines else f"exit code {ended.code}"
            self.context.event(
                f"Its arguments can't be read ({said[:300]}); a known version's stand in.", Level.WARNING
            )
            return {"arguments": 0, "schema_sha256": ""}
        write_json(target, schema, mode=0o644)
        knows = len(schema.get("architectures") or [])
        told = f" and has {knows} model architectures of its own" if knows else ""
        self.context.event(f"It takes {count} arguments{told}.")
        return {"arguments": count, "schema_sha256": digest(schema)}

    def _run(self, script: Path, doing: str) -> Ended:
        argv = [str(self.python), "-B", str(script)]
        environment = clean_environment(**_QUIET) | dict(self.environment)
        return run_helper(
            self.context, argv, environment=environment, on_line=lambda _line: None, waiting_for=lambda: doing
        )


def examine(
    context: StepContext, engine: Engine, schema_file: Path, *, facts: Mapping[str, Any] | None = None
) -> Engine:
    """`engine` with everything that it says of itself now; the caller registers it.

    `facts`: what its self-test has just said, if it need not be asked again.
    """
    examiner = Examiner(context, Path(engine.python), engine.environment)
    facts = facts or examiner.self_test()
    schema = examiner.write_schema(schema_file)
    written = schema_file if schema["schema_sha256"] else None
    return examined(engine, facts, written, {**schema, "tested_at": time.time()})


def digest(schema: Mapping[str, Any]) -> str:
    """What tells two schemas apart."""
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
