"""A model hub on loopback with the faults of real ones: it throttles, drops, cuts, lies, refuses, stalls and goes away.

It speaks the Hugging Face hub's protocol and ModelScope's, counts every byte it sends by file, and keeps every request.
`cdn=True` serves the bytes from a second address, as the real hub does. Run as a program it prints its address:

    python -m tests.standin.hub DIRECTORY
"""

import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

GOOD_TOKEN = "hf_token_of_alice"
OUTSIDER_TOKEN = "hf_token_of_bob"
USERS = {GOOD_TOKEN: "alice", OUTSIDER_TOKEN: "bob"}


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    on_cdn: bool


@dataclass
class Content:
    """One file of a repository."""

    data: bytes
    lfs: bool
    sha256: str
    git_oid: str


@dataclass
class Repository:
    """One repository: its files, its names for the one commit that it has, and who may see it."""

    files: dict[str, Content]
    commit: str
    gated: bool = False
    private: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    branches: tuple[str, ...] = ("main",)
    tags: tuple[str, ...] = ()
    parameters: dict[str, Any] | None = None


@dataclass
class Faults:
    """What is wrong with the hub now. Everything may be changed while it runs."""

    rate: float = 0
    """Bytes per second of all answers together; 0: as fast as it can."""
    block: int = 64 << 10
    drop_after: int = 0
    """The connection is reset after so many bytes of an answer, `drops` times."""
    drops: int = 0
    cut_to: int = 0
    """Answers end after so many bytes, although they announced more; below 0: before the first."""
    stall_after: int = 0
    """After so many bytes nothing more is sent, `stalls` times."""
    stalls: int = 0
    down: bool = False
    status: int = 0
    """Answers to requests for file contents; `statuses` of them."""
    statuses: int = 0
    status_headers: dict[str, str] = field(default_factory=dict)
    flip_byte_at: int = -1
    """This byte of each file is sent wrong, `flips` times."""
    flips: int = 0
    wrong_etag: bool = False
    wrong_size: bool = False
    wrong_commit: bool = False
    no_ranges: bool = False
    ignore_range_end: bool = False
    no_blob_facts: bool = False
    cdn: bool = False
    cdn_expires_after: int = 0
    """A signed address is refused after so many uses; 0: never."""
    not_json: bool = False


class Hub:
    """Use it as a context manager; `url` is its address."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._signed: Counter[str] = Counter()
        self._pace = time.monotonic()
        self._servers = [_server(self, on_cdn=False), _server(self, on_cdn=True)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)
        self.closing = threading.Event()

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, bytes], **about: Any) -> Repository:
        """Add a repository; files above 100 kB and weights are in LFS."""
        contents = {path: content(data, lfs=_in_lfs(path, data)) for path, data in files.items()}
        listing = {path: item.git_oid for path, item in sorted(contents.items())}
        commit = hashlib.sha1(json.dumps(listing).encode()).hexdigest()
        repository = Repository(contents, commit, **about)
        self.repositories[name] = repository
        return repository

    def take(self, fault: str) -> bool:
        """Use up one occurrence of a fault that happens a number of times."""
        with self._lock:
            left = getattr(self.faults, fault)
            setattr(self.faults, fault, max(0, left - 1))
        return bool(left)

    def count(self, path: str, number: int) -> None:
        """Note that bytes of a file went out."""
        with self._lock:
            self.sent[path] += number

    def note(self, asked: Asked) -> None:
        """Keep a request."""
        with self._lock:
            self.asked.append(asked)

    def pace(self, number: int) -> None:
        """Wait as long as the rate demands."""
        if not self.faults.rate:
            return
        with self._lock:
            self._pace = max(self._pace, time.monotonic() - 0.02) + number / self.faults.rate
            wait = self._pace - time.monotonic()
        if wait > 0:
            time.sleep(wait)

    def sign(self, path: str) -> str:
        """An address on the CDN; each is another one."""
        with self._lock:
            self._signed["number"] += 1
            return f"{self.cdn_url}/blob/{quote(path)}?signature={self._signed['number']}"

    def signature_holds(self, address: str) -> bool:
        """False once a signed address was used too often."""
        with self._lock:
            self._signed[address] += 1
            limit = self.faults.cdn_expires_after
            return not limit or self._signed[address] <= limit

    @property
    def requests_for_bytes(self) -> list[Asked]:
        """Requests for the contents of files."""
        return [asked for asked in self.asked if re.search(r"/resolve/|/blob/|/repo\?", asked.path)]


def content(data: bytes, *, lfs: bool) -> Content:
    """A file with its digests."""
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return Content(data, lfs, hashlib.sha256(data).hexdigest(), oid)


def _in_lfs(path: str, data: bytes) -> bool:
    return len(data) > 100_000 or path.endswith((".safetensors", ".bin", ".gguf"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed and connections cut here: nothing to tell."""


