"""The verify step on real files: what a launch trusts, what it reads again, and what it holds."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.weights.build import make_model, make_sharded, write_json
from workers.host.failures import StepFailedError
from workers.host.step_context import FilesProgress
from workers.host.steps import verify
from workers.step_payloads import VerifyPayload, VerifyResult


class Context:
    """What the step uses of its context, without a host around it."""

    def __init__(self, models: Path) -> None:
        self.config = SimpleNamespace(models_dir=models)
        self.cancelled = False
        self.events: list[str] = []

    def in_background(self, work: Callable[[], Any], *, waiting_for: str, progress: Callable[[], None]) -> Any:
        done = work()
        progress()
        return done

    def progress(self, done: int, total: int | None, *, files: Callable[[], FilesProgress], **_more: Any) -> None:
        self.told = (done, total, files())

    def event(self, text: str) -> None:
        self.events.append(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    make_sharded(folder, count=2)
    return folder


def run(model: Path, **changes: Any) -> tuple[VerifyResult, list[str]]:
    context = Context(model.parent)
    payload = VerifyPayload.model_validate({"model_path": model.name, "mode": "full"} | changes)
    return verify.run(context, payload), context.events  # type: ignore[arg-type]


def rerun(model: Path, before: VerifyResult, **changes: Any) -> tuple[VerifyResult, list[str]]:
    known = before.model_dump(mode="json")["manifest"]
    return run(model, manifest=known, **({"trust_unchanged": True} | changes))


def shard(model: Path) -> Path:
    return sorted(model.glob("*.safetensors"))[0]


def flip(path: Path, *, keep_times: bool = False) -> None:
    """Change the last byte in place; the inode stays."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    if keep_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_untouched_files_are_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _events = run(model)
    assert not first.unchanged
    assert all(file.sha256 for file in first.manifest)
    monkeypatch.setattr(verify, "verify_directory", lambda *_a, **_k: pytest.fail("read again"))
    again, _events = rerun(model, first)
    assert again.unchanged
    assert again.size_bytes == sum(file.size for file in first.manifest)


def test_a_touched_file_is_named_and_everything_is_verified_again(model: Path) -> None:
    first, _events = run(model)
    os.utime(shard(model))
    again, events = rerun(model, first)
    assert not again.unchanged
    assert shard(model).name in events[0]


def test_a_new_weight_file_is_a_change(model: Path) -> None:
    first, _events = run(model)
    (model / "stranger.bin").write_bytes(b"x")
    again, events = rerun(model, first)
    assert not again.unchanged
    assert "stranger.bin" in events[0]


def test_without_trust_every_byte_is_read(model: Path) -> None:
    first, _events = run(model)
    again, events = rerun(model, first, trust_unchanged=False)
    assert not again.unchanged
    assert events == []
    assert again.checked_against["the last verification"] == len(first.manifest)


def test_bits_that_rot_unnoticed_are_found_by_a_verification(model: Path) -> None:
    first, _events = run(model)
    flip(shard(model), keep_times=True)
    with pytest.raises(StepFailedError) as failed:
        rerun(model, first, trust_unchanged=False)
    assert failed.value.failure.code == "checksum.mismatch"
    assert shard(model).name in failed.value.failure.message


def test_ones_own_directory_may_be_changed_but_a_published_revision_may_not(model: Path) -> None:
    first, _events = run(model)
    flip(shard(model))
    again, _events = rerun(model, first)
    assert not again.unchanged
    with pytest.raises(StepFailedError) as failed:
        rerun(model, first, pinned=True)
    assert failed.value.failure.code == "checksum.mismatch"


def test_a_published_checksum_that_differs_fails_with_its_source(model: Path) -> None:
    published = [{"path": shard(model).name, "digest": "0" * 64, "source": "A hub"}]
    with pytest.raises(StepFailedError) as failed:
        run(model, checksums=published)
    assert failed.value.failure.code == "checksum.mismatch"
    assert "A hub" in failed.value.failure.message


def test_what_was_compared_with_whom_is_counted(model: Path) -> None:
    first, _events = run(model)
    sums = [{"path": file.path, "digest": file.sha256, "source": "A hub"} for file in first.manifest]
    again, _events = run(model, checksums=sums)
    assert again.checked_against == {"A hub": len(first.manifest)}


def code_in(model: Path) -> None:
    config = {**json.loads((model / "config.json").read_text()), "auto_map": {"AutoConfig": "own.Own"}}
    write_json(model / "config.json", config)
    (model / "own.py").write_text("class Own: ...\n")


def test_code_holds_a_launch_until_it_is_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_model(folder)
    code_in(folder)
    with pytest.raises(StepFailedError) as held:
        run(folder, consent_needed=["code.remote_required"])
    assert held.value.failure.code == "consent.required"
    assert held.value.failure.evidence[0]["code"] == "code.remote_required"
    allowed, _events = run(folder)
    assert [entry["code"] for entry in allowed.findings if entry["severity"] == "warning"] == ["code.remote_required"]


def test_pickle_weights_hold_a_launch_until_they_are_allowed(model: Path) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(StepFailedError) as held:
        run(model, consent_needed=["weights.pickle_only"])
    assert held.value.failure.code == "consent.required"
    allowed, _events = run(model, allowed=["weights.pickle_only"])
    assert "weights.pickle_only" in [entry["code"] for entry in allowed.findings]


def test_damage_counts_more_than_a_missing_yes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_model(folder)
    code_in(folder)
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(StepFailedError) as failed:
        run(folder, consent_needed=["code.remote_required"])
    assert failed.value.failure.code == "weights.truncated"


def test_each_file_tells_how_far_it_is_read(model: Path) -> None:
    context = Context(model.parent)
    verify.run(context, VerifyPayload(model_path=model.name, mode="full"))  # type: ignore[arg-type]
    sizes = {one.name: one.stat().st_size for one in model.iterdir()}
    done, total, files = context.told
    assert done == total == sum(sizes.values())
    assert {(file.path, file.done, file.total, file.state) for file in files.shown} == {
        (name, size, size, "done") for name, size in sizes.items()
    }
    assert (files.total, files.done) == (len(sizes), len(sizes))


def test_files_that_are_being_read_come_before_those_that_wait_and_those_that_are_read(tmp_path: Path) -> None:
    context = Context(tmp_path)
    reading = verify._Reading(context, {"a": 100, "b": 100, "c": 100})  # type: ignore[arg-type]
    reading.note(100, 300, "a")
    reading.note(140, 300, "c")
    reading.tell()
    assert [(file.path, file.done, file.state) for file in context.told[2].shown] == [
        ("c", 40, "active"), ("b", 0, "waiting"), ("a", 100, "done"),
    ]  # fmt: skip
