"""Slots of one engine (or host) as columns: how roll-ups are added up, and how an hour of them is packed into one row.

Slots are short spans of time, of 1, 10 or 60 seconds or more. A slot that nothing is known of isn't there: a gap. In a
slot, a column's value may be NaN: unknown. Percentiles are never stored: what is stored are the buckets' counts.

Names of columns: `seconds` and `restarts`; `now.X`, the mean of a gauge over the slot, and `max.X`, its highest value;
`sum.X`, the growth of a count; for each histogram `H.total`, the sum of the observations, and `H.i`, how many fell into
bucket i alone (a bucket without any has no column), with the bounds in `bounds`.
"""

import json
import math
import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from console.telemetry.frames import Frame
from workers.vllm.histograms import Histogram

NOW, MAX, SUM = "now.", "max.", "sum."
_NAN = math.nan
_WHOLE_TYPES = (("B", 1 << 8), ("H", 1 << 16), ("I", 1 << 32))
_TYPES = frozenset("BHIf")


@dataclass
class Columns:
    """Slots that begin at `starts` (seconds since the epoch, rising); every list of `values` has one value for each."""

    starts: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    bounds: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def column(self, name: str) -> Sequence[float]:
        """A column; NaN throughout if there is none of this name."""
        return self.values.get(name) or [_NAN] * len(self.starts)

    def between(self, first: int, end: int) -> "Columns":
        """The slots that begin at or after `first` and before `end`."""
        low, high = bisect_left(self.starts, first), bisect_left(self.starts, end)
        return Columns(
            self.starts[low:high], {name: column[low:high] for name, column in self.values.items()}, dict(self.bounds)
        )

    def extend(self, later: "Columns") -> None:
        """Add slots that come after all of ours; what begins before our end is left out, so nothing counts twice."""
        if self.starts:
            later = later.between(self.starts[-1] + 1, 1 << 62)
        if not later.starts:
            return
        later = self._with_our_bounds(later)
        for name in {*self.values, *later.values}:
            empty = 0.0 if _is_bucket(name) else _NAN
            ours = self.values.setdefault(name, [empty] * len(self.starts))
            ours.extend(later.values.get(name) or [empty] * len(later.starts))
        self.starts += later.starts

    def _with_our_bounds(self, later: "Columns") -> "Columns":
        """Where an engine's version has changed the buckets, both keep only the bounds that they share."""
        for name, theirs in later.bounds.items():
            ours = self.bounds.setdefault(name, theirs)
            if ours != theirs:
                shared = tuple(bound for bound in ours if bound in set(theirs))
                _coarsen(self, name, shared)
                _coarsen(later, name, shared)
        return later

    def regrouped(self, step: int) -> "Columns":
        """Slots of `step` seconds, on multiples of it, each the sum of those that begin in it."""
        if not self.starts:
            return Columns()
        keys = [start - start % step for start in self.starts]
        edges = [index for index in range(len(keys)) if index == 0 or keys[index] != keys[index - 1]]
        groups = list(zip(edges, [*edges[1:], len(keys)], strict=True))
        if len(groups) == len(keys):
            return Columns(keys, {name: list(column) for name, column in self.values.items()}, dict(self.bounds))
        seconds = self.column("seconds")
        values = {}
        for name, column in self.values.items():
            if name.startswith(NOW):
                values[name] = [_mean(column[low:high], seconds[low:high]) for low, high in groups]
            elif name.startswith(MAX):
                values[name] = [_highest(column[low:high]) for low, high in groups]
            else:
                values[name] = [_added(column[low:high]) for low, high in groups]
        return Columns([keys[low] for low in edges], values, dict(self.bounds))

    def histograms(self, name: str, *, window: int = 0) -> list[Histogram | None]:
        """A histogram for each slot, over the slot itself or the `window` seconds that end with it; None: not known."""
        totals = self.values.get(f"{name}.total")
        if totals is None or name not in self.bounds:
            return [None] * len(self.starts)
        bounds = self.bounds[name]
        known = [total == total for total in totals]
        first = [bisect_left(self.starts, start - window + 1) if window else at for at, start in enumerate(self.starts)]
        sums = list(accumulate((total if ok else 0.0 for total, ok in zip(totals, known, strict=True)), initial=0.0))
        running = {
            index: list(accumulate(self.values[f"{name}.{index}"], initial=0.0))
            for index in range(len(bounds))
            if f"{name}.{index}" in self.values
        }
        found: list[Histogram | None] = []
        for at, low in enumerate(first):
            if not known[at]:
                found.append(None)
                continue
            inside = [0.0] * len(bounds)
            for index, column in running.items():
                inside[index] = column[at + 1] - column[low]
            found.append(Histogram(bounds, tuple(accumulate(inside)), sums[at + 1] - sums[low]))
        return found

    def pack(self, origin: int) -> bytes:
        """All of it, compressed; slots must begin within 65,535 s after `origin`."""
        columns, parts = [], [_little(array("H", (start - origin for start in self.starts)))]
        for name, column in sorted(self.values.items()):
            code = _type_of(column)
            columns.append([name, code])
            parts.append(_little(array(code, map(int, column) if code != "f" else column)))
        bounds = {name: values[:-1] for name, values in self.bounds.items()}
        head = json.dumps({"slots": len(self.starts), "columns": columns, "bounds": bounds}).encode()
        return zlib.compress(struct.pack("<I", len(head)) + head + b"".join(parts), 6)

    @classmethod
    def unpack(cls, packed: bytes, origin: int) -> "Columns":
        """The opposite of `pack`. Raises ValueError if it is none of ours."""
        try:
            raw = zlib.decompress(packed)
            (size,) = struct.unpack_from("<I", raw)
            head = json.loads(raw[4 : 4 + size])
            at, slots = 4 + size, head["slots"]
            offsets, at = _read(raw, at, "H", slots)
            values = {}
            for name, code in head["columns"]:
                column, at = _read(raw, at, code, slots)
                values[name] = [float(value) for value in column]
            bounds = {name: (*values, math.inf) for name, values in head["bounds"].items()}
        except (zlib.error, struct.error, KeyError, TypeError) as error:
            raise ValueError(f"not a packed hour: {error}") from error
        return cls([origin + int(offset) for offset in offsets], values, bounds)