def _server(hub: Hub, *, on_cdn: bool) -> _Server:
    handler: Callable[..., Any] = type("Handler", (_Handler,), {"hub": hub, "on_cdn": on_cdn})
    return _Server(("127.0.0.1", 0), handler)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    on_cdn: bool

    def setup(self) -> None:
        # Little in flight: what is counted as sent is what the client has nearly got.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    # -- the frame ---------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        self._answer(None)

    def do_HEAD(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null"))

    def do_PUT(self) -> None:
        self.do_POST()

    def _answer(self, body: Any) -> None:
        hub = self.hub
        hub.note(Asked(self.command, self.path, dict(self.headers), self.on_cdn))
        if hub.faults.down:
            self.close_connection = True
            return
        path = unquote(urlsplit(self.path).path)
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if hub.faults.not_json and path.startswith("/api/"):
            self._send(200, b"<html>Please sign in to the network</html>")
        elif self.on_cdn:
            self._cdn(path)
        elif path.startswith("/api/v1/"):
            self._modelscope(path, query, body)
        else:
            self._hugging_face(path, query)

    def _send(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X_Error_Code": code} if code else {}
        self._send(status, {"error": message}, X_Error_Message=message, **headers)

    # -- the Hugging Face hub ----------------------------------------------------------------------------------------

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ").strip()

    def _hugging_face(self, path: str, query: dict[str, str]) -> None:
        token = self._token()
        if token and token not in USERS:
            self._error(401, "", "Invalid credentials in Authorization header")
        elif path == "/api/whoami-v2":
            self._whoami(token)
        elif path == "/api/models":
            self._search(query)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            self._about(match[1], match[2], match[3], query)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path):
            self._refs(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2], match[3])
        else:
            self._send(404, {"error": "not found"})

    def _whoami(self, token: str) -> None:
        if token in USERS:
            access = {"accessToken": {"role": "read", "displayName": "test"}}
            self._send(200, {"type": "user", "name": USERS[token], "auth": access})
        else:
            self._error(401, "", "Invalid username or password.")

    def _search(self, query: dict[str, str]) -> None:
        found = [
            {"id": name, "downloads": 10, "likes": 1, "gated": "manual" if item.gated else False, "private": False}
            for name, item in self.hub.repositories.items()
            if query.get("search", "").lower() in name.lower() and not item.private
        ]
        self._send(200, found[: int(query.get("limit", 20))])

    def _seen(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and self._token() != GOOD_TOKEN):
            self._error(404 if self._token() else 401, "RepoNotFound", "Repository not found")
            return None
        return repository

    def _at(self, name: str, revision: str) -> Repository | None:
        repository = self._seen(name)
        if repository and revision not in (repository.commit, *repository.branches, *repository.tags):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository

    def _about(self, name: str, kind: str, revision: str, query: dict[str, str]) -> None:
        repository = self._at(name, revision)
        if repository is None:
            return
        if kind == "tree":
            self._tree(name, revision, repository, query)
            return
        with_blobs = "blobs" in query and not self.hub.faults.no_blob_facts
        info = {
            "id": name,
            "sha": repository.commit,
            "private": repository.private,
            "gated": "manual" if repository.gated else False,
            "tags": ["text-generation", *(f"license:{value}" for value in [repository.card.get("license")] if value)],
            "cardData": repository.card,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "siblings": [_sibling(path, item, with_blobs) for path, item in sorted(repository.files.items())],
        }
        self._send(200, info | ({"safetensors": repository.parameters} if repository.parameters else {}))

    def _tree(self, name: str, revision: str, repository: Repository, query: dict[str, str]) -> None:
        items = sorted(repository.files.items())
        begin = int(query.get("cursor", 0))
        entries = [_tree_entry(path, item) for path, item in items[begin : begin + 2]]
        headers = {}
        if begin + 2 < len(items):
            url = f"{self.hub.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={begin + 2}"
            headers["Link"] = f'<{url}>; rel="next"'
        self._send(200, entries, **headers)

    def _refs(self, name: str) -> None:
        if repository := self._seen(name):
            named = {"branches": repository.branches, "tags": repository.tags}
            self._send(
                200,
                {
                    kind: [{"name": item, "ref": item, "targetCommit": repository.commit} for item in names]
                    for kind, names in named.items()
                },
            )

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._at(name, revision)
        if repository is None or not self._may_fetch(name, repository):
            return
        item = repository.files.get(path)
        if item is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        digest = item.sha256 if item.lfs else item.git_oid
        if self.hub.faults.wrong_etag:
            digest = "0" * len(digest)
        commit = "f" * 40 if self.hub.faults.wrong_commit else repository.commit
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
        if item.lfs:
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(item.data))}
        if self.hub.faults.cdn and item.lfs:
            location = self.hub.sign(f"{name}/{path}")
            self._send(302, b"", **{"Location": location, **headers})
        else:
            self._bytes(path, item.data, headers)

    def _may_fetch(self, name: str, repository: Repository) -> bool:
        if self.hub.faults.status and self.hub.take("statuses"):
            self._send(self.hub.faults.status, {"error": "not now"}, **self.hub.faults.status_headers)
            return False
        if repository.gated and self._token() != GOOD_TOKEN:
            self._error(403 if self._token() else 401, "GatedRepo", f"Access to model {name} is restricted.")
            return False
        return True

    def _cdn(self, path: str) -> None:
        match = re.fullmatch(r"/blob/([^/]+/[^/]+)/(.+)", path)
        if match is None or not self.hub.signature_holds(self.path):
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        else:
            item = self.hub.repositories[match[1]].files[match[2]]
            self._bytes(match[2], item.data, {"ETag": f'"cdn-{item.sha256[:8]}"'})

    # -- ModelScope --------------------------------------------------------------------------------------------------

    def _modelscope(self, path: str, query: dict[str, str], body: Any) -> None:
        if path == "/api/v1/login":
            user = USERS.get(str((body or {}).get("AccessToken")))
            good = {"Code": 200, "Success": True, "Data": {"Username": user, "AccessToken": "git"}}
            bad = {"Code": 10010205001, "Success": False, "Message": "unauthorized token"}
            self._send(200 if user else 400, good if user else bad)
        elif path == "/api/v1/dolphin/models":
            names = [name for name in self.hub.repositories if body["Name"].lower() in name.lower()]
            models = [{"Path": name.split("/")[0], "Name": name.split("/")[1], "Downloads": 7} for name in names]
            self._send(200, {"Code": 200, "Success": True, "Data": {"Model": {"Models": models, "TotalCount": 1}}})
        elif match := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)(/.*)?", path):
            repository = self.hub.repositories.get(match[1])
            if repository is None:
                self._send(404, {"Code": 10010205001, "Success": False, "Message": "record not found"})
            else:
                self._modelscope_model(repository, match[2] or "", query)

    def _modelscope_model(self, repository: Repository, rest: str, query: dict[str, str]) -> None:
        revision = query.get("Revision", "master")
        data: dict[str, Any]
        if revision not in ("master", "v1", repository.commit):
            self._send(404, {"Code": 10010205001, "Success": False, "Message": "revision not found"})
            return
        if rest == "/repo":
            item = repository.files[query["FilePath"]]
            self._bytes(query["FilePath"], item.data, {})
            return
        if rest == "/repo/files":
            files = [_modelscope_file(path, item, repository.commit) for path, item in repository.files.items()]
            folder = {"Path": "sub", "Type": "tree", "Size": 0, "Revision": repository.commit, "CommittedDate": 0}
            data = {"Files": [*files, folder], "LatestCommitter": {"Id": "", "ShortId": repository.commit[:8]}}
        elif rest == "/revisions":
            data = {"RevisionMap": {"Branches": [{"Revision": "master"}], "Tags": [{"Revision": "v1"}]}}
        else:
            data = {"License": repository.card.get("license", ""), "Tags": ["chat"], "Visibility": 5}
        self._send(200, {"Code": 200, "Success": True, "Data": data})

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _bytes(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        faults, size = self.hub.faults, len(data)
        begin, end, partial = 0, size, False
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        changed = self.headers.get("If-Range", headers.get("ETag", "")) != headers.get("ETag", "")
        if match and not faults.no_ranges and not changed:
            begin, partial = int(match[1]), True
            end = size if faults.ignore_range_end or not match[2] else min(int(match[2]) + 1, size)
            if begin >= size:
                self._send(416, b"", Content_Range=f"bytes */{size}")
                return
        self.send_response(206 if partial else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        told = size + 5 if faults.wrong_size else size
        if partial:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{told}")
        self.send_header("Content-Length", str(end - begin + (5 if faults.wrong_size else 0)))
        self.end_headers()
        if self.command != "HEAD":
            self._body(path, data, begin, end)

    def _body(self, path: str, data: bytes, begin: int, end: int) -> None:
        faults, sent, position = self.hub.faults, 0, begin
        while position < end and not faults.down and faults.cut_to >= 0:
            piece = bytearray(data[position : min(position + faults.block, end)])
            if position <= faults.flip_byte_at < position + len(piece) and self.hub.take("flips"):
                piece[faults.flip_byte_at - position] ^= 0xFF
            self.hub.pace(len(piece))
            self.wfile.write(piece)
            self.hub.count(path, len(piece))
            position, sent = position + len(piece), sent + len(piece)
            if faults.cut_to and sent >= faults.cut_to:
                break
            if faults.drop_after and sent >= faults.drop_after and self.hub.take("drops"):
                break
            if faults.stall_after and sent >= faults.stall_after and self.hub.take("stalls"):
                self.hub.closing.wait(60)
                break
        if position < end:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


def _sibling(path: str, item: Content, with_blobs: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"rfilename": path}
    if with_blobs:
        facts |= {"size": len(item.data), "blobId": item.git_oid}
        if item.lfs:
            facts["lfs"] = {"sha256": item.sha256, "size": len(item.data), "pointerSize": 134}
    return facts


def _tree_entry(path: str, item: Content) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(item.data), "oid": item.git_oid}
    if item.lfs:
        entry["lfs"] = {"oid": item.sha256, "size": len(item.data), "pointerSize": 134}
    return entry


def _modelscope_file(path: str, item: Content, commit: str) -> dict[str, Any]:
    return {
        "Path": path,
        "Name": path.rsplit("/", 1)[-1],
        "Type": "blob",
        "Size": len(item.data),
        "Sha256": item.sha256,
        "IsLFS": item.lfs,
        "Revision": commit,
        "CommittedDate": 1_700_000_000,
    }


def _serve(directory: Path) -> None:
    """Serve ORGANISATION/NAME/FILES below a directory until standard input closes."""
    with Hub() as hub:
        for folder in sorted(directory.glob("*/*")):
            files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            hub.add(f"{folder.parent.name}/{folder.name}", files)
        print(hub.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
