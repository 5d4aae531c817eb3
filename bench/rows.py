"""One row for each number that is promised."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One number. `value` None: it could not be measured, and `reference` says why; that is never `ok`."""

    name: str
    value: float | None
    unit: str
    target: float | None
    """None: shown, nothing promised."""
    better: Literal["lower", "higher"]
    reference: str
    """What the number was compared with, or under which conditions it was taken, in the same run."""

    @property
    def ok(self) -> bool:
        """True if the promise is kept."""
        if self.value is None:
            return False
        if self.target is None:
            return True
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def as_json(self) -> dict[str, object]:
        """The row as it stands in the file."""
        return {**asdict(self), "ok": self.ok}

    def line(self) -> str:
        """The row for a terminal."""
        value = "not measured" if self.value is None else f"{self.value:g} {self.unit}"
        target = "" if self.target is None else f" (target {'≤' if self.better == 'lower' else '≥'} {self.target:g})"
        return f"{'ok  ' if self.ok else 'MISS'} {self.name}: {value}{target}  {self.reference}"


def write(rows: Iterable[Row], path: Path) -> None:
    """Write all rows, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps([row.as_json() for row in rows], indent=2, ensure_ascii=False) + "\n")
    draft.replace(path)
