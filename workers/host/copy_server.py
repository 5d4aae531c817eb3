"""Gives the files of one verified copy to another host, over HTTP, read only. Run by the agent, for one `CopyOffer`.

It speaks what the downloader asks a mirror for: `/{repository}/resolve/{commit}/{path}` with ranges and tags. Whoever asks
has to bring the offer's token. A file is given only while it is the one that was verified (size, mtime, inode).
"""

import argparse
import errno
import hmac
import logging
import os
import re
import socket
import stat
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from workers.contracts import CopyOffer, ManifestFile
from workers.host.desired import DesiredStore
from workers.host.logging_setup import set_up_logging
from workers.host.offer_files import OfferFiles, Opened
from workers.host.processes import die_with_parent
from workers.host_config import HostConfig
from workers.sealing import SealingError, unseal_any

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
_SILENT_SECONDS = 60
_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")


class CopyServer(ThreadingHTTPServer):
    """Serves one offer. `files` by the path of their address."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, *, root: Path, offer: CopyOffer, token: str, files: list[ManifestFile]):
        self.root = root
        self.token = token
        self.commit = offer.commit
        prefix = f"/{offer.repository}/resolve/{quote(offer.commit, safe='')}/"
        self.files = {prefix + file.path: file for file in files}
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def process_request(self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: object) -> None:
        """One thread for each connection, up to a limit; what comes beyond it is closed, and comes again."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: object
    ) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """A receiver that goes away is no news; anything else belongs into the agent's log."""
        error = sys.exception()
        if not isinstance(error, OSError):
            logger.error("a request for a copied file failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: CopyServer
    protocol_version = "HTTP/1.1"
    timeout = _SILENT_SECONDS

    def do_GET(self) -> None:
        """A file, or a range of it."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """What a GET would say."""
        self._answer(with_body=False)

    def version_string(self) -> str:
        """Nothing about versions."""
        return "slipway"

    def log_message(self, format: str, *args: object) -> None:
        """The receiving step tells what it gets."""

    def _answer(self, *, with_body: bool) -> None:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self._refuse(401, "Unauthorized", "this host does not know the token")
            return
        file = self.server.files.get(unquote(urlsplit(self.path).path))
        if file is None:
            self._refuse(404, "EntryNotFound", "the verified copy has no such file")
            return
        try:
            descriptor = os.open(self.server.root / file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._refuse(409, "FileChanged", f"{file.path} can't be read here: {error.strerror}")
            return
        try:
            self._give(descriptor, file, with_body=with_body)
        finally:
            os.close(descriptor)

    def _give(self, descriptor: int, file: ManifestFile, *, with_body: bool) -> None:
        now = os.fstat(descriptor)
        same = (now.st_size, now.st_mtime_ns, now.st_ino) == (file.size, file.mtime_ns, file.inode)
        if not same or not stat.S_ISREG(now.st_mode):
            self._refuse(409, "FileChanged", f"{file.path} was touched since it was verified")
            return
        tag = f'"{file.sha256}"' if file.sha256 else f'"{file.size}-{file.mtime_ns}"'
        start, end, partial = self._range(file.size, tag)
        if start > end or (partial and start >= file.size):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{file.size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{file.size}")
        self._describe(file, tag, end - start)
        if with_body:
            self._send(descriptor, start, end)

    def _describe(self, file: ManifestFile, tag: str, length: int) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(length),
            "Accept-Ranges": "bytes",
            "ETag": tag,
            "X-Repo-Commit": self.server.commit,
            "X-Linked-Size": str(file.size),
        }
        if file.sha256:
            headers["X-Linked-Etag"] = tag
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _range(self, size: int, tag: str) -> tuple[int, int, bool]:
        """First byte, byte behind the last, and whether that is a part; the whole when the file is another by now."""
        match = _RANGE.match(self.headers.get("Range", ""))
        wanted = self.headers.get("If-Range", tag)
        if match is None or wanted != tag or not (match[1] or match[2]):
            return 0, size, False
        if not match[1]:
            return max(0, size - int(match[2])), size, True
        return int(match[1]), min(size, int(match[2]) + 1 if match[2] else size), True

    def _send(self, descriptor: int, start: int, end: int) -> None:
        self.wfile.flush()
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            if start < end and self.connection.sendfile(file, start, end - start) < end - start:
                self.close_connection = True  # the file has shrunk: the receiver sees an answer that is too short

    def _refuse(self, status: int, code: str, text: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", text.encode("ascii", "replace").decode())
        self.send_header("Content-Length", "0")
        self.end_headers()


def open_server(config: HostConfig, offer: CopyOffer, taken: set[int]) -> CopyServer:
    """A server at the port that it had before, else at the first free one of the host's range.

    `taken` are ports that instances of this host were promised. Raises OSError or `SealingError`.
    """
    files = OfferFiles(config.state_dir, offer.number)
    address, given = files.read()
    token = unseal_any(config.private_keys, offer.sealed_token)
    root = config.models_dir / Path(offer.model_path).expanduser()
    before = files.opened
    first, last = config.port_range
    ports = [*([before.port] if before else []), *(port for port in range(first, last + 1) if port not in taken)]
    for port in ports:
        try:
            return CopyServer(address, port, root=root, offer=offer, token=token, files=given)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port between {first} and {last} is free on {address}")


def main() -> None:
    """Serve one offer until the agent ends this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--offer", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    set_up_logging("copy")
    config = HostConfig.load(options.config)
    state = DesiredStore(config.state_dir / "desired.json").state
    offer = next((one for one in state.copy_offers if one.number == options.offer), None) if state else None
    if state is None or offer is None:
        return
    files = OfferFiles(config.state_dir, offer.number)
    try:
        server = open_server(config, offer, {order.port for order in state.instances})
    except (OSError, SealingError) as error:
        files.say_problem(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
        raise SystemExit(1) from error
    opened = Opened(files.read()[0], server.server_port, os.getpid())
    logger.info("giving a copy at %s", opened.endpoint)
    with suppress(FileNotFoundError):  # the offer has just been withdrawn
        files.say_open(opened)
    server.serve_forever()


if __name__ == "__main__":
    main()
