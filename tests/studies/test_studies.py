"""Studies: what is tried, in which order, what is skipped, and what becomes of the device."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.common.errors import Refused
from console.deployments import services as deployments
from console.deployments.models import Deployment, Instance
from console.gateway import routes
from console.gateway.models import Route
from console.jobs import services as jobs
from console.jobs.models import Job
from console.studies import presentation, services
from console.studies.models import Study, Trial
from tests.studies.conftest import Bench


def succeeded(bench: Bench, study: Study) -> Study:
    bench.drive(study)
    return bench.drive(study)


def test_each_variant_is_a_fresh_start_that_is_measured_and_ended_before_the_next_one(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    base = bench.measure(study, 50)
    assert base.state == "succeeded"
    assert base.is_base
    assert base.start_seconds == 31.5
    first = bench.measure(study, 80)
    second = bench.measure(study, 50)
    study = succeeded(bench, study)
    assert study.state == "succeeded"
    assert [one.spec and one.spec.number for one in (base, first, second)] == [1, 2, 3]
    assert first.arguments == ["--enforce-eager", "--max-num-seqs", "64"]
    assert not study.own.instances.exclude(state="stopped").exists()  # type: ignore[union-attr]
    assert study.own
    assert study.own.state == "stopped"


def test_a_difference_inside_the_spread_is_noise_and_the_real_winner_is_named(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    for tokens in (50, 80, 50.1):
        bench.measure(study, tokens)
    shown = presentation.context(succeeded(bench, study))
    verdicts = [row.differs("output_tokens_per_second") for row in shown["rows"]]
    assert [one.verdict if one else None for one in verdicts] == [None, "better", "noise"]
    assert shown["winner"].label == "--max-num-seqs 64"
    assert "--max-num-seqs 64 gives +60 % tokens per second" in shown["sentence"]
    assert {name for name, _title, _figure in shown["charts"]} == {"pareto", "bars"}


def test_a_faster_variant_that_answers_worse_is_no_winner(bench: Bench) -> None:
    study = bench.study("--kv-cache-dtype fp8")
    bench.drive(study)
    bench.measure(study, 50)
    bench.wrong = {"capital-japan", "capital-italy", "sum-small", "product", "red-planet", "sky-day", "repeat-word"}
    bench.measure(study, 90)
    shown = presentation.context(succeeded(bench, study))
    assert shown["rows"][1].answered.verdict == "worse"
    assert shown["rows"][1].answered.text == "17/24"
    assert shown["winner"] is None


def test_the_engine_of_a_study_is_never_ready_and_no_route_takes_it(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    bench.up_to(trial.job, "benchmark")
    instance = Instance.objects.get(pk=trial.instance_id)
    assert instance.state != "ready"
    with pytest.raises(Refused, match="only measured"):
        routes.save(
            Route(name="sly", team_id=study.team_id), aliases=(), shares=[routes.Share(instance.deployment)], actor=None
        )
    assert instance.deployment not in Deployment.objects.lasting()


def test_a_variant_that_does_not_come_up_is_a_result_and_the_next_one_is_tried(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.measure(study, 50)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    bench.up_to(trial.job, "listening")
    bench.fail(trial.job, "listening", "CUDA out of memory")
    trial.refresh_from_db()
    assert (trial.state, trial.state_reason) == ("failed", "CUDA out of memory")
    study = bench.drive(study)
    assert "memory back" in study.waits_for, "its process has not been seen to end yet"
    assert not study.trials.filter(state="running").exists()
    bench.gone(trial)
    bench.measure(study, 50)
    assert succeeded(bench, study).state == "succeeded"


def test_a_base_that_does_not_come_up_ends_the_study_with_its_reason(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    bench.fail(trial.job, "preflight", "no such directory")
    study = bench.drive(study)
    assert study.state == "finishing"
    study = bench.drive(study)
    assert study.state == "failed"
    assert "no such directory" in study.finding
    assert "Not whole" in presentation.context(study)["sentence"]
    assert set(study.trials.values_list("state", flat=True)) == {"failed", "cancelled"}


def test_what_the_plan_says_cannot_fit_is_skipped_with_the_reason(bench: Bench) -> None:
    # It comes from the real schema of this version: such a value ends the engine at once.
    study = bench.study("--max-num-seqs -4 | 64")
    bench.drive(study)
    bench.measure(study, 50)
    bench.drive(study)
    skipped = study.trials.get(position=1)
    assert skipped.state == "skipped"
    assert "--max-num-seqs" in skipped.state_reason
    bench.measure(study, 60)
    assert succeeded(bench, study).state == "succeeded"


def test_what_finds_no_room_for_a_minute_is_skipped_since_memory_comes_back_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = bench.study("--max-num-seqs 64")
    bench.drive(study)
    bench.measure(study, 50)

    def no_room(*_args: object, **_more: object) -> None:
        raise Refused("each needs 9 GiB", field="placement")

    monkeypatch.setattr("console.studies.trials.claims.place", no_room)
    study = bench.drive(study)
    assert study.waits_for == "room: each needs 9 GiB"
    Trial.objects.filter(study=study, position=1).update(refused_at=timezone.now() - timedelta(minutes=2))
    study = bench.drive(study)
    assert study.trials.get(position=1).state == "skipped"


def test_one_study_at_a_time_runs_on_a_device(bench: Bench) -> None:
    first, second = bench.study(), bench.study("--max-num-seqs 32", title="Later")
    bench.drive(first)
    second.refresh_from_db()
    assert second.state == "queued"
    assert "Seqs" in second.waits_for


def test_a_study_waits_for_a_benchmark_of_the_device(bench: Bench) -> None:
    other = bench.stage.measure(bench.admin, despite_traffic=True)
    jobs.started(bench.stage.step(other))
    study = bench.drive(bench.study())
    assert study.state == "queued"
    assert "benchmark" in study.waits_for
    bench.stage.end(other)
    assert bench.drive(study).state == "running"


def test_what_serves_on_the_device_is_not_touched_without_a_yes(bench: Bench) -> None:
    with pytest.raises(Refused, match="runs on this device") as caught:
        bench.study(neighbours="leave")
    assert caught.value.field == "neighbours"
    assert not Study.objects.exists()


def test_with_a_yes_it_is_stopped_and_started_again_however_the_study_ends(bench: Bench) -> None:
    serving = bench.stage.instance
    study = bench.drive(bench.study(neighbours="stop"))
    assert study.state == "clearing"
    assert Deployment.objects.get(pk=serving.deployment_id).state == "stopping"
    stop = Job.objects.get(kind="stop")
    bench.succeed(stop, "stop")
    study = bench.drive(study)
    assert study.state == "running"
    with pytest.raises(Refused, match="stopped it for a while"):
        deployments.start(Deployment.objects.get(pk=serving.deployment_id), actor=bench.admin, reason="impatient")
    services.cancel(study, actor=bench.admin, reason="enough")
    study = bench.drive(study)
    assert study.state == "cancelled"
    assert study.stopped == []
    assert Deployment.objects.get(pk=serving.deployment_id).state == "deploying"


def test_cancelling_stops_the_engine_that_is_measured_and_keeps_what_was_measured(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.measure(study, 50)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    step = bench.up_to(trial.job, "benchmark")
    services.cancel(study, actor=bench.admin, reason="enough")
    assert bench.drive(study).state == "finishing", "its host has not abandoned the step yet"
    fresh = type(step).objects.select_related("job", "host").get(pk=step.pk)
    from workers.contracts import StepFinished

    jobs.finished(fresh, StepFinished(step=step.pk, fence=fresh.fence, outcome="cancelled"))
    trial.refresh_from_db()
    assert trial.state == "cancelled"
    assert trial.benchmark
    assert trial.benchmark.state == "cancelled"
    assert not Instance.objects.get(pk=trial.instance_id).run
    bench.gone(trial)
    study = bench.drive(study)
    assert study.state == "cancelled"
    shown = presentation.context(study)
    assert [row.point is not None for row in shown["rows"]] == [True, False, False], "half a result is none"


def test_it_goes_on_where_it_ended_and_measures_only_what_is_missing(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    base = bench.measure(study, 50)
    services.cancel(Study.objects.get(pk=study.pk), actor=bench.admin, reason="later")
    study = bench.drive(study)
    services.go_on(study, actor=bench.admin, reason="now")
    bench.drive(study)
    assert bench.measure(study, 80).position == 1
    assert bench.measure(study, 90).position == 2
    study = succeeded(bench, study)
    assert study.state == "succeeded"
    again = study.trials.get(position=0)
    assert again.benchmark_id == base.benchmark_id
    with pytest.raises(Refused, match="measured already"):
        services.go_on(study, actor=bench.admin, reason="again")


def test_a_job_of_a_study_is_not_retried_by_itself(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    bench.fail(trial.job, "preflight", "gone")
    job = Job.objects.get(pk=trial.job_id)
    with pytest.raises(Refused, match="belongs to a study"):
        jobs.retry(job, actor=bench.admin)


def test_a_trial_whose_job_a_person_cancels_ends_the_study(bench: Bench) -> None:
    study = bench.study()
    bench.drive(study)
    bench.drive(study)
    trial = bench.running(study)
    assert trial.job
    job = trial.job
    Trial.objects.filter(pk=trial.pk).update(job=job)
    step = job.steps.order_by("position").first()
    jobs.cancel(job, actor=bench.admin, reason="no")
    from workers.contracts import StepFinished

    assert step
    fresh = type(step).objects.select_related("job", "host").get(pk=step.pk)
    jobs.finished(fresh, StepFinished(step=step.pk, fence=fresh.fence, outcome="cancelled"))
    bench.gone(trial)
    bench.drive(study)
    assert bench.drive(study).state == "cancelled"


def test_a_study_that_changes_nothing_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="None of the changes"):
        bench.study("--max-num-seqs 16")


def test_deleting_a_study_takes_its_engines_along_and_leaves_its_benchmarks(bench: Bench) -> None:
    study = bench.study("--max-num-seqs 64")
    bench.drive(study)
    bench.measure(study, 50)
    trial = bench.measure(study, 60)
    study = succeeded(bench, study)
    services.delete(study, actor=bench.admin)
    assert not Study.objects.exists()
    assert not Deployment.objects.filter(for_study=True).exists()
    from console.benchmarks.models import Benchmark

    assert Benchmark.objects.get(pk=trial.benchmark_id).is_whole
