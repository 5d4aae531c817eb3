"""Downloads from a hub that does what real ones do: each ends right, or with the message that fits."""

import errno
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import scan_cache_dir, snapshot_download

from tests.standin.hub import GOOD_TOKEN, OUTSIDER_TOKEN, Faults, Hub, Repository, content
from tests.weights.hub.conftest import NAME, request_of
from workers.weights import download, download_part, download_space
from workers.weights import hub_errors as errors
from workers.weights.download import Downloader
from workers.weights.download_part import PartFile
from workers.weights.download_source import ShortAnswerError
from workers.weights.download_space import NotEnoughSpaceError, reserve
from workers.weights.download_types import Downloaded, DownloadRequest
from workers.weights.hub import HubFile, Source, SourceKind, lookup

BIG = "model-1.safetensors"


def fetch(hub: Hub, cache: Path, *, token: str = "", **changes: Any) -> Downloaded:
    return Downloader(request_of(hub, token=token, **changes), cache, token=token).run()


def assert_whole(snapshot: Path, repository: Repository) -> None:
    for path, item in repository.files.items():
        assert (snapshot / path).read_bytes() == item.data, path
    assert not list(snapshot.parents[1].glob("blobs/*.part*"))


def test_the_files_lie_where_huggingface_hub_finds_them_offline(hub: Hub, repository: Repository, cache: Path) -> None:
    done = fetch(hub, cache)
    assert_whole(done.snapshot, repository)
    scanned = scan_cache_dir(cache)
    assert [repo.repo_id for repo in scanned.repos] == [NAME]
    assert not scanned.warnings
    found = snapshot_download(NAME, revision="main", cache_dir=cache, local_files_only=True)
    assert Path(found) == done.snapshot
    total = sum(len(item.data) for item in repository.files.values())
    assert (done.fetched, done.size, done.files) == (total, total, len(repository.files))
    assert sum(hub.sent.values()) - hub.sent["config.json"] == total - len(repository.files["config.json"].data)


def test_a_second_download_fetches_nothing(hub: Hub, repository: Repository, cache: Path) -> None:
    fetch(hub, cache)
    again = fetch(hub, cache)
    assert again.fetched == 0
    assert_whole(again.snapshot, repository)


def test_a_large_file_comes_in_several_ranges_at_once(hub: Hub, repository: Repository, cache: Path) -> None:
    request = request_of(hub)
    only = tuple(file for file in request.files if file.path == BIG)
    Downloader(request_of(hub, files=only, connections=4), cache).run()
    ranges = {asked.headers["Range"] for asked in hub.requests_for_bytes if BIG in asked.path}
    assert len(ranges) == 3


def test_files_with_the_same_content_are_fetched_once(hub: Hub, cache: Path) -> None:
    repository = hub.add(NAME, {"a.safetensors": b"w" * 5000, "b.safetensors": b"w" * 5000})
    done = fetch(hub, cache)
    assert_whole(done.snapshot, repository)
    assert (done.fetched, done.size) == (5000, 10000)