def of_frames(frames: Iterable[tuple[int, Frame]]) -> Columns:
    """One slot for each frame; the number is the second in which it ended."""
    found = list(frames)
    columns = Columns()
    for _start, frame in found:
        for name, window in frame.histograms.items():
            columns.bounds.setdefault(name, window.bounds)
    for at, (start, frame) in enumerate(found):
        columns.starts.append(start)
        for name, value in _flat(frame, columns.bounds).items():
            empty = 0.0 if _is_bucket(name) else _NAN
            columns.values.setdefault(name, [empty] * len(found))[at] = value
    return columns


def _flat(frame: Frame, bounds: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    values = {"seconds": frame.seconds, "restarts": float(frame.restarted)}
    for name, value in frame.now.items():
        values[NOW + name] = values[MAX + name] = value
    values |= {SUM + name: value for name, value in frame.grown.items()}
    for name, window in frame.histograms.items():
        if window.bounds != bounds[name]:
            continue  # an upgrade within these few seconds: its first second is left out
        values[f"{name}.total"] = window.total
        for index, count in window.buckets.items():
            values[f"{name}.{index}"] = count
    return values


def _is_bucket(name: str) -> bool:
    return name.rpartition(".")[2].isdigit()


def _coarsen(columns: Columns, name: str, shared: tuple[float, ...]) -> None:
    """Put the observations of each bucket into the next one that stays."""
    old, columns.bounds[name] = columns.bounds[name], shared
    if old == shared:
        return
    merged: dict[str, list[float]] = {}
    for index, bound in enumerate(old):
        column = columns.values.pop(f"{name}.{index}", None)
        if column is not None:
            key = f"{name}.{bisect_left(shared, bound)}"
            merged[key] = [sum(pair) for pair in zip(merged[key], column, strict=True)] if key in merged else column
    columns.values |= merged


def _mean(values: Sequence[float], seconds: Sequence[float]) -> float:
    known = [(value, weight) for value, weight in zip(values, seconds, strict=True) if not math.isnan(value)]
    weight = sum(weight for _value, weight in known)
    return sum(value * share for value, share in known) / weight if weight > 0 else _NAN


def _highest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=_NAN)


def _added(values: Sequence[float]) -> float:
    total = math.fsum(values)
    if not math.isnan(total):
        return total
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else _NAN


def _type_of(column: Sequence[float]) -> str:
    if all(value >= 0 and value == int(value) for value in column if not math.isnan(value)) and not any(
        map(math.isnan, column)
    ):
        highest = max(column, default=0)
        return next((code for code, limit in _WHOLE_TYPES if highest < limit), "f")
    return "f"


def _little(values: "array[float] | array[int]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _read(raw: bytes, at: int, code: str, count: int) -> tuple[Sequence[float], int]:
    if code not in _TYPES:
        raise ValueError(f"unknown type {code!r}")
    values: array[float] = array(code)
    end = at + values.itemsize * count
    if end > len(raw):
        raise ValueError("cut off")
    values.frombytes(raw[at:end])
    if sys.byteorder == "big":
        values.byteswap()
    return values, end
