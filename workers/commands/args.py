"""`slipway args check`: does a `vllm serve` line hold for an engine version, and what would?

Exit codes: 0 no finding of severity error; 1 at least one; 2 the command itself was used wrongly.
"""

import argparse
import errno
import json
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.vllm.arguments import (
    ArgumentSchema,
    CheckedArguments,
    Finding,
    ModelConfigError,
    SchemaError,
    Surroundings,
    check_words,
    load_schema,
    read_model_config,
    schema_for,
    version_key,
)

DEFAULT_PORT = 8000
EXAMPLE = "example: slipway args check --engine-version 0.32.0 --json -- /models/chat --max-model-len 32k -tp 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options; the words to check stand behind `--`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "explain what an engine version doesn't take, and print the line that it would"
    check = actions.add_parser("check", help=summary, description=summary, epilog=EXAMPLE)
    check.add_argument("--engine-version", metavar="V", help="vLLM's version; alone, the shipped schema is used")
    check.add_argument("--schema", type=Path, metavar="FILE", help="a schema that an engine printed itself")
    check.add_argument("--model", type=Path, metavar="PATH", help="a model directory, for context and heads")
    check.add_argument(
        "--port-check", action="store_true", help="look whether vLLM's default port is free when no --port is given"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument("argv", nargs="*", metavar="ARGV", help="what follows `vllm serve`, or a whole command line")


def run(options: argparse.Namespace) -> int:
    """Check the words and print the answer."""
    try:
        schema = _schema(options)
    except SchemaError as error:
        finding = Finding(
            "usage", "error", "", str(error), "Give --engine-version 0.32.0 or a schema file of an engine."
        )
        _print(CheckedArguments(str(options.engine_version or ""), (finding,), tuple(options.argv), None, {}), options)
        return 2
    checked = _check(schema, options)
    _print(checked, options)
    return 0 if checked.ok else 1


def _schema(options: argparse.Namespace) -> ArgumentSchema:
    if options.schema is not None:
        return load_schema(options.schema)
    if not options.engine_version:
        raise SchemaError("Neither --engine-version nor --schema is given.")
    return schema_for(options.engine_version)


def _check(schema: ArgumentSchema, options: argparse.Namespace) -> CheckedArguments:
    notes: list[Finding] = []
    if options.schema is not None and not _same_version(options.engine_version, schema.version):
        message = f"The schema is of vLLM {schema.version}, not {options.engine_version}."
        notes.append(Finding("schema.other_version", "warning", "", message, "Dump that engine's schema again."))
    if options.port_check and not any(word.split("=")[0] == "--port" for word in options.argv):
        notes += _default_port()
    known = Surroundings(port_taken=port_taken, read_file=lambda path: Path(path).read_text(encoding="utf-8"))
    checked = check_words(options.argv, schema, known)
    config, missing = _model_config(checked.model, options)
    if config is not None:
        checked = check_words(options.argv, schema, replace(known, model_config=config))
    return replace(
        checked,
        engine_version=options.engine_version or schema.version,
        findings=(*notes, *missing, *checked.findings),
    )


def _same_version(asked: str | None, dumped: str) -> bool:
    try:
        return asked is None or version_key(asked) == version_key(dumped)
    except ValueError:
        return asked == dumped


def _default_port() -> list[Finding]:
    if not port_taken(DEFAULT_PORT):
        return []
    message = f"Port {DEFAULT_PORT}, vLLM's default, is in use on this machine."
    return [Finding("port.in_use", "error", "--port", message, "Give another --port.")]


def _model_config(model: str | None, options: argparse.Namespace) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Read config.json of `--model`, or of the line's own model where that is a directory of this machine."""
    if options.model is not None:
        try:
            return read_model_config(options.model), []
        except ModelConfigError as error:
            fix = "Give the directory that holds config.json and the weights."
            return None, [Finding(error.code, "error", "", str(error), fix)]
    if model is None or not (Path(model) / "config.json").is_file():
        return None, []
    try:
        return read_model_config(Path(model)), []
    except ModelConfigError:
        return None, []  # `slipway verify` says what is wrong with it


def port_taken(port: int) -> bool:
    """Say whether something on this machine listens on the TCP port, on whichever address."""
    if not 0 < port < 65536:
        return False
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - as vLLM binds
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def _print(checked: CheckedArguments, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(checked.as_dict(), ensure_ascii=False))
        return
    for finding in checked.findings:
        about = f" {finding.flag}" if finding.flag else ""
        print(f"{finding.severity:7} {finding.code}{about}\n        {finding.message}\n        {finding.fix}")
    if not checked.findings:
        print(f"All arguments hold for vLLM {checked.engine_version}.")
    if checked.argv:
        print(f"\nvllm serve {shlex.join(checked.argv)}")
    sys.stdout.flush()
