"""A host without a broker, whose steps are run in this process, and a hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.hub import Hub
from workers.contracts import StepFinished, StepKind, StepOrder
from workers.host.step_files import StepFiles
from workers.host.step_runner import cancel_step, run_order
from workers.host_config import HostConfig
from workers.sealing import generate_key_pair, public_key_of, seal
from workers.weights import download, download_job


class Bench:
    """Runs steps and keeps what they reported."""

    def __init__(self, folder: Path) -> None:
        private, _public = generate_key_pair()
        self.config = HostConfig(
            name="bench",
            redis_url="redis://127.0.0.1:1",
            private_key=private,
            state_dir=folder / "state",
            engines_dir=folder / "engines",
            models_dir=folder / "models",
        )
        for directory in (self.config.state_dir, self.config.models_dir):
            directory.mkdir()
        self.reports: list[Any] = []

    def run(
        self,
        kind: StepKind,
        payload: dict[str, Any],
        *,
        fence: int = 1,
        token: str = "",
        deadline: float = 60,
        sealed: dict[str, str] | None = None,
    ) -> StepFinished:
        if token:
            sealed = {"hub_token": seal(public_key_of(self.config.private_key), token)}
        order = StepOrder(
            step=7, job=1, fence=fence, kind=kind, deadline_seconds=deadline, payload=payload, sealed=sealed or {}
        )
        run_order(order, self.config, self.reports.append)
        finished = self.reports[-1]
        assert isinstance(finished, StepFinished)
        return finished

    def cancel(self, fence: int = 1) -> None:
        cancel_step(StepFiles(self.config.state_dir, 7), fence, self.reports.append)

    def texts(self) -> list[str]:
        return [report.text for report in self.reports if report.kind == "step.event"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_job, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(download, "_BUSY_SECONDS", 0.05)
    return Bench(tmp_path)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running
