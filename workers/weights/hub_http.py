"""HTTP with a hub: small JSON answers, the token sent to its own endpoint only, every failure as a `HubError`."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2

from workers.weights.hub_errors import BadAnswerError, InvalidNameError, from_response, from_transport
from workers.weights.hub_types import Source, SourceKind

USER_AGENT = "slipway"
LOOKUP_SECONDS = 10.0
_MOST_JSON_BYTES = 64 << 20
_MOST_HOPS = 5
REDIRECTS = (301, 302, 303, 307, 308)
# Each request would be logged with its whole address, and a CDN's signed address lets whoever reads it in.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?$")
_REVISION = re.compile(r"^[\w][\w./+-]{0,254}$")


def check_repository(repository: str) -> str:
    """Return the name if a hub could have it; raises `InvalidNameError`."""
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or "--" in repository.replace("/", "-/-"):
        raise InvalidNameError(f"{repository[:120]!r} can't be the name of a repository")
    return repository


def check_revision(revision: str) -> str:
    """Return the revision if git could have it; raises `InvalidNameError`."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise InvalidNameError(
            f"{revision[:120]!r} can't be a revision", next_step="Give a branch, a tag or a commit, such as main."
        )
    return revision


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address: whoever shares them may see the token."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def credentials(source: Source, token: str, url: str) -> dict[str, str]:
    """Headers that carry the token to `url`; none when it lies elsewhere than the source's endpoint (a CDN)."""
    if not token or origin(url) != origin(source.address):
        return {}
    if source.kind is SourceKind.MODELSCOPE:
        # ModelScope's own client sent the token as this cookie first, and sends it as a bearer's by now.
        return {"Cookie": f"m_session_id={token}", "Authorization": f"Bearer {token}"}
    return {"Authorization": f"Bearer {token}"}


def new_client(
    *, connect_seconds: float, read_seconds: float, connections: int = 4, direct: bool = False
) -> httpx2.Client:
    """A client that asks for bytes as they are and follows no redirect by itself.

    It goes by the machine's proxy unless it is `direct`: no proxy leads to another host of a private network.
    """
    timeout = httpx2.Timeout(read_seconds, connect=connect_seconds)
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    # Proxies and certificates are taken from the environment, but no password from .netrc.
    return httpx2.Client(timeout=timeout, limits=limits, headers=headers, auth=_no_auth, trust_env=not direct)


def _no_auth(request: httpx2.Request) -> httpx2.Request:
    return request


class Hub:
    """Asks one source; use it as a context manager. `token` may be empty."""

    def __init__(self, source: Source, token: str = "", *, timeout_seconds: float = LOOKUP_SECONDS) -> None:
        self.source = source
        self.token = token
        self.address = source.address
        self._client = new_client(connect_seconds=timeout_seconds, read_seconds=timeout_seconds)

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.close()

    def json(self, path: str, *, what: str, method: str = "GET", body: Any = None, **params: Any) -> Any:
        """The JSON that the endpoint gives for `path`. Raises a `HubError`."""
        return self.json_and_next(path, what=what, method=method, body=body, params=params)[0]

    def json_and_next(
        self, path: str, *, what: str, method: str = "GET", body: Any = None, params: Mapping[str, Any] | None = None
    ) -> tuple[Any, str]:
        """The JSON, and the address of the next page (empty: this was the last)."""
        with self._answer(method, path, what=what, body=body, params=params) as response:
            content = _read(response, _MOST_JSON_BYTES)
            following = response.links.get("next", {}).get("url", "")
        try:
            return json.loads(content), urljoin(self.address + "/", following) if following else ""
        except (ValueError, RecursionError):
            raise BadAnswerError(f"{self.address} does not answer with JSON for {what}") from None

    def bytes_of(self, path: str, *, what: str, most: int, first: int | None = None) -> bytes:
        """The content of a small file, or its first bytes. Raises `BadAnswerError` when it is larger than `most`."""
        headers = {} if first is None else {"Range": f"bytes=0-{first - 1}"}
        with self._answer("GET", path, what=what, headers=headers) as response:
            return _read(response, most, cut=first)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx2.Response]:
        url = path if path.startswith("http") else self.address + path
        try:
            for _hop in range(_MOST_HOPS):
                sent = {**(headers or {}), **credentials(self.source, self.token, url)}
                with self._client.stream(method, url, headers=sent, params=params, json=body) as response:
                    if response.status_code in REDIRECTS and "location" in response.headers:
                        url, params = urljoin(url, response.headers["location"]), None
                        continue
                    if response.status_code not in (200, 206):
                        said = _read(response, 1 << 16, cut=1 << 16)
                        raise from_response(response, said, what=what, with_token=bool(self.token))
                    yield response
                    return
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise from_transport(error, endpoint=self.address) from error
        raise BadAnswerError(f"{self.address} redirects in circles for {what}")


def _read(response: httpx2.Response, most: int, *, cut: int | None = None) -> bytes:
    """The body, read in pieces so that an endless one can't fill the memory; at most `cut` bytes of it."""
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if cut is not None and len(content) >= cut:
            del content[cut:]
            break
        if len(content) > most:
            raise BadAnswerError(f"the answer is larger than {most:,} bytes")
    return bytes(content)
