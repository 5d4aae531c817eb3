"""The tool that an engine's own Python runs, against small stand-ins for old and new vLLM packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.vllm import dump_arguments
from workers.vllm.arguments import schema_from_dump

COMMON = """
import argparse, dataclasses, functools, json, sys
print("noise of an import")
NEEDS_HELP = "--help" in sys.argv

class FlexibleArgumentParser(argparse.ArgumentParser):
    pass

@dataclasses.dataclass
class ExtraConfig:
    a: int = 1
    b: str = ""

def parse_type(return_type):
    def _parse_type(val):
        return return_type(val)
    return _parse_type

def optional_type(return_type):
    def _optional_type(val):
        return None if val == "" else parse_type(return_type)(val)
    return _optional_type

def human_readable_int(value):
    return int(value)

def make_arg_parser(parser):
    def parse_dataclass(val, cls=ExtraConfig):
        return cls(**json.loads(val))
    group = parser.add_argument_group("ModelConfig")
    parser.add_argument("model_tag", nargs="?")
    if "serve" not in sys.argv:
        group.add_argument("--model", default="org/default")
    help_text = "50%% of it" if NEEDS_HELP else ""
    group.add_argument("--max-model-len", "-mml", type=optional_type(human_readable_int), help=help_text)
    group.add_argument("--lora", action=argparse.BooleanOptionalAction, default=None, help="adapters")
    group.add_argument("--extra", type=parse_dataclass, default=ExtraConfig(), help="JSON")
    group.add_argument("--overrides", type=parse_type(json.loads), default={"a": (1, 2)}, help="JSON")
    group.add_argument("--names", nargs="+", choices={"one"}, help=argparse.SUPPRESS)
    return parser
"""

PLATFORMS = """
class Unknown:
    def is_unspecified(self):
        return True

current_platform = Unknown()
"""


def fake_engine(folder: Path, *, old: bool) -> None:
    files = {
        "__init__.py": '__version__ = "0.9.3"\n',
        "platforms/__init__.py": PLATFORMS,
        "platforms/cpu.py": "class CpuPlatform:\n    pass\n",
        "common.py": COMMON,
        "entrypoints/__init__.py": "",
    }
    where = "entrypoints/openai" if old else "entrypoints/launchers"
    files[f"{where}/__init__.py"] = ""
    files[f"{where}/cli_args.py"] = "from vllm.common import make_arg_parser\n"
    files["utils/__init__.py"] = "from vllm.common import FlexibleArgumentParser\n" if old else ""
    if not old:
        files["utils/argparse_utils.py"] = "from vllm.common import FlexibleArgumentParser\n"
    for name, text in files.items():
        file = folder / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def run_tool(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(dump_arguments.__file__)
    return subprocess.run(
        [sys.executable, "-S", str(tool)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("old", [True, False])
def test_an_engine_prints_its_schema_and_nothing_else_on_stdout(tmp_path: Path, *, old: bool) -> None:
    fake_engine(tmp_path, old=old)
    done = run_tool(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "noise of an import" in done.stderr
    dump = json.loads(done.stdout)
    assert (dump["vllm"], dump["count"]) == ("0.9.3", 7)
    by_dest = {argument["dest"]: argument for argument in dump["args"]}
    assert by_dest["model"]["group"] == "ModelConfig", "the model is among the arguments"
    length = by_dest["max_model_len"]
    assert (length["type"], length["help"]) == ("optional:human_readable_int", "50% of it")
    assert (by_dest["extra"]["type"], by_dest["extra"]["keys"]) == ("json:ExtraConfig", ["a", "b"])
    assert by_dest["overrides"]["default"] == {"a": [1, 2]}
    assert by_dest["names"]["help"] is None
    schema = schema_from_dump(dump)
    assert schema.by_dest["max_model_len"].type == "tokens"
    assert schema.by_dest["overrides"].type == "json"
    assert schema.by_dest["lora"].negative == "--no-lora"


def test_a_python_without_vllm_is_said_to_have_none(tmp_path: Path) -> None:
    done = run_tool(tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ModuleNotFoundError" in done.stderr
