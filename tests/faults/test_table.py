"""The page about faults says what the tests try, no more and no less."""

import ast
from pathlib import Path

from tests.faults.table import ROWS, document

HERE = Path(__file__).parent


def _tests_here() -> set[str]:
    found = set()
    for file in HERE.glob("test_*.py"):
        if file.name != Path(__file__).name:
            tree = ast.parse(file.read_text())
            found |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"}
    return found


def test_every_fault_has_its_test_and_every_test_its_row() -> None:
    assert {row.test for row in ROWS} == _tests_here()


def test_the_page_is_made_from_the_table() -> None:
    assert (HERE.parents[1] / "docs/faults.md").read_text() == document()
