"""A host with llm-compressor and a verified model, whose reports are played through the real ledger."""

from dataclasses import dataclass
from typing import Any

import pytest
import redis

from console.access.models import User
from console.catalog.models import Copy
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.quantization import services
from console.quantization.models import Quantization, Quantizer
from console.quantization.services import Order
from tests.factories import Fleet
from workers.contracts import StepFinished

TOLD = {
    "key": "llmcompressor-0.14.0", "version": "0.14.0", "python": "/opt/llmc/bin/python", "size_bytes": 5 * 10**9,
    "details": {"torch": "2.13.0", "gpus": 0},
}  # fmt: skip


@dataclass
class Shop:
    """Where models are made."""

    fleet: Fleet
    admin: User

    @property
    def copy(self) -> Copy:
        return Copy.objects.select_related("revision__model", "host").get(pk=self.fleet.copy.pk)

    def bring(self) -> Quantizer:
        self.end(services.install(self.fleet.host, actor=self.admin), "install_quantizer", **TOLD)
        return Quantizer.objects.get()

    def end(self, job: Job, kind: str, *, failure: dict[str, str] | None = None, **result: Any) -> Step:
        step = job.steps.select_related("job", "host").get(kind=kind)
        jobs.started(step)
        outcome = {"outcome": "failed", "failure": failure} if failure else {"outcome": "succeeded", "result": result}
        jobs.finished(step, StepFinished.model_validate({"step": step.pk, "fence": step.fence, **outcome}))
        return Step.objects.get(pk=step.pk)

    def order(self, **changes: Any) -> Order:
        given: dict[str, Any] = {
            "control": self.copy,
            "quantizer": Quantizer.objects.get(),
            "scheme": "FP8_DYNAMIC",
            "name": "Small one 1.5",
        }
        return Order(**(given | changes))

    def ask(self, **changes: Any) -> Quantization:
        return services.quantize(self.order(**changes), actor=self.admin, reason="smaller")

    def make(self, **changes: Any) -> Quantization:
        """Ask, and let the host make and verify it."""
        row = self.ask(**changes)
        assert row.job
        self.end(row.job, "quantize", model_path="/models/Small-one-1.5", size_bytes=60, source_bytes=100)
        self.end(row.job, "verify", model_path="/models/Small-one-1.5", files=3, size_bytes=60, seconds=1.0,
                 details={"quantization": "compressed-tensors"})  # fmt: skip
        return Quantization.objects.select_related("made__revision__model", "job").get(pk=row.pk)


@pytest.fixture
def shop(db: None, fleet: Fleet, admin: User, broker: redis.Redis) -> Shop:
    return Shop(fleet, admin)
