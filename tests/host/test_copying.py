"""Copying from host to host: two real agents, one that gives its verified files and one that fetches them."""

import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.host.conftest import Broker, Console, make_host, wait_for
from workers.contracts import CopyOffer, ManifestFile, StepKind
from workers.host.offer_files import OfferFiles
from workers.sealing import public_key_of, seal
from workers.weights.verification import verify_directory

TOKEN = "token-of-this-job"
COMMIT = "c" * 40
WEIGHTS = random.Random(3).randbytes(9_000_001)
_numbers = itertools.count(1)


class Pair:
    """A giver and a receiver with their agents, and the console of each."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        hosts = []
        for name in ("giver", "receiver"):
            (folder / name).mkdir()
            hosts.append(make_host(folder / name, broker))
        self.giver, self.receiver = hosts
        self.giving, self.receiving = (Console(broker, host.config) for host in hosts)
        self.giver.start_agent()
        self.receiver.start_agent()

    def end(self) -> None:
        self.giver.end()
        self.receiver.end()


class Given:
    """One copy that is given, with the steps of its job."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.number = next(_numbers)
        self.repository = f"makers/tiny-{self.number}"
        self.model = pair.giver.config.models_dir / f"given-{self.number}"
        (self.model / "sub").mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        (self.model / "sub" / "a b.txt").write_text("umlaut")
        (self.model / "model.safetensors").write_bytes(WEIGHTS)
        self.manifest = [ManifestFile.model_validate(one) for one in verify_directory(self.model).manifest()]

    def open(self) -> dict[str, Any]:
        """Offer and open; returns how the step ended."""
        offer = CopyOffer(
            number=self.number, model_path=str(self.model), repository=self.repository, commit=COMMIT,
            sealed_token=seal(public_key_of(self.pair.giver.config.private_key), TOKEN),
        )  # fmt: skip
        self.pair.giving.want(offers=[offer])
        payload = {
            "offer": self.number, "model_path": str(self.model), "same_machine": True,
            "files": [file.model_dump() for file in self.manifest],
        }  # fmt: skip
        step = next(_numbers)
        self.pair.giving.dispatch(step, StepKind.SERVE_COPY, payload)
        return self.pair.giving.finished(step)

    def fetch(self, endpoint: str, **more: Any) -> dict[str, Any]:
        """Fetch from there; returns how the step ended."""
        return self.pair.receiving.finished(self.begin_fetch(endpoint, **more))

    def begin_fetch(self, endpoint: str, *, token: str = TOKEN, **more: Any) -> int:
        """Begin to fetch; returns the step once it is under way."""
        payload = {
            "source": "mirror", "endpoint": endpoint, "repository": self.repository, "commit": COMMIT,
            "giver": self.pair.giver.config.name, "patience_seconds": 2,
            "files": [{"path": one.path, "size": one.size, "sha256": one.sha256} for one in self.manifest],
        } | more  # fmt: skip
        step = next(_numbers)
        sealed = {"hub_token": seal(public_key_of(self.pair.receiver.config.private_key), token)}
        self.pair.receiving.dispatch(step, StepKind.DOWNLOAD, payload, sealed=sealed)
        return step

    def get(self, endpoint: str, path: str, token: str = TOKEN, **headers: str) -> httpx2.Response:
        """What the giving host answers to anybody."""
        url = f"{endpoint}/{self.repository}/resolve/{COMMIT}/{path}"
        with httpx2.Client(trust_env=False) as client:
            return client.get(url, headers={"Authorization": f"Bearer {token}", **headers})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, shared_broker: Broker) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HOME", "HF_HUB_CACHE"):
            patch.delenv(name, raising=False)
        # A proxy that leads nowhere: hosts of a private network are asked without it.
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        made = Pair(tmp_path_factory.mktemp("pair"), shared_broker)
        yield made
        made.end()


@pytest.fixture
def given(pair: Pair) -> Given:
    return Given(pair)


def test_a_second_host_copies_what_the_first_one_gives_until_the_offer_is_withdrawn(pair: Pair, given: Given) -> None:
    opened = given.open()
    assert opened["outcome"] == "succeeded", opened["failure"]
    endpoint = opened["result"]["endpoint"]
    assert opened["result"]["size_bytes"] == len(WEIGHTS) + 2 + 6
    finished = given.fetch(endpoint)
    assert finished["outcome"] == "succeeded", finished["failure"]
    copied = Path(finished["result"]["model_path"])
    assert (copied / "model.safetensors").read_bytes() == WEIGHTS
    assert (copied / "sub" / "a b.txt").read_text() == "umlaut"
    assert finished["result"]["fetched_bytes"] == len(WEIGHTS) + 8
    pair.giving.want()
    wait_for(lambda: not OfferFiles.numbers(pair.giver.config.state_dir), what="the offer to be closed")
    with pytest.raises(httpx2.ConnectError):
        given.get(endpoint, "config.json")


