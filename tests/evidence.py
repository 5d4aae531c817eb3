"""A pytest plugin that writes a table of all tests: `pytest -p tests.evidence --evidence FILE`."""

import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--evidence", type=Path, help="write a table of all tests to this file")


class Rows:
    """Collects one row for each test."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.results: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before, seconds = self.results.get(report.nodeid, ("passed", 0.0))
        result = report.outcome if report.outcome != "passed" else before
        if report.skipped and isinstance(report.longrepr, tuple):
            result = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
        self.results[report.nodeid] = (result, seconds + report.duration)

    def pytest_sessionfinish(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text("\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterable[str]:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        counts: dict[str, int] = {}
        for result, _seconds in self.results.values():
            word = result.partition(":")[0]
            counts[word] = counts.get(word, 0) + 1
        yield "# Tests"
        yield ""
        yield f"Written by `make test-all` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit or 'unknown'},"
        yield (
            f"CPython {platform.python_version()}: "
            + ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
            + "."
        )
        yield ""
        yield "| Row | Result | Seconds |"
        yield "|---|---|---:|"
        for row, (result, seconds) in sorted(self.results.items()):
            yield f"| {row.replace('|', '¦')} | {result.replace('|', '¦')} | {seconds:.2f} |"


def pytest_configure(config: pytest.Config) -> None:
    if target := config.getoption("--evidence"):
        config.pluginmanager.register(Rows(target), "evidence-rows")
