"""`slipway verify PATH`: proves a model directory whole before a launch. No Django, no network, no engine.

Exit code 0: no error (warnings may be there); 1: at least one error; 2: the command line was wrong.
"""

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.weights.digests import ChecksumFileError, Expected, read_checksum_file
from workers.weights.findings import Finding, Severity
from workers.weights.verification import Verification, verify_directory

_EXIT_OK, _EXIT_ERRORS, _EXIT_USAGE, _EXIT_INTERRUPTED = 0, 1, 2, 130
_MARKS = {Severity.ERROR: "error  ", Severity.WARNING: "warning", Severity.INFO: "note   "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", metavar="PATH", help="the model directory")
    parser.add_argument(
        "--checksums",
        metavar="FILE",
        action="append",
        default=[],
        help="published checksums (sha256sum or md5sum format, or a manifest); may be given several times",
    )
    parser.add_argument("--fast", action="store_true", help="read headers only, hash nothing")
    parser.add_argument("--values", action="store_true", help="also read the numbers: NaN, all zero, bad scales")
    parser.add_argument(
        "--architectures", metavar="FILE", help="architectures that the engine supports (JSON list or lines)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(options: argparse.Namespace) -> int:
    """Verify and print; returns the exit code."""
    try:
        checksums = [item for file in options.checksums for item in _checksums(file)]
        architectures = _architectures(options.architectures)
    except ChecksumFileError as error:
        fix = "Check the file's path and content."
        _print_failure(options, Finding("checksum.file_invalid", Severity.ERROR, None, f"{error}.", fix))
        return _EXIT_USAGE
    try:
        with _terminated_as_interrupted():
            verification = verify_directory(
                options.path,
                checksums=checksums,
                hash_files=not options.fast,
                read_values=options.values,
                supported_architectures=architectures,
                progress=_Progress() if sys.stderr.isatty() else None,
            )
    except KeyboardInterrupt:
        message = "The verification was interrupted; the model was not proven sound."
        _print_failure(options, Finding("verify.interrupted", Severity.ERROR, None, message, "Run it again."))
        return _EXIT_INTERRUPTED
    except Exception as error:  # A defect of ours must still give one JSON object.
        message = f"The verification itself failed: {type(error).__name__}: {error}."
        fix = "Please report this; the model was not proven sound."
        _print_failure(options, Finding("verify.internal_error", Severity.ERROR, None, message, fix))
        return _EXIT_ERRORS
    if options.json:
        print(json.dumps(verification.as_json(), allow_nan=False))
    else:
        _print_report(verification)
    return _EXIT_OK if verification.ok else _EXIT_ERRORS


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the verification as Ctrl-C does: with its one object on stdout."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checksums(file: str) -> list[Expected]:
    path = Path(file)
    alone = path.name.rsplit(".", 1)[0]
    return read_checksum_file(path, source=path.name, alone_for=alone)


def _architectures(file: str | None) -> list[str] | None:
    if file is None:
        return None
    try:
        text = Path(file).read_text(encoding="utf-8")
        names = json.loads(text) if text.lstrip().startswith("[") else text.split()
    except OSError as error:
        raise ChecksumFileError(f"{file} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ChecksumFileError(f"{file} isn't a list of architectures: {error}") from None
    return [str(name) for name in names]


class _Progress:
    """Shows how far the reading is, on stderr, at most five times a second."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()

    def __call__(self, done: int, total: int, file: str) -> None:
        now = time.monotonic()
        if now - self._shown < 0.2 and done < total:
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-3)
        end = "\n" if done >= total else ""
        text = f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s  {_plain(file)[:60]:60}"
        print(text, end=end, file=sys.stderr, flush=True)


def _plain(text: str) -> str:
    """Text that any terminal's encoding can show."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _print_failure(options: argparse.Namespace, finding: Finding) -> None:
    verification = Verification(options.path, (finding,), {"errors": 1, "warnings": 0, "infos": 0})
    if options.json:
        print(json.dumps(verification.as_json()))
    else:
        _print_report(verification)


def _print_report(verification: Verification) -> None:
    summary = verification.summary
    print(_plain(verification.path))
    if summary.get("files"):
        size = summary["bytes"] / 1e9
        how = "hashed" if summary["hashed"] else "headers only, nothing hashed"
        tensors = f"{summary.get('tensors', 0):,} tensors"
        model = ", ".join(summary.get("architectures", [])) or summary.get("kind", "model")
        quantised = f", {summary['quantization']}" if summary.get("quantization") else ""
        print(_plain(f"  {model}{quantised}: {summary['files']:,} files, {size:,.2f} GB, {tensors} ({how})"))
        print(_plain(f"  checked by {summary.get('checked_by')} in {summary['seconds']:.1f} s"))
    for finding in verification.findings:
        where = f" in {finding.file}" if finding.file else ""
        print(_plain(f"\n  {_MARKS[finding.severity]} {finding.code}{where}"))
        print(_plain(f"    {finding.message}"))
        print(_plain(f"    Next: {finding.fix}"))
    print()
    print(_verdict(verification))


def _verdict(verification: Verification) -> str:
    errors, warnings = verification.summary["errors"], verification.summary["warnings"]
    noted = f" {warnings} warning{'s' if warnings != 1 else ''} to read." if warnings else ""
    if verification.ok:
        return f"  Sound: nothing stands against a launch.{noted}"
    return f"  Not sound: {errors} error{'s' if errors != 1 else ''} to solve before a launch.{noted}"
