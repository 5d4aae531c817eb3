"""The `slipway` command: offline tools, and what a host runs.

Each command is a module in `workers/commands` with `add_arguments(parser)` and `run(options) -> exit code`. A command's
module is imported only when it is asked for, so that `slipway verify` starts without Celery, Redis or pydantic.
"""

import argparse
import errno
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

COMMANDS: dict[str, tuple[str, str]] = {
    "verify": ("workers.commands.verify", "check a model directory before a launch"),
    "plan": ("workers.commands.plan", "compute whether a model fits a device"),
    "args": ("workers.commands.args", "check `vllm serve` arguments against an engine version"),
    "diagnose": ("workers.commands.diagnose", "find the root cause in a vLLM log"),
    "host": ("workers.commands.host", "run this machine as a Slipway host"),
    "gateway": ("workers.commands.gateway", "run a console's gateway on this machine"),
}


BROKEN_PIPE = 128 + 13
"""What a shell reports for a command that SIGPIPE has ended."""

INTERRUPTED = 128 + 2
"""What a shell reports for a command that Ctrl-C has ended."""


class Parser(argparse.ArgumentParser):
    """A parser that keeps the promise of `--json` for usage errors, too: one JSON object on stdout, exit code 2."""

    json_asked = False
    command = ""
    """The command that was asked for; empty when none of them was named."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line and exit with 2."""
        if Parser.json_asked:
            fix = f"Look at `slipway {Parser.command} --help`." if Parser.command else self.format_usage().strip()
            _print_only_finding("usage", message, fix)
        super().error(message)


def _print_only_finding(code: str, message: str, fix: str) -> None:
    """Print the one object that `--json` promises when the command itself has nothing to say."""
    finding = {"code": code, "severity": "error", "flag": "", "message": message, "fix": fix}
    own: dict[str, dict[str, object]] = {
        "args": {"engine_version": "", "argv": []},
        "plan": {"error": message, "fits": None, "reasons": [message], "suggestions": []},
    }
    sys.stdout.write(json.dumps({"ok": False, "findings": [finding], **own.get(Parser.command, {})}) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 means that the command line itself was wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    Parser.json_asked = "--json" in own
    parser = Parser(prog="slipway", description="Slipway: serve language models on your own GPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in arguments if word in COMMANDS), None)
    Parser.command = asked or ""
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == asked:
            importlib.import_module(module).add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        code: int = importlib.import_module(COMMANDS[options.command][0]).run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has read enough (`slipway … | head`): no traceback, and nothing more to flush at exit.
        _drop_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        if Parser.json_asked:
            _print_only_finding("interrupted", "It was interrupted before it had an answer.", "Run it again.")
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("slipway: there is no space left for the output. Free some, and run it again.\n")
        _drop_output()
        return 2
    return code


def _drop_output() -> None:
    """Leave nothing to flush at exit, which would end in a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
