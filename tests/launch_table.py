"""A pytest plugin that keeps what real launches became: `pytest -p tests.launch_table --launch-table FILE`.

A test of a launch records a `LaunchRow` as its property "launch". Rows of earlier runs stay in the file until the same
launch is run again, so that launches, each of which takes a minute, may be run one by one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

HEAD = """# Planned and launched

Each row is a real launch of a CPU engine with 256 MiB of KV cache (or the least that serves one request), a context of
2,048 tokens and 512 batched tokens, beside the plan made of the same files. Tokens and blocks must be equal, weights
within 1 %: the rows are tests (`tests/vllm/memory/test_live.py`), written by
`pytest -p tests.launch_table --launch-table docs/evidence/memory.md`.

| vLLM | model | launch | tokens planned | logged | blocks planned | made | weights planned | loaded | off |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class LaunchRow:
    """One launch: what was planned, and what became of it; zero where nothing was launched, and `note` says why."""

    version: str
    model: str
    case: str
    planned_tokens: int
    planned_blocks: int
    planned_weights: int
    tokens: int = 0
    blocks: int = 0
    weights: int = 0
    note: str = ""

    @property
    def line(self) -> str:
        """The row of the table."""
        title = f"{self.case} ({self.note})" if self.note else self.case
        numbers = (
            self.planned_tokens,
            self.tokens,
            self.planned_blocks,
            self.blocks,
            self.planned_weights,
            self.weights,
        )
        off = f"{100 * (self.planned_weights / self.weights - 1):+.2f} %" if self.weights else "–"
        cells = [f"{number:,}" if number else "–" for number in numbers]
        return f"| {self.version} | {self.model} | {title} | {' | '.join(cells)} | {off} |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launch-table", type=Path, help="keep what launches became in this file")


class Table:
    """Collects the rows of a run and lays them over those of the file."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.rows: list[LaunchRow] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.failed:
            self.rows += [value for name, value in report.user_properties if isinstance(value, LaunchRow)]

    def pytest_sessionfinish(self) -> None:
        if not self.rows:
            return
        known = {_key(line): line for line in _lines_of(self.target)}
        known |= {_key(row.line): row.line for row in self.rows}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(HEAD + "".join(f"{line}\n" for _key_, line in sorted(known.items())))


def _lines_of(file: Path) -> Iterable[str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith("| 0.")]


def _key(line: str) -> tuple[str, ...]:
    version, model, title = (cell.strip() for cell in line.split("|")[1:4])
    return version, model, title.partition(" (")[0]


def pytest_configure(config: pytest.Config) -> None:
    if target := config.getoption("--launch-table"):
        config.pluginmanager.register(Table(target), "launch-table")
