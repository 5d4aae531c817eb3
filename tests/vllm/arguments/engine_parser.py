"""Run by an engine's own Python: parse each command line of stdin (a JSON array per line) as `vllm serve` would.

Prints one JSON line per command line: {"ok": true} or {"ok": false, "error": …}. Standard library and vLLM only.
"""

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path


def load(path: Path):
    """Import `dump_arguments.py` by its path: the engine's Python doesn't know Slipway."""
    spec = importlib.util.spec_from_file_location("dump_arguments", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(tool: str) -> None:
    """Build the engine's parser once, then parse line after line."""
    answer = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        dump = load(Path(tool))
        dump.assume_some_device()
        parser_class = dump.first_attribute(dump.FLEXIBLE_PARSER_MODULES, "FlexibleArgumentParser")
        parser = dump.first_attribute(dump.PARSER_MODULES, "make_arg_parser")(parser_class(prog="vllm serve"))
        version = importlib.import_module("vllm").__version__
    answer.write(json.dumps({"vllm": version}) + "\n")
    for line in sys.stdin:
        noise = io.StringIO()
        result = {"ok": True}
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                parser.parse_args(json.loads(line))
        except SystemExit:
            result = {"ok": False, "error": noise.getvalue().strip()[-400:]}
        except Exception as error:
            result = {"ok": False, "error": repr(error)}
        answer.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
