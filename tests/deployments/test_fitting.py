"""The fit card's numbers: the shape that a host recorded, live memory, what earlier launches showed."""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from console.access.models import User
from console.common.spans import readable_bytes
from console.deployments import fit_presentation, fits_where, fitting, launches, measurements
from console.deployments.handlers import BringUpHandler
from console.deployments.models import Attempt, Instance, Launch
from console.fleet.models import Device, Engine, Host
from console.jobs.models import Job
from tests.factories import Fleet
from workers.contracts import AttemptMeasured, LaunchFacts, StepKind
from workers.vllm.memory import NEWEST_KNOWN_VERSION

pytestmark = pytest.mark.django_db
GIB = 2**30
PUBLIC = Path(__file__).parents[1] / "vllm" / "memory" / "public"
TOTAL = 47_663_399_567


def llama() -> dict[str, Any]:
    config = json.loads((PUBLIC / "llama-3-8b.json").read_text())
    return {"config": config.get("config", config), "weights": None, "problems": []}


@pytest.fixture
def gpus(fleet: Fleet) -> Fleet:
    """A host with two L40S, the second half taken by a stranger, and Llama-3-8B on it."""
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    for index, free in enumerate((TOTAL, TOTAL // 2)):
        Device.objects.create(
            host=fleet.host, kind="gpu", index=index, uuid=f"GPU-{index}", name="NVIDIA L40S", memory_total=TOTAL,
            memory_free=free, details={"capability": "8.9"},
        )  # fmt: skip
    fleet.engine.platform = "cuda"
    fleet.engine.save()
    return fleet


def fit(fleet: Fleet, **given: Any) -> fitting.Fit:
    return fitting.fit(fleet.copy, fleet.engine, **({"values": {}, "environment": {}} | given))


def test_the_emptiest_gpu_is_taken_and_the_plan_is_the_documented_one(gpus: Fleet) -> None:
    found = fit(gpus)
    assert [one.row.index for one in found.devices] == [0]
    assert found.plan
    assert found.plan.fits
    assert found.plan.kv_cache_tokens == 199_872  # docs/memory.md, Llama-3-8B on one L40S
    assert found.refusals == {}


def test_a_stranger_s_memory_is_seen_when_his_gpu_is_chosen(gpus: Fleet) -> None:
    found = fit(gpus, devices=list(Device.objects.filter(index=1)))
    assert set(found.refusals) == {"arg_gpu_memory_utilization"}
    assert any(offer.sets.get("arg_gpu_memory_utilization") for offer in found.offers)
    [bar] = fit_presentation.bars(found)
    assert {one.role for one in bar.segments} >= {"weights", "kv", "overhead", "others"}


@pytest.mark.parametrize("free", [TOTAL, TOTAL // 2])
def test_more_devices_are_a_button_only_where_the_host_has_them_free(gpus: Fleet, free: int) -> None:
    gpus.copy.revision.shape["config"]["max_position_embeddings"] = 1_000_000
    gpus.copy.revision.save()
    Device.objects.filter(index=1).update(memory_free=free)
    offer = next(one for one in fit(gpus, values={"max_model_len": 300_000}).offers if "2 × NVIDIA L40S" in one.text)
    if free < TOTAL:
        assert (offer.sets, "Fewer are chosen, or free now" in offer.text) == ({}, True)
    else:
        better = fit(gpus, values={"max_model_len": 300_000, "tensor_parallel_size": 2})
        assert offer.sets == {"arg_tensor_parallel_size": "2"}
        assert better.plan
        assert better.plan.fits


def test_a_context_that_is_too_large_is_refused_at_its_field_with_one_that_fits(gpus: Fleet) -> None:
    gpus.copy.revision.shape["config"]["max_position_embeddings"] = 1_000_000
    gpus.copy.revision.save()
    found = fit(gpus, values={"max_model_len": 900_000})
    assert "What would fit" in found.refusals["arg_max_model_len"]
    offer = next(one for one in found.offers if "arg_max_model_len" in one.sets)
    better = fit(gpus, values={"max_model_len": int(offer.sets["arg_max_model_len"])})
    assert better.plan
    assert better.plan.fits
    assert better.refusals == {}


def test_a_wanted_concurrency_leads_to_the_longest_context_for_it(gpus: Fleet) -> None:
    found = fit(gpus, wanted=100)
    offer = next(one for one in found.offers if "100 full requests" in one.text)
    context = int(offer.sets["arg_max_model_len"])
    reached = fit(gpus, values={"max_model_len": context}).plan
    longer = fit(gpus, values={"max_model_len": context + 512}).plan
    assert reached
    assert longer
    assert (reached.max_concurrency or 0) >= 100 > (longer.max_concurrency or 0)


def test_the_curve_falls_as_the_context_grows(gpus: Fleet) -> None:
    points = fit(gpus).curve
    assert len(points) > 10
    assert all(one[1] >= other[1] for one, other in itertools.pairwise(points))
    assert fit_presentation.curve(fit(gpus))


def test_arguments_change_the_sum_as_they_change_the_engine(gpus: Fleet) -> None:
    plain, halved = fit(gpus).plan, fit(gpus, values={"kv_cache_dtype": "fp8"}).plan
    assert plain
    assert halved
    assert halved.kv_bytes_per_token * 2 == plain.kv_bytes_per_token
    wide = fit(gpus, values={"dtype": "float32"}).plan
    assert wide
    assert wide.weights_bytes == pytest.approx(2 * plain.weights_bytes, rel=0.01)
    short = fit(gpus, values={"hf_overrides": {"max_position_embeddings": 2048}}).plan
    assert short
    assert short.max_model_len == 2048


def test_a_model_that_no_host_has_read_says_what_to_do(fleet: Fleet) -> None:
    found = fit(fleet)
    assert found.plan is None
    assert "Verify them once" in found.trouble
    assert fit_presentation.card(found)["verdict"]["word"] == "unknown"


LONGER = {"max_position_embeddings": 32_768}


@pytest.fixture
def cpu(fleet: Fleet) -> Fleet:
    """A host with a CPU of 64 GiB, and Llama-3-8B on it."""
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    Device.objects.create(
        host=fleet.host, kind="cpu", index=0, uuid="cpu", name="EPYC", memory_total=64 * GIB, memory_free=60 * GIB
    )
    return fleet


def test_a_kv_size_on_a_cpu_is_the_environment_s_and_nonsense_is_named(cpu: Fleet) -> None:
    fleet = cpu
    two = fit(fleet, environment={"VLLM_CPU_KVCACHE_SPACE": "2"}).plan
    assert two
    assert two.kv_cache_bytes == 2 * GIB
    # The engine reads it with int(): half a GiB, or none, ends its start.
    for text in ("lots", "0.5", "0", "-1"):
        assert "whole number of GiB" in fit(fleet, environment={"VLLM_CPU_KVCACHE_SPACE": text}).trouble


def test_on_a_cpu_the_variable_is_believed_before_the_argument(cpu: Fleet) -> None:
    argument = {"kv_cache_memory_bytes": GIB // 2}
    assert fit(cpu, values=argument).plan.kv_cache_bytes == GIB // 2  # type: ignore[union-attr]
    both = fit(cpu, values=argument, environment={"VLLM_CPU_KVCACHE_SPACE": "3"}).plan
    assert both
    assert both.kv_cache_bytes == 3 * GIB


@pytest.mark.parametrize(("values", "environment", "sets"), [
    ({}, {}, {"arg_kv_cache_memory_bytes": "4311744512"}),
    ({}, {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_X": "y"}, {"environment": "VLLM_CPU_KVCACHE_SPACE=5\nHF_X=y"}),
])  # fmt: skip
def test_a_kv_cache_that_is_too_small_is_enlarged_where_the_engine_believes_it(
    cpu: Fleet, values: dict[str, Any], environment: dict[str, str], sets: dict[str, str]
) -> None:
    found = fit(cpu, values={"max_model_len": 32_768, "hf_overrides": LONGER} | values, environment=environment)
    assert found.plan
    assert found.plan.fits is False
    assert sets in [dict(offer.sets) for offer in found.offers]
    taken = {"kv_cache_memory_bytes": 4_311_744_512} if "environment" not in sets else {}
    given = {"VLLM_CPU_KVCACHE_SPACE": "5"} if "environment" in sets else {}
    again = fit(cpu, values={"max_model_len": 32_768, "hf_overrides": LONGER} | taken, environment=given)
    assert again.plan
    assert again.plan.fits


def test_the_whole_card_takes_less_than_100_ms(gpus: Fleet) -> None:
    fit(gpus, wanted=8)
    began = time.process_time()
    fit_presentation.card(fit(gpus, wanted=8))
    assert time.process_time() - began < 0.1


def measured(
    fleet: Fleet, admin: User, *, left: int | None = None, arguments: Sequence[str] = (), **facts: Any
) -> Launch:
    """A launch with these facts; `left`: bytes that are free on every device once it runs."""
    fleet.deploy(admin, arguments=["--max-model-len", "4096", *arguments])
    if left is not None:
        Device.objects.update(memory_free=left)
    instance = Instance.objects.select_related("deployment", "spec__copy__revision", "spec__engine", "spec__host").get()
    report = AttemptMeasured(instance=instance.uuid, number=1, facts=LaunchFacts(**facts))
    measurements.record(instance, report)
    return Launch.objects.get()


def test_a_launch_s_truth_stands_beside_its_prediction_and_the_next_plan_learns_from_it(
    gpus: Fleet, admin: User
) -> None:
    guess = fit(gpus, values={"max_model_len": 4096}).plan
    assert guess
    assert guess.overhead.source == "first guess"
    kv, weights = 20 * GIB, guess.weights_bytes_per_device
    launch = measured(gpus, admin, weights_bytes=weights, kv_cache_bytes=kv, kv_cache_tokens=163_840, num_blocks=10_240)
    assert launch.residual_bytes == (guess.budget_bytes or 0) - weights - kv
    assert launch.prediction["kv_cache_tokens"] == guess.kv_cache_tokens
    learned = fit(gpus, values={"max_model_len": 4096}).plan
    assert learned
    assert learned.overhead.source == "learned"
    assert learned.kv_cache_tokens == 163_840
    rows = {line.label: line for line in measurements.lines(launch)}
    assert rows["KV cache tokens"].measured == "163,840"
    other = fit(gpus, values={"max_model_len": 4096, "max_num_batched_tokens": 512}).plan
    assert other
    assert other.overhead.source == "first guess", "another number of batched tokens needs other activations"


@pytest.mark.parametrize("logged", [True, False])
def test_room_for_adapters_is_no_part_of_what_is_learned(gpus: Fleet, admin: User, logged: bool) -> None:
    values = {"max_model_len": 4096}
    lora = values | {"enable_lora": True, "max_lora_rank": 64, "max_loras": 4}
    plain, taking = fit(gpus, values=values).plan, fit(gpus, values=lora).plan
    assert plain
    assert taking
    room = taking.overhead_bytes - plain.overhead_bytes
    assert room > GIB
    kv = (plain.budget_bytes or 0) - plain.weights_bytes_per_device - room - 2 * GIB
    launch = measured(
        gpus, admin, arguments=["--enable-lora", "--max-lora-rank", "64", "--max-loras", "4"], kv_cache_bytes=kv,
        weights_bytes=plain.weights_bytes_per_device + room if logged else None,
    )  # fmt: skip
    assert launch.residual_bytes == 2 * GIB
    assert fit(gpus, values=values).plan.overhead_bytes == 2 * GIB  # type: ignore[union-attr]
    assert fit(gpus, values=lora).plan.overhead_bytes == 2 * GIB + room  # type: ignore[union-attr]
    rows = {line.label: line for line in measurements.lines(launch)}
    assert rows["Overhead"].measured == readable_bytes(2 * GIB + room)
    if logged:
        assert rows["Weights per device"].percent == "exact"


def test_what_was_learned_with_other_graphs_is_not_believed(gpus: Fleet, admin: User) -> None:
    measured(gpus, admin, arguments=["--enforce-eager"], kv_cache_bytes=20 * GIB)
    values = {"max_model_len": 4096}
    assert fit(gpus, values=values).plan.overhead.source == "first guess"  # type: ignore[union-attr]
    assert fit(gpus, values=values | {"enforce_eager": True}).plan.overhead.source == "learned"  # type: ignore[union-attr]


def test_a_launch_is_planned_on_the_device_it_claimed_whatever_is_free_by_now(gpus: Fleet, admin: User) -> None:
    Device.objects.filter(index=0).update(name="NVIDIA H100 80GB HBM3", memory_total=80 * GIB, memory_free=80 * GIB)
    launch = measured(gpus, admin, left=GIB, kv_cache_bytes=20 * GIB)
    assert launch.device == "NVIDIA H100 80GB HBM3"
    assert launch.prediction["fits"] is True
    assert launch.prediction["device_bytes"] == 80 * GIB


def ordered(fleet: Fleet, admin: User, name: str) -> Instance:
    """An instance whose launch was ordered: its job has come to that step."""
    job = fleet.deploy(admin, name=name, arguments=["--max-model-len", "4096"])
    BringUpHandler().before_step(job.steps.get(kind=StepKind.LAUNCH))
    return Instance.objects.select_related("deployment", "spec__copy__revision", "spec__engine").get(
        deployment__name=name
    )  # fmt: skip


def test_of_two_launches_ordered_before_either_was_measured_both_were_guessed(gpus: Fleet, admin: User) -> None:
    Device.objects.update(memory_free=TOTAL)
    first, second = ordered(gpus, admin, "first"), ordered(gpus, admin, "second")
    facts = LaunchFacts(kv_cache_bytes=20 * GIB, kv_cache_tokens=163_840)
    for instance in (first, second):
        measurements.record(instance, AttemptMeasured(instance=instance.uuid, number=1, facts=facts))
    rows = Launch.objects.order_by("pk")
    assert [row.prediction["overhead_source"] for row in rows] == ["first guess", "first guess"]
    BringUpHandler().before_step(Job.objects.latest("pk").steps.get(kind=StepKind.LAUNCH))
    second.refresh_from_db()
    measurements.record(second, AttemptMeasured(instance=second.uuid, number=2, facts=facts))
    newest = Launch.objects.latest("pk")
    assert newest.prediction["overhead_source"] == "learned"
    assert newest.prediction["kv_cache_tokens"] == 163_840


@pytest.mark.parametrize("by_job", [True, False])
def test_a_start_that_is_reported_twice_is_not_predicted_by_itself(gpus: Fleet, admin: User, by_job: bool) -> None:
    instance = ordered(gpus, admin, "chat")
    if not by_job:  # ordered before predictions were kept
        Instance.objects.update(prediction={})
        instance.refresh_from_db()
    report = AttemptMeasured(instance=instance.uuid, number=1, facts=LaunchFacts(kv_cache_bytes=20 * GIB))
    for _time in range(2):
        measurements.record(instance, report)
        launch = Launch.objects.get()
        assert launch.prediction["overhead_source"] == "first guess"
        assert launch.residual_bytes == (
            launch.prediction["budget_bytes"] - launch.prediction["weights_bytes_per_device"] - 20 * GIB
        )


def test_a_launch_outlives_its_deployment(gpus: Fleet, admin: User) -> None:
    launch = measured(gpus, admin, kv_cache_bytes=20 * GIB)
    Attempt.objects.all().delete()
    launch.refresh_from_db()
    assert launch.attempt is None
    assert launches.learned(
        revision=launch.revision_id, device=launch.device, engine_version=launch.engine_version
    )  # fmt: skip


def test_where_a_model_fits_names_the_fleet_first_and_then_the_catalogue(gpus: Fleet) -> None:
    places, context = fits_where.places(gpus.copy.revision, Host.objects.all(), context=8192)
    assert context == 8192
    assert places[0].present
    assert places[0].count == 1, "the half taken one doesn't count against the empty one"
    by_name = {place.name: place for place in places if not place.present}
    assert by_name["NVIDIA L40S 48GB"].kv_tokens == 199_872
    assert by_name["NVIDIA T4 16GB"].count == 2


def test_where_a_model_fits_uses_what_launches_there_showed_and_says_so(gpus: Fleet, admin: User) -> None:
    Engine.objects.update(version=NEWEST_KNOWN_VERSION)
    gpus.engine.refresh_from_db()
    before, _context = fits_where.places(gpus.copy.revision, Host.objects.all(), context=4096)
    assert before[0].overhead == "first guess"
    launch = measured(gpus, admin, kv_cache_bytes=20 * GIB, kv_cache_tokens=163_840)
    after, _context = fits_where.places(gpus.copy.revision, Host.objects.all(), context=4096)
    assert (after[0].name, after[0].overhead) == (launch.device, "learned here")
    assert after[0].kv_tokens == 163_840
    assert {place.overhead for place in after if not place.present} == {"first guess"}


def test_engines_are_planned_by_their_own_version(gpus: Fleet) -> None:
    Engine.objects.update(version="0.10.2")
    gpus.engine.refresh_from_db()
    assert gpus.host.last_seen_at <= timezone.now()
    old = fit(gpus).plan
    assert old
    assert old.gpu_memory_utilization == 0.9
