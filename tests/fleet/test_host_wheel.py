"""The agent's own wheel, and the script that a bare machine is given."""

import ast
import hashlib
import importlib.metadata
import io
import sys
import zipfile
from pathlib import Path

import pytest
from django.test import Client

import workers
from console import env
from console.fleet import host_wheel

ROOT = Path(str(workers.__file__)).parent
ENGINES_OWN = {"datasets", "llmcompressor", "torch", "transformers", "vllm"}
"""What scripts import that run in an engine's or llm-compressor's environment, not in the agent's."""


def imported() -> set[str]:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"workers"} - ENGINES_OWN


def owner_of_modules() -> dict[str, str]:
    """The needed distribution that brings each importable name; all of the environment's would take long to read."""
    return {
        file.parts[0].removesuffix(".py"): name
        for name in (*host_wheel.NEEDED, *host_wheel.NEEDED_BY_GATEWAYS)
        for file in importlib.metadata.files(name) or []
        if file.suffix in {".py", ".so"}
    }


def test_the_wheel_asks_for_exactly_what_workers_imports() -> None:
    owners = owner_of_modules()
    needed = imported() - {"kombu", "billiard"}
    assert needed <= set(owners), "something is imported that the wheel doesn't ask for"
    assert {owners[module] for module in needed} == {*host_wheel.NEEDED, *host_wheel.NEEDED_BY_GATEWAYS}
    named = {line.lower().split("[")[0].split("<")[0].split(">")[0] for line in host_wheel.requirements()}
    assert named == set(host_wheel.NEEDED)


def test_equal_code_makes_equal_bytes_and_no_django_is_in_them() -> None:
    one = host_wheel.current()
    host_wheel.current.cache_clear()
    assert host_wheel.current().sha256 == one.sha256 == hashlib.sha256(one.content).hexdigest()
    with zipfile.ZipFile(io.BytesIO(one.content)) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        metadata = archive.read(f"slipway_host-{one.version}.dist-info/METADATA").decode()
    assert "workers/host/agent.py" in names
    assert "workers/vllm/data/diagnosis.json" in names
    assert not any(name.startswith("console/") for name in names)
    assert "django" not in metadata.lower()


def test_every_file_of_workers_that_is_no_cache_is_in_the_wheel() -> None:
    with zipfile.ZipFile(io.BytesIO(host_wheel.current().content)) as archive:
        names = set(archive.namelist())
    there = {str(path.relative_to(ROOT.parent)) for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert there <= names


@pytest.mark.django_db
def test_the_script_runs_alone_and_pins_the_wheel() -> None:
    answer = Client().get("/api/hosts/bootstrap.py")
    assert hashlib.sha256(answer.content).hexdigest() == host_wheel.script_sha256()
    assert host_wheel.current().sha256 in answer.content.decode()
    tree = ast.parse(answer.content)
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(name).partition(".")[0] for name in modules} <= set(sys.stdlib_module_names)


@pytest.mark.django_db
def test_the_wheel_is_served_to_whoever_asks_and_nothing_beside_it(tmp_path: Path) -> None:
    wheel = host_wheel.current()
    assert Client().get(f"/api/hosts/wheels/{wheel.name}").content == wheel.content
    for name in ("other.whl", "..%2Fsecrets.json", "%2e%2e"):
        assert Client().get(f"/api/hosts/wheels/{name}").status_code == 404


@pytest.mark.django_db
def test_a_folder_of_wheels_is_offered_with_its_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redis-6.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "notes.txt").write_text("private")
    settled = env.environment().model_copy(update={"slipway_wheels_dir": str(tmp_path)})
    monkeypatch.setattr(env, "environment", lambda: settled)
    page = Client().get("/api/hosts/wheels/").content.decode()
    assert f"redis-6.0-py3-none-any.whl#sha256={hashlib.sha256(b'wheel').hexdigest()}" in page
    assert host_wheel.current().name in page
    assert "notes" not in page
    served = Client().get("/api/hosts/wheels/redis-6.0-py3-none-any.whl")
    assert served.content == b"wheel"
    assert Client().get("/api/hosts/wheels/notes.txt").status_code == 404
    assert "'offline': True" in host_wheel.script()


@pytest.mark.django_db
def test_a_console_without_tls_of_its_own_has_no_authority_to_show() -> None:
    assert Client().get("/api/hosts/ca.pem").status_code == 404
