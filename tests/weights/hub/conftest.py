"""A hub, a repository with a model in it, and an empty cache."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.hub import Hub, Repository
from workers.weights import download, download_job
from workers.weights.download_types import DownloadRequest
from workers.weights.hub import Source, SourceKind, lookup

NAME = "makers/tiny-chat"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between two tries, made short; the rules stay."""
    monkeypatch.setattr(download_job, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(download_job, "_LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(download, "_BUSY_SECONDS", 0.05)
    for name in ("HF_HOME", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture
def repository(hub: Hub) -> Repository:
    """One file of several pieces, two smaller ones, and small files, one of them in a folder."""
    return hub.add(
        NAME,
        {
            "config.json": json.dumps(CONFIG).encode(),
            "tokenizer.json": b"{}" * 300,
            "extra/notes.txt": b"as they say",
            "empty.txt": b"",
            "model-1.safetensors": noise(11_000_000, 1),
            "model-2.safetensors": noise(1_500_000, 2),
        },
        card={"license": "apache-2.0"},
        tags=("v1",),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    return folder


def request_of(hub: Hub, **changes: object) -> DownloadRequest:
    """Everything that the repository has."""
    source = Source(SourceKind.MIRROR, hub.url)
    facts = lookup(source, NAME, "main", str(changes.pop("token", "")))
    values: dict[str, object] = {
        "source": source,
        "repository": NAME,
        "commit": facts.commit,
        "files": facts.files,
        "revision": "main",
    }
    return DownloadRequest(**(values | changes))  # type: ignore[arg-type]
