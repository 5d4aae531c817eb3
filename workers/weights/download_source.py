"""Opens byte ranges of files at a source: redirects, credentials, and whether the answer is the file that was chosen."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx2

from workers.weights.hub import file_path
from workers.weights.hub_errors import (
    BadAnswerError,
    FileChangedError,
    HubError,
    HubFileNotFoundError,
    RepositoryNotFoundError,
    from_response,
    from_transport,
)
from workers.weights.hub_http import REDIRECTS, credentials, new_client, origin
from workers.weights.hub_types import HubFile, Source

CONNECT_SECONDS = 20.0
_MOST_HOPS = 5
_RANGE = re.compile(r"^bytes (\d+)-(\d+)/(\d+|\*)$")
_DIGEST = re.compile(r"^[0-9a-f]{40}$|^[0-9a-f]{64}$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer with bytes `start` to `end` (exclusive) of the file, whatever was asked for.

    `etag` is the tag of the server that sends it.
    """

    start: int
    end: int
    etag: str
    chunks: Iterator[bytes]


class SilentError(HubError):
    """The source sent nothing for too long; the connection is made anew."""

    code = "hub.silent"
    temporary = True


class ShortAnswerError(HubError):
    """The source ended an answer before it was complete."""

    code = "hub.short_answer"
    temporary = True
    advice = "The source cuts its answers short: try again, or use another source."


class FileSource:
    """Where all files of one download come from. Thread-safe; `abort` ends what is being received at once."""

    def __init__(
        self,
        source: Source,
        repository: str,
        commit: str,
        token: str,
        *,
        stall_seconds: float,
        connections: int,
        direct: bool = False,
    ) -> None:
        self._source = source
        self._repository = repository
        self._commit = commit
        self._token = token
        self._stall_seconds = stall_seconds
        self._client = new_client(
            connect_seconds=CONNECT_SECONDS, read_seconds=stall_seconds, connections=connections, direct=direct
        )
        self._lock = threading.Lock()
        self._locations: dict[str, str] = {}
        self._sockets: set[socket.socket] = set()
        self._aborted = False

    def close(self) -> None:
        """End all connections."""
        self.abort()
        self._client.close()

    def abort(self) -> None:
        """Wake whoever waits for bytes; they get an `UnreachableError`."""
        with self._lock:
            self._aborted = True
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def open(self, file: HubFile, start: int, end: int, *, etag: str = "") -> Iterator[Opened]:
        """Ask for bytes `start` to `end` (exclusive). Raises a `HubError`; a server may answer with more than that.

        `etag` is the tag that earlier bytes of the file had: a server whose file has changed sends it from the beginning.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if etag and not etag.startswith("W/"):
            headers["If-Range"] = etag
        answered = False
        try:
            with self._answer(file, headers) as response:
                answered = True
                start, end = _range_of(response, file)
                yield Opened(start, end, response.headers.get("ETag", ""), response.iter_raw())
        except httpx2.ReadTimeout as error:
            raise SilentError(f"the source sent nothing for {self._stall_seconds:.0f} s") from error
        except httpx2.RemoteProtocolError as error:
            if answered:
                raise ShortAnswerError(f"the source ended its answer too early ({error})") from error
            raise from_transport(error, endpoint=self._source.address) from error
        except (httpx2.TransportError, httpx2.StreamError, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise  # the disk's, not the network's
            raise from_transport(error, endpoint=self._source.address) from error

    @contextmanager
    def _answer(self, file: HubFile, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """The response that has the bytes, after redirects. Where they led is remembered until it is refused."""
        first = self._source.address + file_path(self._source.kind, self._repository, self._commit, file.path)
        url = self._locations.get(file.path, first)
        remembered = url != first
        for _hop in range(_MOST_HOPS):
            sent = {**headers, **credentials(self._source, self._token, url)}
            with self._client.stream("GET", url, headers=sent) as response:
                status = response.status_code
                self._check_identity(response, file, at_source=origin(url) == origin(first))
                if status in REDIRECTS and "location" in response.headers:
                    url = urljoin(url, response.headers["location"])
                    continue
                if status in (200, 206):
                    if origin(url) != origin(first):
                        self._locations[file.path] = url
                    with self._receiving(response):
                        yield response
                    return
                self._locations.pop(file.path, None)
                if remembered and status in (400, 401, 403, 404, 410):
                    # A signed address has expired: the source gives a new one.
                    url, remembered = first, False
                    continue
                raise self._refused(response, file)
        raise BadAnswerError(f"{self._source.address} redirects in circles for {file.path}")

    def _refused(self, response: httpx2.Response, file: HubFile) -> HubError:
        what = f"{file.path} of {self._repository}"
        if response.status_code == 416:
            return FileChangedError(
                f"the source's {file.path} is shorter than the {file.size:,} bytes that were chosen"
            )
        error = from_response(response, _first_bytes(response), what=what, with_token=bool(self._token))
        if type(error) is RepositoryNotFoundError and "X-Error-Code" not in response.headers:
            return HubFileNotFoundError(f"the hub has no {what} at {self._commit[:12]}")
        return error

    def _check_identity(self, response: httpx2.Response, file: HubFile, *, at_source: bool) -> None:
        """The hub names commit and digest of what it serves: neither may be another than the chosen one."""
        if not at_source or response.status_code >= 400:
            return
        commit = response.headers.get("X-Repo-Commit", "")
        if _COMMIT.match(commit) and _COMMIT.match(self._commit) and commit != self._commit:
            raise FileChangedError(
                f"the source serves {file.path} of commit {commit[:12]} instead of {self._commit[:12]}"
            )
        tag = (
            (response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or "").removeprefix("W/").strip('"')
        )
        expected = next((digest for digest in (file.sha256, file.git_oid) if len(digest) == len(tag)), "")
        if _DIGEST.match(tag) and expected and tag != expected:
            raise FileChangedError(f"the source's {file.path} is {tag[:12]}…, the chosen one is {expected[:12]}…")

    @contextmanager
    def _receiving(self, response: httpx2.Response) -> Iterator[None]:
        stream = response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is None:
            yield
            return
        with self._lock:
            if self._aborted:
                raise httpx2.ReadError("the download has been given up")
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connection)


def _range_of(response: httpx2.Response, file: HubFile) -> tuple[int, int]:
    """Which bytes of the file the body has. Raises `FileChangedError` when the whole has another size than it should."""
    if response.status_code == 200:
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != file.size:
            raise FileChangedError(f"the source's {file.path} has {int(length):,} bytes, the chosen one {file.size:,}")
        return 0, file.size
    match = _RANGE.match(response.headers.get("Content-Range", ""))
    if match is None:
        raise BadAnswerError(f"the source sends a part of {file.path} without saying which")
    if match[3] != "*" and int(match[3]) != file.size:
        raise FileChangedError(f"the source's {file.path} has {int(match[3]):,} bytes, the chosen one {file.size:,}")
    return int(match[1]), int(match[2]) + 1


def _first_bytes(response: httpx2.Response) -> bytes:
    for chunk in response.iter_raw():
        return chunk[: 1 << 16]
    return b""
