"""Machines with systemd join as services: as a host, which is upgraded from its page, and as a gateway.

What happens inside that systemd is in tests/live/joined_as_a_service.py and tests/live/gateway_as_a_service.py.
"""

import sys
from pathlib import Path

import pytest

from tests.host.systemd_box import SystemdBox, why_not
from tests.live.harness import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


@pytest.mark.parametrize(("inside", "count"), [("joined_as_a_service.py", 6), ("gateway_as_a_service.py", 4)])
def test_it_joins_as_a_service(tmp_path: Path, wheels: Path, inside: str, count: int) -> None:
    box = SystemdBox(tmp_path, [Path("/tmp").resolve(), ROOT])
    try:
        box.start()
        done = box.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/live/{inside}"],
            seconds=1400, SLIPWAY_TEST_WHEELS=str(wheels),
        )  # fmt: skip
    finally:
        box.stop()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{count} passed" in done.stdout
