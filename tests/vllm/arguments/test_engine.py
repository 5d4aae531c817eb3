"""Against real engines: their own parsers take what we write and refuse what we call an error.

`tests.engine.pythons` says where their Pythons come from; each schema is dumped first.
"""

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine import pythons
from tests.vllm.arguments.samples import round_trippable, samples
from tests.vllm.arguments.test_check import GUIDES, LIBERTIES
from workers.vllm import dump_arguments
from workers.vllm.arguments import (
    Argument,
    ArgumentSchema,
    argv_from_values,
    check_arguments,
    presets,
    schema_for,
    schema_from_dump,
)

TOOL = Path(dump_arguments.__file__)

pytestmark = pytest.mark.live


@dataclass(frozen=True)
class Engine:
    """A real engine: the schema it prints, and a parser to ask."""

    python: str
    schema: ArgumentSchema

    def parse(self, lines: list[list[str]]) -> list[dict[str, Any]]:
        """Return, per command line, whether the engine's parser took it, and else what it said."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        script = Path(__file__).with_name("engine_parser.py")
        done = subprocess.run(
            [self.python, str(script), str(TOOL)], input=text, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        assert answers.pop(0)["vllm"]
        return answers


@pytest.fixture(scope="module", params=pythons())
def engine(request: pytest.FixtureRequest) -> Engine:
    done = subprocess.run([request.param, str(TOOL)], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Engine(request.param, schema_from_dump(json.loads(done.stdout)))


def known(argument: Argument) -> tuple[Any, ...]:
    """What checks and forms go by."""
    return argument.flags, argument.kind, argument.type, argument.nargs, argument.nullable, argument.choices


def test_the_shipped_schema_is_the_engines_own(engine: Engine) -> None:
    shipped = schema_for(engine.schema.version)
    if shipped.between is not None:
        pytest.skip(f"vLLM {engine.schema.version} is not among the shipped versions")
    assert [known(argument) for argument in shipped.arguments] == [known(one) for one in engine.schema.arguments]
    # vLLM 0.20 itself has no help text for what its frontend's arguments inherit (21 of 239).
    helped = sum(bool(argument.help) for argument in engine.schema.arguments)
    assert helped > 0.9 * len(engine.schema.arguments)


def test_the_engine_takes_every_argument_that_a_form_writes(engine: Engine) -> None:
    lines = [
        argv_from_values(engine.schema, {argument.dest: value}, model="org/model")
        for argument in round_trippable(engine.schema)
        if argument.dest != "config"  # names a file that must exist
        for value in samples(argument)
    ]
    refused = [
        (line, answer["error"]) for line, answer in zip(lines, engine.parse(lines), strict=True) if not answer["ok"]
    ]
    assert refused == []


def test_the_engine_takes_liberties_presets_and_corrected_lines_and_refuses_what_we_call_wrong(engine: Engine) -> None:
    if engine.schema.version.split("+")[0] != "0.32.0":
        pytest.skip("the examples are written for vLLM 0.32")
    plain = [shlex.split(line) for line in LIBERTIES if not line.startswith("vllm")]
    good = [*plain, *(argv_from_values(engine.schema, preset.values, model="M") for preset in presets(engine.schema))]
    wrong = [shlex.split(line) for line, *_ in GUIDES if not line.startswith(("python", "serve"))]
    good += [list(check_arguments(engine.schema, line).argv) for line in [*plain, *wrong]]
    # parse_args alone lets a second model pass; the serve command refuses it
    wrong = [line for line in wrong if "--model" not in line]
    answers = engine.parse([*good, *wrong])
    assert [line for line, answer in zip(good, answers, strict=False) if not answer["ok"]] == []
    assert [line for line, answer in zip(wrong, answers[len(good) :], strict=True) if answer["ok"]] == []