def test_nothing_is_given_without_the_token_nor_outside_of_what_was_verified(given: Given) -> None:
    (given.model / "secret.txt").write_text("not verified")
    endpoint = given.open()["result"]["endpoint"]
    assert given.get(endpoint, "config.json").text == "{}"
    assert given.get(endpoint, "config.json", token="wrong").status_code == 401
    for path in ("secret.txt", "../../state/desired.json", "%2e%2e/secret.txt", "sub", ""):
        assert given.get(endpoint, path).status_code == 404, path
    part = given.get(endpoint, "model.safetensors", Range="bytes=100-199")
    assert (part.status_code, part.content) == (206, WEIGHTS[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(WEIGHTS)}"
    assert given.get(endpoint, "model.safetensors", Range=f"bytes={len(WEIGHTS)}-").status_code == 416
    changed = given.get(endpoint, "model.safetensors", **{"Range": "bytes=0-9", "If-Range": '"another"'})
    assert (changed.status_code, len(changed.content)) == (200, len(WEIGHTS))
    with httpx2.Client(trust_env=False) as client:
        url = f"{endpoint}/{given.repository}/resolve/{COMMIT}/config.json"
        head = client.head(url, headers={"Authorization": f"Bearer {TOKEN}"})
        assert client.put(url).status_code == 501
    config = next(one for one in given.manifest if one.path == "config.json")
    assert (head.headers["X-Linked-Etag"], head.headers["X-Repo-Commit"]) == (f'"{config.sha256}"', COMMIT)


def test_a_wrong_token_ends_the_download_with_a_sentence_about_the_giving_host(pair: Pair, given: Given) -> None:
    failure = given.fetch(given.open()["result"]["endpoint"], token="wrong")["failure"]
    assert failure["code"] == "copy.refused"
    assert pair.giver.config.name in failure["message"]


def test_a_file_that_was_touched_since_its_verification_is_not_given(given: Given) -> None:
    endpoint = given.open()["result"]["endpoint"]
    (given.model / "config.json").write_text('{"other": 1}')
    failure = given.fetch(endpoint)["failure"]
    assert failure["code"] == "copy.source_changed"
    assert "config.json" in failure["message"]
    again = given.open()["failure"]
    assert again["code"] == "copy.source_changed"
    assert "config.json" in again["message"]


def test_bytes_that_rotted_without_a_trace_are_found_by_the_receiver(pair: Pair, given: Given) -> None:
    target = given.model / "model.safetensors"
    before = target.stat()
    with target.open("r+b") as file:
        file.seek(5000)
        file.write(bytes([WEIGHTS[5000] ^ 1]))
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    failure = given.fetch(given.open()["result"]["endpoint"])["failure"]
    assert failure["code"] == "copy.checksum_mismatch"
    assert pair.giver.config.name in failure["next"]


def test_an_address_that_nobody_answers_at_is_named_with_what_to_do(given: Given) -> None:
    failure = given.fetch("http://127.0.0.1:9")["failure"]
    assert failure["code"] == "copy.unreachable"
    assert "127.0.0.1:9" in failure["message"]
    assert "advertised_address" in failure["next"]


def test_a_cancelled_copy_keeps_its_parts(pair: Pair, given: Given) -> None:
    step = given.begin_fetch(given.open()["result"]["endpoint"], rate_limit=1_000_000)
    wait_for(lambda: pair.receiving.bodies("step.progress", step=step), what="progress")
    pair.receiving.want(cancelled=[{"step": step, "fence": 1}])
    assert pair.receiving.finished(step)["outcome"] == "cancelled"
    blobs = pair.receiver.config.models_dir / "hub" / f"models--{given.repository.replace('/', '--')}" / "blobs"
    assert list(blobs.glob("*.part"))


def test_a_giving_agent_that_is_killed_opens_again_at_the_same_port_and_the_copy_goes_on(
    pair: Pair, given: Given
) -> None:
    endpoint = given.open()["result"]["endpoint"]
    step = given.begin_fetch(endpoint, rate_limit=2_000_000, patience_seconds=60)
    wait_for(lambda: pair.receiving.bodies("step.progress", step=step), what="progress")
    os.kill(pair.giver.agents[-1].pid, signal.SIGKILL)
    pair.giver.agents[-1].wait()
    pair.giver.start_agent()
    finished = pair.receiving.finished(step)
    assert finished["outcome"] == "succeeded", finished["failure"]
    assert (Path(finished["result"]["model_path"]) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.long
def test_an_address_that_is_not_this_hosts_can_not_be_opened_at(pair: Pair, given: Given) -> None:
    agent = pair.giver.agents[-1]
    agent.terminate()
    agent.wait()
    pair.giver.config.model_copy(update={"advertised_address": "192.0.2.77"}).save(pair.giver.path)
    pair.giver.start_agent()
    failure = given.open()["failure"]
    assert failure["code"] == "copy.not_opened"
    assert "advertised_address" in failure["next"]
