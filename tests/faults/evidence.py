"""Write docs/evidence/faults.md from what pytest wrote: `python -m tests.faults.evidence RUN.xml …`.

Run the rows with `-o junit_logging=system-out --junitxml RUN.xml`; a row that several files name counts as the last one says.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.faults.table import ROWS

_NOTICED = re.compile(r"noticed after ([\d.]+) s")
TARGET = Path(__file__).resolve().parents[2] / "docs/evidence/faults.md"


@dataclass(frozen=True)
class Outcome:
    """How a row ended, and after how long its fault was told where the test measures that."""

    result: str
    noticed: str
    seconds: float


def outcomes(files: Iterable[Path]) -> dict[tuple[str, str], Outcome]:
    """By the test's name and its engine: `standin`, `vllm`, or empty where no engine is needed."""
    found = {}
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):
            name, _bracket, parameter = case.get("name", "").partition("[")
            noticed = _NOTICED.findall(case.findtext("system-out") or "")
            failed = case.find("failure") is not None or case.find("error") is not None
            result = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
            said = f"{max(map(float, noticed)):.2f} s" if noticed else "–"
            found[name, parameter.rstrip("]")] = Outcome(result, said, float(case.get("time", 0)))
    return found


def document(found: dict[tuple[str, str], Outcome]) -> str:
    """The page: one line for each row of the table, with both engines."""
    head = (
        "# Faults, as they were tried\n\n"
        "Each row of [the fault table](../faults.md) with the stand-in engine and with a real vLLM (`make test-all`). "
        "“Told after” is the\nlongest time from the fault to the first report of it, where the row measures it.\n\n"
        "| Fault | Ends in | Stand-in | Told after | Real vLLM | Told after |\n|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in ROWS:
        cells = []
        for engine in ("standin", "vllm"):
            outcome = found.get((row.test, engine)) or (found.get((row.test, "")) if engine == "standin" else None)
            missing = "not tried here" if row.real or engine == "standin" else "needs no engine"
            cells += [outcome.result, outcome.noticed] if outcome else [missing, "–"]
        lines.append(f"| {row.fault} | {row.final} | {' | '.join(cells)} |\n")
    return head + "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(document(outcomes(map(Path, sys.argv[1:]))), encoding="utf-8")
