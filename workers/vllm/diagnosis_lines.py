"""One line of an engine's log, freed from everything that was put around it on its way.

The same vLLM message reaches us bare, with Docker's, Kubernetes', journald's or the kernel's time stamp before it,
behind a compose or pod name, wrapped into JSON, coloured, or in an encoding nobody announced. The rules of the
diagnosis look only at what is left here: level, process and text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

# Beyond this a line is not read: base64 images and whole configurations go on for megabytes.
LONGEST_LINE = 16_384


class Level(IntEnum):
    """How serious a line says it is; BARE is a line without a level, such as a traceback on stderr."""

    INFO = 0
    WARNING = 1
    BARE = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class LogLine:
    """A cleaned line: its level, the process that wrote it (as vLLM names it, else empty), and its text.

    The text keeps its indentation, since that tells a traceback's frames from its exception.
    """

    level: Level
    process: str
    text: str


_LEVELS = {
    "DEBUG": Level.INFO,
    "INFO": Level.INFO,
    "TRACE": Level.INFO,
    "I": Level.INFO,
    "WARNING": Level.WARNING,
    "WARN": Level.WARNING,
    "W": Level.WARNING,
    "ERROR": Level.ERROR,
    "CRITICAL": Level.ERROR,
    "FATAL": Level.ERROR,
    "E": Level.ERROR,
    "F": Level.ERROR,
}
# With or without the escape character: some collectors drop only that one.
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\[\d{1,2}(?:;\d{1,3})*m")
_TRANSPORT = re.compile(
    r"""(?:
      \[pod/[^\]]+\]\s                                                                       # kubectl logs --prefix
    | [\w.-]+\s+\|\s                                                                         # docker compose
    | \d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err)\s[FP]\s)?  # docker, CRI
    | \[\d{4}-\d\d-\d\dT[^\]]+\]\s
    | [A-Z][a-z]{2}\s[\s\d]\d\s\d\d:\d\d:\d\d\s\S+\s[\w./@-]+(?:\[\d+\])?:\s                 # journald, syslog
    | \[\s*\d+\.\d+\]\s                                                                      # the kernel
    )""",
    re.VERBOSE,
)
_PROCESS = re.compile(r"\s*\((?P<name>[A-Za-z][\w-]*)(?:[ =][^()]*)? pid=\d+[^()]*\)\s?|\s*\[rank\d+\]:\s?")
_VLLM = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:\[[^\]]+\]|[\w.]+:\d+\]) ?"
)
_OTHER = re.compile(
    r"(?P<uvicorn>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+"
    r"|(?=\[(?P<torch>[IWEF])\d{3,4} )"
    r"|(?=\[(?P<old_torch>[IWEF]) \w+\.cpp:)"
    r"|(?=\S+:\d+:\d+ \[\d+\] .{0,60}?NCCL (?P<nccl>INFO|WARN|TRACE))"
    r"|(?=/\S+\.py:\d+: (?P<python>\w*Warning): )"
)


def clean(raw: bytes) -> Iterator[LogLine]:
    """The line or lines that `raw` stands for, one at least: several where a JSON log holds a whole traceback in one line.

    Takes any bytes, never raises. Zero bytes are dropped: they come from UTF-16 that was cut into lines by byte.
    """
    text = _COLOUR.sub("", raw[:LONGEST_LINE].replace(b"\0", b"").decode(errors="replace")).rstrip()
    # Progress bars overwrite themselves; what counts is the last thing that was on the line.
    text = text.rpartition("\r")[2]
    for _ in range(3):
        prefix = _TRANSPORT.match(text)
        if not prefix:
            break
        text = text[prefix.end() :]
    if text.startswith("{"):
        unwrapped = _unwrap(text)
        if unwrapped is not None:
            yield from unwrapped
            return
    yield _parse(text, Level.BARE)


def _parse(text: str, level: Level) -> LogLine:
    process = ""
    while (prefix := _PROCESS.match(text)) and prefix.end():
        process = prefix["name"] or process
        text = text[prefix.end() :]
    if header := _VLLM.match(text):
        return LogLine(_LEVELS[header["level"]], process, text[header.end() :])
    if (header := _OTHER.match(text)) and header.lastgroup:
        word = header[header.lastgroup]
        return LogLine(_LEVELS.get(word, Level.WARNING), process, text[header.end() :])
    return LogLine(level, process, text)


def _unwrap(text: str) -> list[LogLine] | None:
    """The lines inside a JSON log record (Docker's json-file driver, vLLM's and others' JSON formatters)."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    message = next(
        (record[key] for key in ("log", "message", "msg", "MESSAGE") if isinstance(record.get(key), str)), None
    )
    if message is None:
        return None
    details = next(
        (record[key] for key in ("exc_info", "exception", "traceback") if isinstance(record.get(key), str)), ""
    )
    word = next((record[key] for key in ("levelname", "level", "severity") if isinstance(record.get(key), str)), "")
    level = _LEVELS.get(word.upper(), Level.BARE)
    lines = [line for line in f"{message}\n{details}".splitlines() if line.strip()] or [""]
    return [_parse(_COLOUR.sub("", line).rstrip(), level) for line in lines]
