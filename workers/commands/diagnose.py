"""`slipway diagnose LOG`: find the root cause in an engine's log.

Exit code 0 if a diagnosis was printed, whatever it says; 2 if the log couldn't be read or the command line is wrong.
"""

import argparse
import json
import sys
from pathlib import Path

from workers.vllm.diagnosis import Diagnosis, diagnose_file, diagnose_stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("log", metavar="LOG", help="the log of one start of an engine; - reads standard input")
    parser.add_argument(
        "--exit-code",
        type=int,
        metavar="N",
        help="exit code of the engine's main process if it ended; -N or 128+N for signal N",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; returns the exit code of the command."""
    try:
        diagnosis = (
            diagnose_stream(sys.stdin.buffer, options.exit_code)
            if options.log == "-"
            else diagnose_file(Path(options.log), options.exit_code)
        )
    except OSError as error:
        reason = f"can't read {options.log}: {error.strerror or error}"
        if options.json:
            print(json.dumps({"error": reason}, ensure_ascii=False))
        else:
            print(f"slipway diagnose: {reason}", file=sys.stderr)
        return 2
    print(json.dumps(diagnosis.as_dict(), indent=2, ensure_ascii=True) if options.json else _as_text(diagnosis))
    return 0


def _as_text(diagnosis: Diagnosis) -> str:
    lines = [
        f"{diagnosis.title}  [{diagnosis.code}, confidence {diagnosis.confidence:.0%}]",
        f"  {diagnosis.message}",
    ]
    if diagnosis.evidence:
        lines += ["", "Evidence:", *(f"  {item.line:>7}  {item.text[:400]}" for item in diagnosis.evidence)]
    lines += ["", "What to do:", f"  {diagnosis.fix}"]
    if diagnosis.also:
        lines += ["", "Also found, later in the log: " + ", ".join(diagnosis.also)]
    if diagnosis.links:
        lines += ["", "See:", *(f"  {link}" for link in diagnosis.links)]
    # The log may hold anything; a terminal or pipe that can't show it must not stop the answer.
    encoding = sys.stdout.encoding or "utf-8"
    return "\n".join(lines).encode(encoding, errors="replace").decode(encoding)
