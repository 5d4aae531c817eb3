"""The download step: from an order to a snapshot, or to a failure that says what to do."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.host.steps.conftest import Bench
from tests.standin.hub import GOOD_TOKEN, Faults, Hub, Repository
from workers.contracts import StepKind
from workers.sealing import generate_key_pair, seal
from workers.weights import download_space

NAME = "makers/tiny-chat"


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return hub.add(
        NAME, {"config.json": b"{}", "README.md": b"read", "model.safetensors": random.Random(3).randbytes(6_000_000)}
    )


def payload(hub: Hub, repository: Repository, **changes: Any) -> dict[str, Any]:
    files = [
        {"path": path, "size": len(item.data), **({"sha256": item.sha256} if item.lfs else {"git_oid": item.git_oid})}
        for path, item in repository.files.items()
    ]
    values = {"source": "mirror", "endpoint": hub.url, "repository": NAME, "commit": repository.commit, "files": files}
    return values | changes


def test_the_files_come_and_the_card_says_where_and_how_much(hub: Hub, repository: Repository, bench: Bench) -> None:
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository, revision="main"))
    assert finished.outcome == "succeeded"
    result = finished.result
    snapshot = Path(result["model_path"])
    assert snapshot.parent.parent == bench.config.models_dir / "hub" / "models--makers--tiny-chat"
    assert (snapshot / "model.safetensors").read_bytes() == repository.files["model.safetensors"].data
    total = sum(len(item.data) for item in repository.files.values())
    assert (result["files"], result["size_bytes"], result["fetched_bytes"]) == (3, total, total)
    assert "config.json is here, 2 bytes." in bench.texts()


def test_an_order_without_files_takes_what_an_engine_needs(hub: Hub, bench: Bench) -> None:
    repository = hub.add(NAME, {"config.json": b"{}", "model.safetensors": b"w" * 99, "model.gguf": b"g" * 99})
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository, files=[], commit="main"))
    assert finished.result["commit"] == repository.commit
    assert {path.name for path in Path(finished.result["model_path"]).iterdir()} == {"config.json", "model.safetensors"}


def test_a_repository_without_a_model_is_no_success(hub: Hub, bench: Bench) -> None:
    repository = hub.add(NAME, {"picture.png": b"p"})
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository, files=[], commit="main"))
    assert finished.failure
    assert finished.failure.code == "hub.file_not_found"


def test_the_token_comes_sealed_and_stands_nowhere(hub: Hub, bench: Bench) -> None:
    repository = hub.add(NAME, {"config.json": b"{}"}, gated=True)
    refused = bench.run(StepKind.DOWNLOAD, payload(hub, repository))
    assert refused.failure
    assert refused.failure.code == "hub.gated"
    assert "terms" in refused.failure.next
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository), fence=2, token=GOOD_TOKEN)
    assert finished.outcome == "succeeded"
    assert not any(GOOD_TOKEN in report.model_dump_json() for report in bench.reports)
    written = [path for path in bench.config.state_dir.parent.rglob("*") if path.is_file()]
    assert not any(GOOD_TOKEN.encode() in path.read_bytes() for path in written)


def test_a_token_sealed_to_another_key_says_so(hub: Hub, repository: Repository, bench: Bench) -> None:
    _private, strangers = generate_key_pair()
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository), sealed={"hub_token": seal(strangers, "x")})
    assert finished.failure
    assert finished.failure.code == "secret.unreadable"


def test_a_cancelled_download_keeps_its_parts_and_the_retry_goes_on(
    hub: Hub, repository: Repository, bench: Bench
) -> None:
    hub.faults = Faults(rate=3e6, block=8192)
    order = payload(hub, repository)
    thread = threading.Thread(target=bench.run, args=[StepKind.DOWNLOAD, order])
    thread.start()
    deadline = time.monotonic() + 30
    while hub.sent["model.safetensors"] < 1_000_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    bench.cancel()
    thread.join(20)
    assert bench.reports[-1].outcome == "cancelled"
    hub.faults = Faults()
    finished = bench.run(StepKind.DOWNLOAD, order, fence=2)
    assert finished.outcome == "succeeded"
    assert finished.result["fetched_bytes"] < finished.result["size_bytes"] - 900_000
    assert any("goes on at" in text for text in bench.texts())
    progress = [report for report in bench.reports if report.kind == "step.progress"]
    assert progress
    assert {report.unit for report in progress} == {"bytes"}


def test_a_hub_that_is_gone_fails_the_step_by_its_deadline_with_what_it_waited_for(
    hub: Hub, repository: Repository, bench: Bench
) -> None:
    hub.faults.down = True
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository), deadline=2)
    assert finished.failure
    assert finished.failure.code == "step.deadline"
    assert hub.url in finished.failure.message


def test_what_does_not_fit_is_told_with_numbers(
    hub: Hub, repository: Repository, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_space, "free_bytes", lambda _folder: 0)
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository))
    assert finished.failure
    assert finished.failure.code == "disk.not_enough"
    assert "0.01 GB are needed" in finished.failure.message


def test_a_repair_names_what_it_replaced(hub: Hub, repository: Repository, bench: Bench) -> None:
    first = bench.run(StepKind.DOWNLOAD, payload(hub, repository))
    weights = (Path(first.result["model_path"]) / "model.safetensors").resolve()
    weights.write_bytes(bytes(6_000_000))
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository, repair=["model.safetensors"]), fence=2)
    assert finished.result["repaired"] == ["model.safetensors"]
    assert finished.result["fetched_bytes"] == 6_000_000
    assert weights.read_bytes() == repository.files["model.safetensors"].data


@pytest.mark.parametrize("path", ["../../escape", "/etc/escape"])
def test_a_path_out_of_the_snapshot_is_refused(hub: Hub, repository: Repository, bench: Bench, path: str) -> None:
    files = [{"path": path, "size": 0, "git_oid": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}]
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository, files=files))
    assert finished.failure
    assert finished.failure.code == "path.unsafe"
    assert not hub.requests_for_bytes


@pytest.mark.parametrize("change", [{"commit": "../x"}, {"files": [{"path": "a", "size": -1}]}, {"source": "ftp"}])
def test_a_payload_that_makes_no_sense_is_refused(
    hub: Hub, repository: Repository, bench: Bench, change: dict[str, Any]
) -> None:
    finished = bench.run(StepKind.DOWNLOAD, payload(hub, repository) | change)
    assert finished.failure
    assert finished.failure.code == "step.bad_payload"
