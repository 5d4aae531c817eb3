"""`python -m bench [--seconds N] [NAME…]`: all measurements, or those named (arguments, pages, lines, …)."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import arguments, benchmarks, gateway, lines, pages, plan, start, telemetry, weights
from bench.console import Bench
from bench.rows import Row, write
from tests.live.harness import LiveConsole

TARGET = Path(__file__).resolve().parent.parent / "build" / "bench.json"
MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "arguments": arguments.measure,
    "start": start.measure,
    "lines": lines.measure,
    "pages": pages.measure,
    "plan": plan.measure,
    "telemetry": telemetry.measure,
    "weights": weights.measure,
    "gateway": gateway.measure,
    "benchmarks": benchmarks.measure,
}


def main(words: list[str]) -> int:
    """Measure, print, write; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="how long hundreds of engines are watched (telemetry)")
    given = parser.parse_args(words)
    names: list[str] = given.names
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        print(f"bench: no measurement is called {unknown[0]}; there are {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        bench = Bench(LiveConsole(Path(folder)), given.seconds)
        try:
            bench.prepare()
            for name in names or MEASUREMENTS:
                print(f"bench: measuring {name}", file=sys.stderr, flush=True)
                rows += attempted(name, bench)
        finally:
            bench.console.down()
    write(rows, TARGET)
    print(*(row.line() for row in rows), sep="\n")
    print(f"written to {TARGET}", file=sys.stderr)
    return 0 if all(row.ok for row in rows) else 1


def attempted(name: str, bench: Bench) -> list[Row]:
    """A measurement that fails is a row, too, so that the others are still taken."""
    try:
        return MEASUREMENTS[name](bench)
    except Exception as error:  # whatever went wrong belongs into the row
        return [Row(name, None, "", None, "lower", f"not measured: {error}"[:500])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
