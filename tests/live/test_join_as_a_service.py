"""A machine with systemd joins as a service and is upgraded from its page: tests/live/joined_as_a_service.py, in there."""

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


def test_a_host_joins_as_a_service_and_its_agent_is_upgraded_from_the_page(tmp_path: Path, wheels: Path) -> None:
    box = SystemdBox(tmp_path, [Path("/tmp").resolve(), ROOT])
    try:
        box.start()
        inside = "tests/live/joined_as_a_service.py"
        done = box.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", inside],
            seconds=1400, SLIPWAY_TEST_WHEELS=str(wheels),
        )  # fmt: skip
    finally:
        box.stop()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "6 passed" in done.stdout
