"""The lengths of requests: from what engines count to a suggestion in the deploy form."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from console.deployments import fitting
from console.deployments.models import Instance
from console.fleet.models import Device
from console.telemetry import request_lengths
from console.telemetry.columns import of_frames
from console.telemetry.frames import frame_between
from console.telemetry.models import COARSE_SECONDS, HOUR, MetricsHour
from tests.factories import Fleet
from tests.telemetry.samples import FakeLoad

pytestmark = pytest.mark.django_db
GIB = 2**30
LLAMA = Path(__file__).parents[1] / "vllm" / "memory" / "public" / "llama-3-8b.json"


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    cache.clear()


def served(instance: Instance, *requests: tuple[int, int, int]) -> None:
    """An hour in which `requests` were answered: how many, of how many prompt tokens and answered tokens."""
    begins = int(time.time()) // HOUR * HOUR - HOUR
    load = FakeLoad()
    before = load.sample(0)
    for count, prompt, tokens in requests:
        load.answer(count, prompt=prompt, tokens=tokens)
    frame = frame_between(before, load.sample(COARSE_SECONDS))
    assert frame
    packed = of_frames([(begins, frame)]).pack(begins)
    MetricsHour.objects.create(instance=instance, resolution_seconds=COARSE_SECONDS, begins_at=begins, packed=packed)


def test_a_bound_of_95_percent_is_made_of_prompts_and_answers(fleet: Fleet) -> None:
    fleet.deploy()
    served(Instance.objects.get(), (980, 4800, 400), (20, 15_000, 4000))
    found = request_lengths.of_model(fleet.copy.revision.model)
    assert found
    assert found.requests == 1000
    # 97.5 % of the prompts lie in the bucket up to 5,000, of the answers in the one up to 500.
    assert 5200 <= found.p95_tokens <= 5500


@pytest.mark.parametrize("requests", [[], [(99, 100, 10)], [(900, 100, 10), (100, 25_000, 10)]],
                         ids=["none", "too few", "longer than any bucket"])  # fmt: skip
def test_where_little_is_known_nothing_is_said(fleet: Fleet, requests: list[tuple[int, int, int]]) -> None:
    fleet.deploy()
    if requests:
        served(Instance.objects.get(), *requests)
    assert request_lengths.of_model(fleet.copy.revision.model) is None


def test_the_form_says_that_a_shorter_context_is_enough(fleet: Fleet) -> None:
    config: dict[str, Any] = json.loads(LLAMA.read_text())["config"] | {"max_position_embeddings": 32_768}
    fleet.copy.revision.shape = {"config": config, "weights": None, "problems": []}
    fleet.copy.revision.save()
    fleet.engine.platform = "cuda"
    fleet.engine.save()
    Device.objects.create(
        host=fleet.host, kind="gpu", index=0, uuid="GPU-0", name="NVIDIA L40S", memory_total=44 * GIB,
        memory_free=44 * GIB, details={"capability": "8.9"},
    )  # fmt: skip
    fleet.deploy()
    served(Instance.objects.get(), (1000, 4800, 400))
    found = fitting.fit(fleet.copy, fleet.engine, values={}, environment={})
    [offer] = [one for one in found.offers if "of requests here" in one.text]
    assert offer.text.startswith("95 % of requests here used under 5,")
    assert "8,192 is enough" in offer.text
    assert dict(offer.sets) == {"arg_max_model_len": "8192"}
