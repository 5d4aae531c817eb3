"""An engine on which steps that measure it are run."""

import os
from typing import Any

from tests.host.conftest import HostUnderTest, wait_for
from workers.benchmark_payloads import Run
from workers.contracts import Body, StepFinished, StepKind, StepOrder, StepPart
from workers.host.bring_up import Target, wait_until_listening
from workers.host.drivers.shim import ShimDriver
from workers.host.engines import find_engine
from workers.host.launching import prepare_launch
from workers.host.own_bring_up import OwnProgress
from workers.host.step_runner import run_order


class Measured:
    """One engine under a shim, and benchmark steps run against it in this process."""

    def __init__(self, host: HostUnderTest) -> None:
        self.host = host
        self.order = host.order(bring_up="job")
        self.files = host.files(self.order)
        self.reports: list[Body] = []
        config = host.config
        launch = prepare_launch(
            self.order, find_engine(config.engines_dir, "standin"), config.private_keys, os.environ,
            state_dir=config.state_dir,
        )  # fmt: skip
        self.files.write_order(self.order, launch.spec)
        ShimDriver().start(self.files, launch)
        wait_for(self.files.state)
        wait_until_listening(Target(self.files, 1, config.private_keys), OwnProgress(60))

    def payload(self, **changes: Any) -> dict[str, Any]:
        return {
            "instance": str(self.order.instance), "engine": "standin", "tokenizer_path": "model",
            "devices": ["cpu"], "workload": {"output_tokens": 6},
            "loads": {"values": [1, 2], "requests": 4, "repeats": 2, "warmups": 1},
            "targets": {"ttft_ms": 5000},
        } | changes  # fmt: skip

    def step(
        self, payload: dict[str, Any], *, kind: StepKind = StepKind.BENCHMARK, fence: int = 1, step: int = 7,
        sealed: dict[str, str] | None = None,
    ) -> StepFinished:  # fmt: skip
        order = StepOrder(step=step, job=1, fence=fence, kind=kind, deadline_seconds=120, payload=payload,
                          sealed=sealed or {})  # fmt: skip
        run_order(order, self.host.config, self.reports.append)
        return self.finished()

    def finished(self) -> StepFinished:
        return next(one for one in reversed(self.reports) if isinstance(one, StepFinished))

    def parts(self) -> list[StepPart]:
        return [one for one in self.reports if isinstance(one, StepPart)]

    def runs(self) -> list[Run]:
        return [Run.model_validate(part.content) for part in self.parts()]
