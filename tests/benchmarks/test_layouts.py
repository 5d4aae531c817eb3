"""Benchmarks of two layouts set against each other, and what the deploy form makes of them."""

import pytest

from console.benchmarks import layouts
from console.benchmarks.models import Benchmark
from console.deployments import fitting
from console.fleet.models import Device
from tests.benchmarks.conftest import Stage
from tests.deployments.test_fitting import llama
from workers.vllm.memory import MeasuredLayouts

CPU = "A CPU"


def benchmark(stage: Stage, arguments: list[str], speeds: dict[float, float], **changes: object) -> Benchmark:
    """One that made so many tokens per second at each load."""
    made = stage.measure(question=stage.question(loads={"values": list(speeds)}))
    for load, speed in speeds.items():
        stage.report_run(made, load, output_tokens_per_second=speed, **changes)
    stage.end(made)
    made.subject |= {"arguments": ["--enforce-eager", *arguments]}
    made.save()
    return made


def found(stage: Stage, devices: int = 2) -> MeasuredLayouts | None:
    return layouts.measured(stage.instance.copy.revision, CPU, devices)


def test_both_layouts_are_compared_at_the_highest_load_that_two_engines_would_share(stage: Stage) -> None:
    half = benchmark(stage, ["--max-model-len", "2048"], {4: 60, 8: 110, 16: 190})
    whole = benchmark(stage, ["--tensor-parallel-size", "2", "--max-model-len=8192"], {8: 100, 16: 180, 64: 300})
    assert found(stage) == MeasuredLayouts(
        180, 220, "16 requests at once in all", f"benchmarks {whole.pk} and {half.pk}"
    )


@pytest.mark.parametrize("other", [["--max-num-seqs", "4"], ["--enable-chunked-prefill"], ["-pp", "2"]])
def test_what_differs_in_more_than_the_layout_is_not_compared(stage: Stage, other: list[str]) -> None:
    whole = benchmark(stage, ["-tp", "2"], {8: 100, 16: 180})
    benchmark(stage, other, {4: 60, 8: 110})
    assert found(stage) == MeasuredLayouts(180, None, "16 requests at once in all", f"benchmark {whole.pk}")


def test_without_a_shared_load_or_with_failures_there_is_no_pair(stage: Stage) -> None:
    half = benchmark(stage, [], {3: 60})
    benchmark(stage, ["-tp", "2"], {8: 100}, completed=10, failed=10)
    assert found(stage) == MeasuredLayouts(None, 120, "3 requests at once in all", f"benchmark {half.pk}")


def test_nothing_is_known_of_other_devices_or_of_what_did_not_succeed(stage: Stage) -> None:
    assert found(stage) is None
    made = benchmark(stage, ["-tp", "2"], {8: 100})
    assert layouts.measured(stage.instance.copy.revision, "H100", 2) is None
    Benchmark.objects.filter(pk=made.pk).update(state="failed")
    assert found(stage) is None


def test_the_form_advises_by_what_was_measured_and_says_so(stage: Stage) -> None:
    """Llama-3-8B on two L40S: the plan says that one engine on both holds more; the benchmarks, that two make more."""
    fleet = stage.fleet
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    for index in range(2):
        Device.objects.create(
            host=fleet.host, kind="gpu", index=index, uuid=f"GPU-{index}", name="NVIDIA L40S",
            memory_total=47_663_399_567, memory_free=47_663_399_567, details={"capability": "8.9"},
        )  # fmt: skip
    fleet.engine.platform = "cuda"

    def advice() -> list[str]:
        fit = fitting.fit(
            fleet.copy, fleet.engine, values={"tensor_parallel_size": 2}, environment={}, replicas=2
        )  # fmt: skip
        return [offer.text for offer in fit.offers if offer.sets.get("replicas") == "4"]

    assert advice() == []
    for arguments, speeds in ((["-tp", "2"], {16: 1900}), ([], {8: 1240})):
        made = benchmark(stage, arguments, speeds)
        made.subject |= {"devices": ["NVIDIA L40S"] * (2 if arguments else 1)}
        made.save()
    [text] = advice()
    assert "2 replicas of TP 1 made 2,480 tokens/s together, one of TP 2 1,900" in text
