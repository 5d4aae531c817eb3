"""Slots: how many long steps run at once, so that short ones always find a free worker process.

A host has one queue and one pool of worker processes. An installation or a download that finds no free slot of its
class does not wait in a process: its order is parked in a file, and whoever frees a slot runs the oldest one.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.contracts import StepKind, StepOrder
from workers.host.files import read_json, write_json

SLOTS: dict[StepKind, tuple[str, int]] = {
    StepKind.INSTALL_ENGINE: ("install", 1),
    StepKind.ADOPT_ENGINE: ("install", 1),
    StepKind.CHECK_ENGINE: ("install", 1),
    StepKind.MAKE_DEMO_MODEL: ("install", 1),
    StepKind.CONTROL_RUN: ("install", 1),
    StepKind.INSTALL_QUANTIZER: ("install", 1),
    StepKind.QUANTIZE: ("quantize", 1),
    StepKind.DOWNLOAD: ("download", 2),
    StepKind.VERIFY: ("read", 2),
    StepKind.QUALITY: ("benchmark", 2),
    StepKind.BENCHMARK: ("benchmark", 2),
}
"""Class and number of slots of each long step; the others are short or only wait."""

WORKER_PROCESSES = 11
"""Size of the pool: all slots together leave three for short steps."""


def run_in_slot(order: StepOrder, state_dir: Path, run: Callable[[StepOrder], None]) -> bool:
    """Run `order` and then every parked order of its class, oldest first; False if it was parked instead."""
    if order.kind not in SLOTS:
        run(order)
        return True
    slot_class, count = SLOTS[order.kind]
    parking = state_dir / "slots" / f"{slot_class}.parked"
    parking.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _slot(state_dir, slot_class, count) as free:
        if free:
            run(order)
            _run_parked(parking, run)
        else:
            write_json(parking / f"{order.step}.json", order.model_dump(mode="json"))
    if not free or any(parking.iterdir()):
        # Whoever held the slot may have looked for parked orders just before ours was written.
        with _slot(state_dir, slot_class, count) as now_free:
            if now_free:
                _run_parked(parking, run)
    return free


def parked_orders(state_dir: Path) -> list[StepOrder]:
    """Orders that wait for a slot."""
    found = (read_json(path) for path in sorted((state_dir / "slots").glob("*.parked/*.json")))
    return [StepOrder.model_validate(raw) for raw in found if raw is not None]


def parked_steps(state_dir: Path) -> list[int]:
    """Steps that wait for a slot."""
    return [order.step for order in parked_orders(state_dir)]


def unpark(state_dir: Path, step: int, fence: int) -> None:
    """Forget a parked order, since its step was cancelled up to `fence`."""
    for path in (state_dir / "slots").glob(f"*.parked/{step}.json"):
        if (raw := read_json(path)) is not None and raw["fence"] <= fence:
            path.unlink(missing_ok=True)


def _run_parked(parking: Path, run: Callable[[StepOrder], None]) -> None:
    while waiting := sorted(parking.glob("*.json"), key=_modified):
        oldest = waiting[0]
        raw = read_json(oldest)
        try:
            oldest.unlink()
        except FileNotFoundError:
            continue  # another process was faster, or it was cancelled
        if raw is not None:
            run(StepOrder.model_validate(raw))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def _slot(state_dir: Path, slot_class: str, count: int) -> Iterator[bool]:
    for number in range(count):
        descriptor = os.open(state_dir / "slots" / f"{slot_class}.{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield True
        finally:
            os.close(descriptor)
        return
    yield False
