"""Adopting, testing, removing engines and clearing what they compiled, with real environments and processes."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostUnderTest
from tests.host.vllm_package import make_environment
from workers.contracts import Body, StepKind, StepOrder
from workers.host.compile_caches import cache_environment, caches_of, model_name
from workers.host.engine_environments import sweep_all
from workers.host.engines import find_engine, registered_engine
from workers.host.step_runner import run_order


class Steps:
    """Runs steps on a host that trusts the test's directory, and keeps what they report."""

    def __init__(self, host: HostUnderTest, root: Path) -> None:
        self.config = host.config.model_copy(update={"trusted_roots": [root]})
        self.reports: list[Any] = []
        self.number = 0

    def report(self, body: Body) -> None:
        self.reports.append(body)

    def run(self, kind: StepKind, **payload: Any) -> Any:
        self.number += 1
        order = StepOrder(step=self.number, job=1, fence=1, kind=kind, deadline_seconds=300, payload=payload)
        run_order(order, self.config, self.report)
        return self.reports[-1]

    def adopt(self, path: Path) -> Any:
        return self.run(StepKind.ADOPT_ENGINE, path=str(path))


@pytest.fixture
def steps(host: HostUnderTest, tmp_path: Path) -> Steps:
    return Steps(host, tmp_path)


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_an_environment_is_adopted_without_a_byte_written_into_it_and_forgotten_without_one_removed(
    steps: Steps, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "theirs")
    before = files_of(tmp_path / "theirs")
    finished = steps.adopt(tmp_path / "theirs")
    assert finished.outcome == "succeeded", finished
    key = finished.result["engine"]
    engine = find_engine(steps.config.engines_dir, key)
    assert engine.adopted
    assert (engine.version, engine.platform, engine.python) == ("0.32.0", "cpu", str(python))
    assert engine.command == [str(python), "-m", "vllm.entrypoints.cli.main"]
    # The metadata that the wheel lacks lies in the register, and the engine finds it there.
    said = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('vllm'))"],
        env={**os.environ, **engine.environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == "0.32.0+cpu"
    assert [report.key for report in steps.reports if report.kind == "engine.schema"] == [key]

    assert steps.adopt(python).result["engine"] == key  # again, by its Python: the same engine
    removed = steps.run(StepKind.REMOVE_ENGINE, engine=key).result
    assert removed["adopted"]
    assert registered_engine(steps.config.engines_dir, key) is None
    assert not (steps.config.engines_dir / key).exists()
    assert files_of(tmp_path / "theirs") == before
    assert steps.run(StepKind.REMOVE_ENGINE, engine=key).result["already_gone"]


def test_only_what_the_host_trusts_is_ever_run(steps: Steps, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "bin").mkdir(parents=True)
    python = theirs / "bin" / "python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    python.chmod(0o755)
    trusted = steps.config

    steps.config = trusted.model_copy(update={"trusted_roots": [tmp_path / "elsewhere"]})
    assert steps.adopt(theirs).failure.code == "path.not_trusted"
    steps.config = trusted.model_copy(update={"trusted_roots": []})
    assert steps.adopt(python).failure.code == "path.not_trusted"
    steps.config = trusted
    (tmp_path / "link").symlink_to("/usr")
    assert steps.adopt(tmp_path / "link").failure.code == "path.not_trusted"
    assert steps.adopt(Path("relative")).failure.code == "path.not_absolute"
    assert steps.adopt(tmp_path / "theirs" / ".." / "theirs").failure.code == "path.not_absolute"
    assert steps.adopt(tmp_path / "nothing").failure.code == "path.not_found"
    assert steps.adopt(tmp_path / "models").failure.code == "path.no_python"
    theirs.chmod(0o777)
    assert steps.adopt(theirs).failure.code == "path.writable_by_others"
    assert not (tmp_path / "was-run").exists()


def test_an_environment_without_vllm_is_refused_with_its_own_words_and_leaves_nothing(
    steps: Steps, tmp_path: Path
) -> None:
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    failure = steps.adopt(tmp_path / "empty").failure
    assert failure.code == "engine.self_test_failed"
    assert "No module named 'vllm'" in failure.message
    assert [path.name for path in steps.config.engines_dir.iterdir() if not path.name.startswith(".")] == ["standin"]


def test_a_test_that_fails_is_kept_with_the_engine_until_one_passes(steps: Steps, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    key = steps.adopt(python).result["engine"]
    module = next((tmp_path / "theirs" / "lib").glob("python3.*/site-packages/vllm/__init__.py"))
    sound = module.read_text()
    module.write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    assert steps.run(StepKind.CHECK_ENGINE, engine=key).failure.code == "engine.self_test_failed"
    broken = registered_engine(steps.config.engines_dir, key)
    assert broken is not None
    assert "libcudart" in broken.problem
    told = [report for report in steps.reports if report.kind == "host.inventory"][-1]
    assert "libcudart" in next(facts for facts in told.engines if facts.key == key).details["problem"]

    module.write_text(sound)
    assert steps.run(StepKind.CHECK_ENGINE, engine=key).outcome == "succeeded"
    assert find_engine(steps.config.engines_dir, key).problem == ""
    python.unlink()
    assert steps.run(StepKind.CHECK_ENGINE, engine=key).failure.code == "engine.gone"
    assert steps.run(StepKind.CHECK_ENGINE, engine="absent").failure.code == "engine.not_installed"


def test_an_engine_that_sees_no_device_is_registered_and_says_so(steps: Steps, tmp_path: Path) -> None:
    finished = steps.adopt(make_environment(tmp_path / "theirs", device="", name="vllm").parent.parent)
    assert finished.outcome == "succeeded"
    assert "sees no device" in finished.result["warnings"][0]


def test_a_running_engine_is_neither_removed_nor_its_cache_cleared(steps: Steps, host: HostUnderTest) -> None:
    order = host.order()
    files = host.files(order)
    state = steps.config.state_dir
    cache = Path(cache_environment(state, "standin", order.model_path)["VLLM_CACHE_ROOT"])
    cache.mkdir(parents=True)
    (cache / "graph").write_bytes(b"x" * 1000)
    files.write_order(order, {})
    (files.directory / "state.json").write_text(
        '{"state": "running", "start": 1, "attempt": 1, "pid": 1, "pid_start": 1, "shim_pid": 1, "shim_start": 1,'
        ' "boot_id": "x", "exit_code": null, "restarts": 0}'
    )
    failure = steps.run(StepKind.REMOVE_ENGINE, engine="standin").failure
    assert failure.code == "engine.in_use"
    assert "demo" in failure.message
    assert steps.run(StepKind.CLEAR_CACHE, engine="standin").failure.code == "cache.in_use"
    name = model_name(order.model_path)
    assert steps.run(StepKind.CLEAR_CACHE, engine="standin", model=name).failure.code == "cache.in_use"
    assert registered_engine(steps.config.engines_dir, "standin") is not None


def test_caches_are_told_by_model_cleared_one_by_one_and_go_with_their_engine(steps: Steps, tmp_path: Path) -> None:
    state = steps.config.state_dir
    for model in ("/models/a", "/models/b", "/other/a"):
        for directory in cache_environment(state, "standin", model).values():
            Path(directory).mkdir(parents=True)
            (Path(directory) / "file").write_bytes(b"x" * 1000)
    found = caches_of(state, "standin")
    assert len(found) == 3
    assert {cache.size_bytes for cache in found} == {3000}
    chosen = model_name("/models/b")
    assert steps.run(StepKind.CLEAR_CACHE, engine="standin", model=chosen).result["freed_bytes"] == 3000
    told = [report for report in steps.reports if report.kind == "host.inventory"][-1]
    standin = next(facts for facts in told.engines if facts.key == "standin")
    assert {cache["model"] for cache in standin.details["caches"]} == {model_name("/models/a"), model_name("/other/a")}
    assert steps.run(StepKind.CLEAR_CACHE, engine="standin", model="..").failure.code == "step.bad_payload"
    assert steps.run(StepKind.REMOVE_ENGINE, engine="standin").result["freed_bytes"] >= 6000
    assert caches_of(state, "standin") == []


def test_a_snapshot_of_a_hub_is_named_by_its_repository() -> None:
    name = model_name("/hub/models--Qwen--Qwen3-8B/snapshots/0123456789abcdef0123456789abcdef01234567")
    assert name.startswith("Qwen--Qwen3-8B@0123456789ab-")


def test_tidying_leaves_alone_what_it_does_not_understand(steps: Steps) -> None:
    engines = steps.config.engines_dir
    newer = engines / "vllm-9.0.0"
    (newer / "env-aaaaaaaa").mkdir(parents=True)
    (newer / "engine.json").write_text('{"of": "a newer Slipway"}')
    (engines / "somebodys-notes").mkdir()
    (engines / "somebodys-notes" / "todo.txt").write_text("x")
    half = engines / "vllm-0.1.0" / "env-bbbbbbbb"
    half.mkdir(parents=True)
    sweep_all(engines, steps.config.state_dir)
    assert (newer / "env-aaaaaaaa").exists()
    assert (engines / "somebodys-notes" / "todo.txt").exists()
    assert not half.parent.exists()