FAULTS: dict[str, dict[str, Any]] = {
    "the connection is reset": {"drop_after": 600_000, "drops": 6},
    "answers are cut short": {"cut_to": 700_000},
    "the hub has a problem": {"status": 500, "statuses": 5},
    "the hub is overloaded": {"status": 503, "statuses": 3, "status_headers": {"Retry-After": "0"}},
    "the hub limits the rate": {"status": 429, "statuses": 3, "status_headers": {"Retry-After": "0"}},
    "one byte is wrong on its way": {"flip_byte_at": 700_000, "flips": 1},
    "ranges are not supported": {"no_ranges": True},
    "the end of a range is ignored": {"ignore_range_end": True},
    "the bytes come from a CDN": {"cdn": True},
    "signed addresses expire": {"cdn": True, "cdn_expires_after": 1},
    "the hub is slow": {"rate": 8e6, "block": 16_384},
    "the CDN resets connections": {"cdn": True, "drop_after": 600_000, "drops": 4},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_it_ends_right_although(hub: Hub, repository: Repository, cache: Path, fault: dict[str, Any]) -> None:
    request = request_of(hub, token=GOOD_TOKEN)
    hub.faults = Faults(**fault)
    done = Downloader(request, cache, token=GOOD_TOKEN).run()
    assert_whole(done.snapshot, repository)
    on_cdn = [asked for asked in hub.asked if asked.on_cdn]
    assert bool(on_cdn) == hub.faults.cdn
    assert not any("Authorization" in asked.headers for asked in on_cdn)


@pytest.mark.parametrize("fault", [{"ignore_range_end": True}, {"no_ranges": True}])
def test_a_source_without_proper_ranges_is_read_through_once(
    hub: Hub, repository: Repository, cache: Path, fault: dict[str, Any]
) -> None:
    request = request_of(hub)
    hub.faults = Faults(**fault)
    done = Downloader(request, cache).run()
    assert done.fetched == done.size
    asked = [asked for asked in hub.requests_for_bytes if BIG in asked.path]
    assert len(asked) == 1


LIES: list[tuple[dict[str, Any], type[errors.HubError], str]] = [
    ({"wrong_etag": True}, errors.FileChangedError, "the chosen one is"),
    ({"wrong_size": True}, errors.FileChangedError, "bytes, the chosen one"),
    ({"wrong_commit": True}, errors.FileChangedError, "commit ffffffffffff instead of"),
    ({"flip_byte_at": 5, "flips": 10**6}, errors.ChecksumMismatchError, "was fetched 2 times"),
    ({"status": 404, "statuses": 10**6}, errors.HubFileNotFoundError, "the hub has no"),
    ({"status": 401, "statuses": 10**6}, errors.TokenNeededError, "nobody without a token"),
    ({"status": 403, "statuses": 10**6}, errors.ForbiddenWithoutTokenError, "a request without a token"),
    ({"status": 418, "statuses": 10**6}, errors.BadAnswerError, "status 418"),
    ({"cut_to": -1}, ShortAnswerError, "ended"),
]


@pytest.mark.parametrize(("fault", "kind", "words"), LIES)
def test_it_ends_with_the_message_that_fits(
    hub: Hub, repository: Repository, cache: Path, fault: dict[str, Any], kind: type[errors.HubError], words: str
) -> None:
    request = request_of(hub)
    hub.faults = Faults(**fault)
    with pytest.raises(errors.HubError, match=words) as caught:
        Downloader(request, cache).run()
    assert type(caught.value) is kind
    assert caught.value.next_step
    snapshots = cache / f"models--{NAME.replace('/', '--')}" / "snapshots"
    assert not snapshots.exists()  # nothing half-fetched looks like a model


@pytest.mark.parametrize(("token", "kind"), [("", errors.GatedError), (OUTSIDER_TOKEN, errors.GatedError)])
def test_a_gate_is_told_as_a_gate(hub: Hub, cache: Path, token: str, kind: type[errors.HubError]) -> None:
    hub.add(NAME, {"config.json": b"{}"}, gated=True)
    with pytest.raises(kind):
        fetch(hub, cache, token=token)
    assert fetch(hub, cache, token=GOOD_TOKEN).files == 1


def test_a_token_that_may_not_read_is_told_as_such(hub: Hub, repository: Repository, cache: Path) -> None:
    request = request_of(hub, token=GOOD_TOKEN)
    hub.faults = Faults(status=403, statuses=10**6)
    with pytest.raises(errors.ForbiddenError, match="the token may not read") as caught:
        Downloader(request, cache, token=GOOD_TOKEN).run()
    assert type(caught.value) is errors.ForbiddenError


def test_a_stalled_connection_is_made_anew(hub: Hub, repository: Repository, cache: Path) -> None:
    request = request_of(hub, stall_seconds=0.4)
    hub.faults = Faults(stall_after=300_000, stalls=2)
    begun = time.monotonic()
    done = Downloader(request, cache).run()
    assert_whole(done.snapshot, repository)
    assert hub.faults.stalls == 0
    assert time.monotonic() - begun < 30  # the stand-in would be silent for a minute


def test_it_waits_for_a_hub_that_is_down_and_says_so(hub: Hub, repository: Repository, cache: Path) -> None:
    downloader = Downloader(request_of(hub), cache)
    hub.faults = Faults(rate=6e6)
    said: set[str] = set()

    def watch() -> None:
        progress = downloader.progress()
        if progress.done > 2_000_000 and not said:
            hub.faults.down = True
        if hub.faults.down and hub.url in progress.waiting_for:
            said.add(progress.waiting_for)
            hub.faults = Faults()

    done = downloader.run(watch)
    assert_whole(done.snapshot, repository)
    assert "asked again in" in said.pop()


def test_patience_ends(hub: Hub, repository: Repository, cache: Path) -> None:
    request = request_of(hub, patience_seconds=0.5)
    hub.faults.down = True
    with pytest.raises(errors.UnreachableError):
        Downloader(request, cache).run()


def test_what_changed_at_the_source_is_fetched_from_its_beginning(
    hub: Hub, repository: Repository, cache: Path
) -> None:
    hub.faults.cdn = True
    request = request_of(hub)
    interrupt_at(hub, request_of(hub), cache, 3_000_000)
    for part in cache.rglob("*.part.ranges"):
        raw = part.read_bytes()
        part.write_bytes(raw.replace(b"cdn-", b"old-"))
    said: list[str] = []
    done = Downloader(request, cache, tell=said.append).run()
    assert_whole(done.snapshot, repository)
    assert any("has changed at the source" in text for text in said)


class EnoughError(Exception):
    """Raised by a test to end a download."""


def interrupt_at(hub: Hub, request: Any, cache: Path, count: int) -> Downloader:
    """Run a download and end it once it has fetched so many bytes."""
    downloader = Downloader(request, cache)
    rate, hub.faults.rate = hub.faults.rate, 10e6

    def check() -> None:
        if downloader.progress().done >= count:
            raise EnoughError

    with pytest.raises(EnoughError):
        downloader.run(check)
    hub.faults.rate = rate
    return downloader


def test_cancelling_keeps_what_came_and_the_next_one_goes_on(hub: Hub, repository: Repository, cache: Path) -> None:
    before = interrupt_at(hub, request_of(hub), cache, 4_000_000).progress()
    assert list(cache.rglob("*.part"))
    done = fetch(hub, cache)
    assert_whole(done.snapshot, repository)
    assert done.fetched == done.size - before.done


def test_cancelling_does_not_wait_for_a_silent_hub(hub: Hub, repository: Repository, cache: Path) -> None:
    hub.faults = Faults(stall_after=100_000, stalls=100)
    downloader = Downloader(request_of(hub), cache)
    begun = time.monotonic()

    def check() -> None:
        if downloader.progress().done > 100_000 and time.monotonic() - begun > 1:
            raise EnoughError

    with pytest.raises(EnoughError):
        downloader.run(check)
    assert time.monotonic() - begun < 10
    assert fetch(cured(hub), cache).files == len(repository.files)


def test_a_download_can_be_cancelled_before_the_hub_has_answered_at_all(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        source = Source(SourceKind.MIRROR, f"http://127.0.0.1:{mute.getsockname()[1]}")
        file = HubFile("config.json", 2, git_oid=content(b"{}", lfs=False).git_oid)
        begun = time.monotonic()

        def check() -> None:
            if time.monotonic() - begun > 0.5:
                raise EnoughError

        with pytest.raises(EnoughError):
            Downloader(DownloadRequest(source, NAME, "c" * 40, (file,)), cache).run(check)
        assert time.monotonic() - begun < 15


def cured(hub: Hub) -> Hub:
    hub.faults = Faults()
    return hub


def test_the_rate_limit_holds_for_all_connections_together(hub: Hub, repository: Repository, cache: Path) -> None:
    only = tuple(file for file in request_of(hub).files if file.path == "model-2.safetensors")
    begun = time.monotonic()
    Downloader(request_of(hub, files=only, rate_limit=1_000_000), cache).run()
    assert time.monotonic() - begun > 1.3


def test_two_downloads_of_one_model_share_the_work(hub: Hub, repository: Repository, cache: Path) -> None:
    hub.faults.rate = 15e6
    request = request_of(hub)
    hub.sent.clear()
    done: list[Downloaded] = []
    threads = [threading.Thread(target=lambda: done.append(Downloader(request, cache).run())) for _number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 2
    assert_whole(done[0].snapshot, repository)
    assert hub.sent[BIG] == len(repository.files[BIG].data)


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_anything_is_fetched(
    hub: Hub, repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(hub)
    monkeypatch.setattr(download_space, "free_bytes", lambda _folder: download_space.KEPT_FREE_BYTES + 9_000_000)
    hub.sent.clear()
    with pytest.raises(NotEnoughSpaceError, match=r"0\.01 GB are needed"):
        Downloader(request, cache).run()
    assert not hub.sent


def test_two_downloads_never_count_on_the_same_space(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_space, "free_bytes", lambda _folder: download_space.KEPT_FREE_BYTES + 100)
    first = reserve(cache, 70)
    with pytest.raises(NotEnoughSpaceError) as caught:
        reserve(cache, 40)
    assert caught.value.promised == 70
    first.lower_to(60)
    second = reserve(cache, 40)
    first.release()
    reserve(cache, 60).release()
    second.release()


def test_the_reservation_of_a_dead_process_counts_for_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_space, "free_bytes", lambda _folder: download_space.KEPT_FREE_BYTES + 100)
    if (pid := os.fork()) == 0:
        reserve(cache, 100)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert list(cache.rglob("slipway-reservations/*.json"))
    reserve(cache, 100).release()


def test_a_disk_that_fills_up_pauses_the_download_until_there_is_space(
    hub: Hub, repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = PartFile.write, threading.Event()
    full.set()

    def write_if_space(part: PartFile, span: Any, data: memoryview) -> None:
        if full.is_set() and part.received > 500_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(part, span, data)

    monkeypatch.setattr(PartFile, "write", write_if_space)
    monkeypatch.setattr(download, "free_bytes", lambda _folder: 0 if full.is_set() else 1 << 40)
    downloader = Downloader(request_of(hub), cache)
    said: set[str] = set()

    def watch() -> None:
        if (text := downloader.progress().waiting_for).startswith("space on the disk"):
            said.add(text)
            full.clear()

    done = downloader.run(watch)
    assert_whole(done.snapshot, repository)
    assert any(str(cache) in text for text in said)
    assert done.fetched == done.size


# -- repair -----------------------------------------------------------------------------------------------------------


def test_a_repair_fetches_the_damaged_file_only(hub: Hub, repository: Repository, cache: Path) -> None:
    done = fetch(hub, cache)
    blob = (done.snapshot / "model-2.safetensors").resolve()
    blob.write_bytes(b"x" * blob.stat().st_size)
    hub.sent.clear()
    repaired = fetch(hub, cache, repair=frozenset({"model-2.safetensors", BIG}))
    assert repaired.repaired == ("model-2.safetensors",)
    assert repaired.fetched == blob.stat().st_size
    assert_whole(repaired.snapshot, repository)
    assert hub.sent[BIG] == 0


def test_a_file_that_is_gone_or_has_another_size_is_fetched_again(
    hub: Hub, repository: Repository, cache: Path
) -> None:
    done = fetch(hub, cache)
    (done.snapshot / "tokenizer.json").resolve().unlink()
    os.truncate((done.snapshot / "model-2.safetensors").resolve(), 1000)
    again = fetch(hub, cache)
    assert again.fetched == sum(len(repository.files[name].data) for name in ("tokenizer.json", "model-2.safetensors"))
    assert_whole(again.snapshot, repository)


def test_modelscope_is_fetched_like_any_other(hub: Hub, repository: Repository, cache: Path) -> None:
    source = Source(SourceKind.MODELSCOPE, hub.url)
    facts = lookup(source, NAME)
    request = request_of(hub, source=source, commit=facts.commit, files=facts.files, revision="master")
    done = Downloader(request, cache, token=GOOD_TOKEN).run()
    assert_whole(done.snapshot, repository)
    assert all(f"m_session_id={GOOD_TOKEN}" in asked.headers["Cookie"] for asked in hub.requests_for_bytes[-3:])


def test_progress_names_files_and_adds_up(hub: Hub, repository: Repository, cache: Path) -> None:
    hub.faults.rate = 10e6
    downloader = Downloader(request_of(hub), cache)
    seen: list[Any] = []
    done = downloader.run(lambda: seen.append(downloader.progress()))
    assert [item.done for item in seen] == sorted(item.done for item in seen)
    assert any(file.path == BIG and 0 < file.done < file.size for item in seen for file in item.running)
    assert {item.total for item in seen} == {done.size}
    assert downloader.progress().done == done.size


def test_files_that_no_digest_is_known_of_are_fetched_once(hub: Hub, repository: Repository, cache: Path) -> None:
    asked = request_of(hub)
    nameless = replace(asked, files=tuple(replace(file, sha256="", git_oid="") for file in asked.files))
    done = Downloader(nameless, cache).run()
    assert_whole(done.snapshot, repository)
    again = Downloader(nameless, cache).run()
    assert (again.fetched, again.files) == (0, done.files)
    assert_whole(again.snapshot, repository)
    anew = Downloader(replace(nameless, repair=frozenset({asked.files[0].path})), cache).run()
    assert anew.fetched == asked.files[0].size


def test_files_outside_of_lfs_are_known_by_gits_object_id(hub: Hub, repository: Repository, cache: Path) -> None:
    asked = request_of(hub)
    small = next(file for file in asked.files if not file.sha256)
    assert small.git_oid
    done = Downloader(asked, cache).run()
    assert (done.snapshot / small.path).resolve().name == small.git_oid
    assert Downloader(asked, cache).run().fetched == 0


def test_each_file_is_listed_with_its_own_progress(hub: Hub, repository: Repository, cache: Path) -> None:
    hub.faults.rate = 10e6
    downloader = Downloader(request_of(hub), cache)
    seen: list[Any] = []
    done = downloader.run(lambda: seen.append(downloader.files()))
    assert any(
        file.path == BIG and file.state == "active" and 0 < file.done < file.size for one in seen for file in one
    )
    states = [[file.state for file in one] for one in seen]
    assert all(one == sorted(one, key=("active", "waiting", "done").index) for one in states)
    assert len(downloader.files()) == done.files
    assert {file.state for file in downloader.files()} == {"done"}


def test_pieces_are_large_enough_for_a_small_journal() -> None:
    largest = 10**12
    journal = 8 * largest / download_part.PIECE_BYTES
    assert journal < 4 << 20
