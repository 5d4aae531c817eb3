"""Validation of a real process that speaks the engine's interface: what passes, what doesn't, and what it is blamed on."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostUnderTest, make_host, wait_for
from tests.weights.build import make_model, safetensors_bytes, tensors_of
from workers.contracts import InstanceOrder, Level
from workers.host.bring_up import Target, wait_until_listening
from workers.host.drivers.shim import ShimDriver
from workers.host.engines import find_engine
from workers.host.failures import StepFailedError
from workers.host.launching import prepare_launch
from workers.host.own_bring_up import OwnProgress
from workers.host.validation import Depth, validate
from workers.host.validation_checks import CHECKS, depth_of
from workers.host.warming import is_stable, warm_up
from workers.step_payloads import ValidateResult

NAMES = [
    "tokenizer", "template", "question", "weights", "golden", "lengths", "repeats", "completions", "streaming", "tools", "json"
]  # fmt: skip


class Noted(OwnProgress):
    """Keeps what is told."""

    def __init__(self) -> None:
        super().__init__(60)
        self.events: list[str] = []

    def event(self, text: str, level: Level = Level.INFO) -> None:
        self.events.append(text)


class Examined:
    """One engine under a shim, without an agent."""

    def __init__(self, host: HostUnderTest, knobs: dict[str, Any], **changes: Any) -> None:
        self.order: InstanceOrder = host.order(model_path=str(host.model("examined", **knobs)), **changes)
        self.files = host.files(self.order)
        config = host.config
        engine = find_engine(config.engines_dir, "standin")
        launch = prepare_launch(self.order, engine, config.private_keys, os.environ, state_dir=config.state_dir)
        self.files.write_order(self.order, launch.spec)
        ShimDriver().start(self.files, launch)
        wait_for(self.files.state)
        self.target = Target(self.files, 1, config.private_keys)
        self.progress = Noted()
        wait_until_listening(self.target, self.progress)

    def validate(self, depth: Depth = "full") -> ValidateResult:
        return validate(self.target, self.progress, CHECKS, depth)

    def refused(self) -> StepFailedError:
        with pytest.raises(StepFailedError) as caught:
            self.validate()
        return caught.value

    def outcomes(self) -> dict[str, str]:
        report = self.files.validation(1)
        assert report
        return {row["name"]: row["outcome"] for row in report["checks"]}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostUnderTest]:
    class NoBroker:
        def add_host(self, name: str) -> str:
            return f"redis://{name}@127.0.0.1:1/0"

    made = make_host(tmp_path, NoBroker())  # type: ignore[arg-type]
    yield made
    made.end()


def test_a_sound_engine_passes_every_check_in_order(host: HostUnderTest) -> None:
    probe = {"expected": "Paris", "language": "en", "declares": ["tools", "json"]}
    examined = Examined(host, {}, probe=probe)
    result = examined.validate()
    assert [row.name for row in result.checks] == NAMES
    assert {row.name: row.outcome for row in result.checks} == dict.fromkeys(NAMES, "ok") | {"golden": "skipped"}
    assert all(row.need and row.fact for row in result.checks)
    assert "Paris" in result.answer
    lengths = next(row.fact for row in result.checks if row.name == "lengths")
    assert "4,094 tokens" in lengths
    report = examined.files.validation(1)
    assert report
    assert report["golden"] == [{"question": examined.order.probe.prompt, "answer": result.answer, "engine": "standin"}]


def test_after_a_restart_only_the_brief_checks_are_done(host: HostUnderTest) -> None:
    assert depth_of(start=2, ready_start=2) == "brief"
    assert depth_of(start=2, ready_start=1) == depth_of(start=1, ready_start=None) == "full"
    result = Examined(host, {}).validate("brief")
    assert [row.name for row in result.checks] == ["tokenizer", "template", "question", "weights", "golden"]


@pytest.mark.parametrize(
    ("knobs", "probe", "code", "suspect", "last"),
    [
        ({"no_tokenizer": True}, {}, "tokenizer.missing", "tokenizer", "tokenizer"),
        ({"chat_error": "no chat template is set"}, {}, "chat_template.missing", "template", "template"),
        ({"answer": "garbage"}, {}, "answer.repeated_token", "weights", "question"),
        ({"answer": "empty"}, {}, "answer.empty", "template", "question"),
        ({"answer": "Lyon is it."}, {"expected": "Paris"}, "answer.unexpected_answer", "weights", "question"),
        ({"answer": "�� is the �"}, {}, "answer.replacement_characters", "tokenizer", "question"),
        ({"answer": "Das ist die Stadt und der Fluss ist mit dem Zug"}, {"language": "zh"}, "answer.wrong_language",
         "template", "question"),
        # On a busy machine the default leaves long prompts out, and says so.
        ({"long_context_error": 1000}, {"patience_seconds": 120}, "validate.context_fails", "engine", "lengths"),
        ({"lost_pieces": True}, {}, "validate.stream_empty", "engine", "streaming"),
        ({"stream_error": "no kernel for it"}, {}, "validate.request_failed", "engine", "question"),
    ],
    ids=["no tokenizer", "no template", "garbage", "empty", "not expected", "broken characters", "wrong language",
         "long prompts fail", "pieces are lost", "a stream ends in an error"],
)  # fmt: skip
def test_what_is_not_sound_is_refused_with_a_suspect_and_the_next_check(
    host: HostUnderTest, knobs: dict[str, Any], probe: dict[str, Any], code: str, suspect: str, last: str
) -> None:
    examined = Examined(host, knobs, probe=probe)
    error = examined.refused()
    assert error.failure.code == code
    assert suspect in error.failure.message
    assert error.failure.next
    rows = error.result["checks"]
    judged = [row for row in rows if row["name"] != "files"]
    assert [row["name"] for row in judged] == NAMES[: NAMES.index(last) + 1]
    assert judged[-1]["outcome"] == "failed"
    assert suspect in judged[-1]["points_at"]
    assert (rows[-1]["name"] == "files") == (suspect != "engine")
    assert examined.outcomes()[last] == "failed"
    assert examined.files.ready_attempt() is None


def test_a_missing_tensor_is_refused_however_well_the_model_answers(host: HostUnderTest) -> None:
    model = make_model(host.config.models_dir / "examined")
    kept = {name: tensor for name, tensor in tensors_of("qwen3").items() if "layers.0.mlp.down_proj" not in name}
    (model / "model.safetensors").write_bytes(safetensors_bytes(kept))
    error = Examined(host, {}, probe={"expected": "Paris"}).refused()
    assert error.failure.code == "weights.tensor_missing"
    assert error.result["checks"][2]["outcome"] == "ok"


def test_an_answer_that_never_ends_is_refused(host: HostUnderTest) -> None:
    words = " ".join(f"stone{number} and river{number * 7}" for number in range(900))
    error = Examined(host, {"answer": words}).refused()
    assert error.failure.code == "answer.not_stopped"
    assert "template" in error.failure.message


def test_an_engine_that_the_first_chat_kills_fails_with_that_death(host: HostUnderTest) -> None:
    error = Examined(host, {"dies_on_chat": True}).refused()
    assert "the engine ended" in error.failure.message


def test_answers_that_differ_at_temperature_0_are_a_warning_with_its_reason(host: HostUnderTest) -> None:
    examined = Examined(host, {"fickle": True})
    row = next(row for row in examined.validate().checks if row.name == "repeats")
    assert (row.outcome, "batch-invariant" in row.fact) == ("warning", True)
    assert "VLLM_BATCH_INVARIANT" in row.next


def test_a_golden_answer_of_another_engine_is_compared(host: HostUnderTest) -> None:
    kept = {"question": "Where?", "answer": "The sea lies quite flat before the harbour.", "engine": "vllm-0.20.2"}
    row = next(
        row for row in Examined(host, {}, probe={"prompt": "Where?", "golden": [kept]}).validate("brief").checks
        if row.name == "golden"
    )  # fmt: skip
    assert row.outcome == "warning"
    assert "vllm-0.20.2 answered" in row.fact
    assert "different after 3 words" in row.fact


def test_a_base_model_that_is_declared_as_one_is_validated_by_completions(host: HostUnderTest) -> None:
    examined = Examined(host, {"chat_error": "no chat template"}, probe={"mode": "completions", "expected": "Paris"})
    rows = {row.name: row for row in examined.validate().checks}
    assert rows["template"].outcome == "skipped"
    assert rows["question"].outcome == "ok"
    assert warm_up(examined.target, examined.progress).stable


def test_warm_up_goes_on_until_the_first_token_comes_evenly(host: HostUnderTest) -> None:
    prompts = ["First question of ours?", "Second question of ours?", "Third?", "Fourth?"]
    examined = Examined(host, {}, probe={"warmup_prompts": prompts, "ttft_target_seconds": 5})
    result = warm_up(examined.target, examined.progress)
    assert result.stable
    assert len(result.rounds) >= 1 + len(prompts)
    assert (result.target_seconds, examined.progress.events) == (5, [])
    assert examined.files.ready_attempt() == 1


def test_warm_up_that_misses_its_target_says_what_it_reached(host: HostUnderTest) -> None:
    examined = Examined(host, {"token_seconds": 0.03}, probe={"ttft_target_seconds": 0.001})
    result = warm_up(examined.target, examined.progress)
    assert result.ttft_seconds > 0.001
    assert "the target is 1 ms" in examined.progress.events[0]


def test_a_slow_engine_is_asked_for_less_and_says_so(host: HostUnderTest) -> None:
    probe = {"expected": "Paris", "patience_seconds": 0.2}
    examined = Examined(host, {"read_seconds": 0.015}, probe=probe)
    result = examined.validate()
    rows = {row.name: row for row in result.checks}
    assert list(rows) == NAMES
    assert {row.outcome for name, row in rows.items() if name not in ("golden", "tools", "json")} == {"ok"}
    assert rows["lengths"].fact.startswith("16 tokens ")
    assert "64 tokens" not in rows["lengths"].fact
    assert "not beyond, as 4,096 would take about" in rows["lengths"].fact
    assert "3 at once, as one answer to the question takes" in rows["repeats"].fact
    assert "asked for by the warm-up" in rows["streaming"].fact


def test_an_engine_that_is_given_time_reads_its_whole_context_however_slow(host: HostUnderTest) -> None:
    examined = Examined(
        host, {"read_seconds": 0.001}, probe={"patience_seconds": 60}, arguments=["--max-model-len", "512"]
    )
    rows = {row.name: row.fact for row in examined.validate().checks}
    assert "510 tokens" in rows["lengths"]
    assert "not beyond" not in rows["lengths"]
    assert rows["repeats"] == "3 times the same at temperature 0"


def test_warm_up_of_a_slow_engine_ends_with_two_times_that_are_alike(host: HostUnderTest) -> None:
    examined = Examined(host, {"read_seconds": 0.3}, probe={"warmup_prompt": "Say hi."})
    result = warm_up(examined.target, examined.progress)
    assert result.stable
    assert len(result.rounds) in (2, 3)  # a busy machine may need one more


@pytest.mark.parametrize(("pools", "path"), [("embed", "/v1/embeddings"), ("classify", "/pooling")])
def test_a_model_that_pools_is_asked_for_vectors_though_declared_as_a_chat(
    host: HostUnderTest, pools: str, path: str
) -> None:
    examined = Examined(host, {"pools": pools}, arguments=["--max-model-len", "512"])
    rows = {row.name: row for row in examined.validate().checks}
    assert {name: row.outcome for name, row in rows.items()} == dict.fromkeys(
        ("tokenizer", "vectors", "weights", "lengths"), "ok"
    )
    assert rows["vectors"].fact.startswith(path)
    assert "510 tokens" in rows["lengths"].fact
    result = warm_up(examined.target, examined.progress)
    assert (result.stable, result.completion_tokens, result.tokens_per_second) == (True, 0, None)
    assert examined.files.ready_attempt() == 1


@pytest.mark.parametrize(
    ("vector", "suspect"),
    [("zeros", "weights"), ("not_finite", "weights"), ("unsteady", "engine"), ("same_for_all", "weights"),
     ("empty", "engine")],
)  # fmt: skip
def test_vectors_that_can_not_be_the_work_of_sound_weights_are_refused(
    host: HostUnderTest, vector: str, suspect: str
) -> None:
    error = Examined(host, {"pools": "embed", "vector": vector}).refused()
    assert error.failure.code == f"vector.{vector}"
    assert suspect in error.failure.message
    assert error.failure.next
    assert [row["name"] for row in error.result["checks"]][:2] == ["tokenizer", "vectors"]


def test_two_texts_of_one_class_are_shown_only(host: HostUnderTest) -> None:
    examined = Examined(host, {"pools": "classify", "vector": "same_for_all"})
    assert {row.name: row.outcome for row in examined.validate("brief").checks}["vectors"] == "warning"


def test_a_model_for_text_that_is_declared_as_one_for_embeddings_is_refused(host: HostUnderTest) -> None:
    error = Examined(host, {}, probe={"mode": "embeddings"}).refused()
    assert error.failure.code == "validate.no_vectors"
    assert "--runner pooling" in error.failure.next


def test_stability_is_about_the_last_times() -> None:
    assert is_stable([4.0, 0.5, 0.051, 0.050, 0.052])
    assert not is_stable([0.05, 0.05, 0.2])
    assert not is_stable([0.05, 0.05])
    assert is_stable([1.1, 1.2])
    assert not is_stable([1.1, 1.6])
    assert not is_stable([0.9])
