"""Print the argument schema of the vLLM that is installed for the Python which runs this file.

    ENGINE/bin/python workers/vllm/dump_arguments.py > schema.json

It needs no GPU, model, network or package metadata, only the standard library and vLLM 0.8 or later, and takes about as
long as `vllm serve --help` (10 to 20 s), so its answer is kept per engine. stdout holds one JSON object, all noise goes to
stderr: `{"vllm", "count", "args": [{"dest", "flags", "group", "kind", "type", "nargs", "choices", "default", "required",
"deprecated", "metavar", "help", "keys"}], "architectures"}`. `type` names the converter ("optional:int",
"json:CompilationConfig"), `keys` are the fields of such a configuration class, `architectures` the model classes that this
vLLM has itself (null: it can't tell). Exit code 1: this Python has no vLLM whose arguments can be read.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
FLEXIBLE_PARSER_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


def main() -> int:
    """Write the schema to stdout; the exit code says whether there was one."""
    answer = sys.stdout
    # Help texts are only collected while "--help" is among the arguments, and the model is only an argument while
    # "serve" isn't: vLLM looks at sys.argv when it is imported.
    sys.argv = ["dump_arguments", "--help"]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            schema = read_schema()
    except Exception as error:
        sys.stderr.write(f"Can't read vLLM's arguments with {sys.executable}: {type(error).__name__}: {error}\n")
        return 1
    json.dump(schema, answer)
    answer.write("\n")
    return 0


def read_schema() -> dict[str, Any]:
    """Build vLLM's own parser and describe it."""
    assume_some_device()
    parser_class = first_attribute(FLEXIBLE_PARSER_MODULES, "FlexibleArgumentParser")
    parser = first_attribute(PARSER_MODULES, "make_arg_parser")(parser_class(prog="vllm serve"))
    group_titles = {id(action): group.title for group in parser._action_groups for action in group._group_actions}
    outdated = {id(action) for action in getattr(parser, "_deprecated", ())}
    arguments = [
        describe(action, group_titles.get(id(action)), deprecated=id(action) in outdated)
        for action in parser._actions
        if action.dest != "help"
    ]
    version = getattr(importlib.import_module("vllm"), "__version__", None)
    return {"vllm": version, "count": len(arguments), "args": arguments, "architectures": architectures()}


def architectures() -> list[str] | None:
    """Model classes that this vLLM has itself; others it may run through Transformers, or not at all."""
    try:
        registry = importlib.import_module("vllm.model_executor.models").ModelRegistry
        return sorted(str(name) for name in registry.get_supported_archs())
    except Exception as error:
        sys.stderr.write(f"Can't list the architectures: {type(error).__name__}: {error}\n")
        return None


def assume_some_device() -> None:
    """Fall back to the CPU platform: without the build's device vLLM can't tell its defaults and refuses to go on."""
    platforms: Any = importlib.import_module("vllm.platforms")
    try:
        known = not platforms.current_platform.is_unspecified()
    except Exception:
        known = False
    if not known:
        platforms.current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()


def first_attribute(modules: Sequence[str], name: str) -> Any:
    """Return the attribute from the first module that has it; vLLM moved both over time."""
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"no {name} in {' or '.join(modules)}")


def describe(action: argparse.Action, group: str | None, *, deprecated: bool) -> dict[str, Any]:
    """Describe one argparse action."""
    name, fields = converter(action.type)
    shown = action.help if action.help is not argparse.SUPPRESS else None
    return {
        "dest": action.dest,
        "flags": list(action.option_strings),
        "group": group,
        "kind": type(action).__name__,
        "type": name,
        "nargs": action.nargs,
        "choices": plain(list(action.choices)) if action.choices else None,
        "default": plain(action.default),
        "required": action.required,
        "deprecated": bool(deprecated or getattr(action, "deprecated", False)),
        "metavar": plain(action.metavar),
        "help": shown.replace("%%", "%") if shown else None,
        "keys": fields,
    }


def converter(function: Any) -> tuple[str | None, list[str] | None]:
    """Name what argparse calls on a value, and list the fields where it builds a configuration class."""
    if function is None:
        return None, None
    qualified = getattr(function, "__qualname__", "") or repr(function)
    if "optional_type" in qualified:
        inner = next((cell.cell_contents for cell in function.__closure__ if callable(cell.cell_contents)), None)
        name, fields = converter(inner)
        return "optional:" + str(name), fields
    if "parse_dataclass" in qualified:
        built = next((value for value in function.__defaults__ or () if dataclasses.is_dataclass(value)), None)
        fields = [field.name for field in dataclasses.fields(built) if field.init] if built else None
        return "json:" + getattr(built, "__name__", "dataclass"), fields
    if "parse_type" in qualified or qualified == "loads":
        return "json", None
    return qualified, None


def plain(value: Any) -> Any:
    """Turn a default or choice into something JSON can hold."""
    if value is argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return repr(value)


if __name__ == "__main__":
    sys.exit(main())
