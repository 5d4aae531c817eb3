"""What is removed, what stays because something else needs it, and what is never touched."""

from pathlib import Path
from uuid import uuid4

from tests.host.steps.conftest import Bench
from tests.standin.hub import Hub
from workers.contracts import InstanceOrder, StepKind
from workers.host.files import write_json
from workers.host.instance_files import InstanceFiles
from workers.host.shim import UNFINISHED

NAME = "makers/tiny-chat"


def download(hub: Hub, bench: Bench, fence: int, files: dict[str, bytes]) -> Path:
    repository = hub.add(NAME, files)
    order = {
        "source": "mirror",
        "endpoint": hub.url,
        "repository": NAME,
        "commit": repository.commit,
        "revision": "main",
    }
    return Path(bench.run(StepKind.DOWNLOAD, order, fence=fence).result["model_path"])


def test_blobs_that_another_snapshot_uses_stay(hub: Hub, bench: Bench) -> None:
    shared, own = b"s" * 9_000, b"o" * 50_000
    first = download(hub, bench, 1, {"config.json": shared, "model.safetensors": own})
    second = download(hub, bench, 2, {"config.json": shared, "model.safetensors": b"n" * 10_000})
    finished = bench.run(StepKind.DELETE_COPY, {"model_path": str(first)}, fence=3)
    assert finished.result["removed_files"] == 2
    assert finished.result["freed_bytes"] >= 50_000
    assert not first.exists()
    assert (second / "config.json").read_bytes() == shared
    assert len(list((second.parents[1] / "blobs").iterdir())) == 2


def test_with_the_last_snapshot_the_repositorys_folder_goes(hub: Hub, bench: Bench) -> None:
    snapshot = download(hub, bench, 1, {"config.json": b"{}"})
    assert bench.run(StepKind.DELETE_COPY, {"model_path": str(snapshot)}, fence=2).outcome == "succeeded"
    assert not snapshot.parents[1].exists()
    again = bench.run(StepKind.DELETE_COPY, {"model_path": str(snapshot), "repository": "x"}, fence=3)
    assert again.result["already_gone"]


def test_a_directory_below_the_models_directory_is_removed_whole(bench: Bench) -> None:
    folder = bench.config.models_dir / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "x").write_bytes(bytes(9000))
    finished = bench.run(StepKind.DELETE_COPY, {"model_path": "mine"})
    assert finished.result["removed_files"] == 2
    assert not folder.exists()


def test_nothing_but_a_copy_is_ever_removed(hub: Hub, bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    models = bench.config.models_dir
    (models / "link").symlink_to(outside)
    (models / "many" / "model").mkdir(parents=True)
    (models / "many" / "model" / "config.json").write_text("{}")
    snapshot = download(hub, bench, 1, {"config.json": b"{}", "sub/model.bin": b"x"})
    refused = [
        outside,
        models / "link",
        models / "many" / "..",
        models,
        models / "many",
        models / "hub",
        "/",
        "../outside",
    ]
    refused += [snapshot.parents[1], snapshot.parent, snapshot / "sub", snapshot.parents[1] / "blobs", tmp_path]
    for number, path in enumerate(refused, start=2):
        finished = bench.run(StepKind.DELETE_COPY, {"model_path": str(path)}, fence=number)
        assert finished.failure, path
        assert finished.failure.code in ("path.outside", "path.not_a_copy")
    assert (outside / "config.json").exists()
    assert (models / "many" / "model" / "config.json").exists()
    assert (snapshot / "sub" / "model.bin").read_bytes() == b"x"


def test_what_an_engine_runs_from_stays(hub: Hub, bench: Bench) -> None:
    snapshot = download(hub, bench, 1, {"config.json": b"{}"})
    order = InstanceOrder(
        instance=uuid4(), deployment="demo", spec=1, engine="e", model_path=str(snapshot), served_model_names=["m"],
        arguments=[], port=8100, run=True,
    )  # fmt: skip
    files = InstanceFiles.of(bench.config.state_dir, order.instance)
    files.write_order(order, {})
    write_json(files.directory / "state.json", {"state": next(iter(UNFINISHED))})
    finished = bench.run(StepKind.DELETE_COPY, {"model_path": str(snapshot)}, fence=2)
    assert finished.failure
    assert finished.failure.code == "copy.in_use"
    assert "demo" in finished.failure.message
    assert (snapshot / "config.json").exists()

    write_json(files.directory / "state.json", {"state": "stopped"})
    assert bench.run(StepKind.DELETE_COPY, {"model_path": str(snapshot)}, fence=3).failure is None


def test_the_parts_of_an_abandoned_download_are_discarded(hub: Hub, bench: Bench) -> None:
    snapshot = download(hub, bench, 1, {"config.json": b"{}"})
    part = snapshot.parents[1] / "blobs" / f"{'a' * 64}.part"
    part.write_bytes(bytes(20_000))
    part.with_name(f"{'a' * 64}.part.ranges").write_bytes(b"x")
    finished = bench.run(StepKind.DELETE_COPY, {"repository": NAME, "parts_only": True}, fence=2)
    assert finished.result["removed_files"] == 1
    assert finished.result["freed_bytes"] >= 20_000
    assert [path.suffix for path in part.parent.iterdir()] == [""]
    assert (snapshot / "config.json").exists()
