"""Everything that a hub can answer instead of what was asked, each with its own code, message and next step."""

import json
import re
from typing import Any, ClassVar

import httpx2

_MOST_WORDS = 300


class HubError(Exception):
    """A hub did not give what was asked. `code` is stable, `next_step` says what a person can do.

    `retry_after` is the number of seconds that the hub asked to wait, `temporary` whether trying again may help at all.
    """

    code: ClassVar[str] = "hub.error"
    temporary: ClassVar[bool] = False
    advice: ClassVar[str] = "Try again; if it stays, look at the hub's status page."

    def __init__(self, message: str, *, next_step: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step or self.advice
        self.retry_after = retry_after

    @property
    def sentence(self) -> str:
        """What went wrong, as a sentence."""
        return as_sentence(self.message)


def as_sentence(text: str) -> str:
    """A message as a sentence: with a capital, unless it begins with an address, and a full stop."""
    begins_with_address = text.startswith(("http://", "https://"))
    first = text[:1] if begins_with_address else text[:1].upper()
    return f"{first}{text[1:].removesuffix('.')}."


class InvalidNameError(HubError):
    """What was typed can't be the name of a repository or of a revision."""

    code = "hub.invalid_name"
    advice = "Give it as organisation/name, as the hub's page shows it."


class UnauthorizedError(HubError):
    """The hub does not accept the token."""

    code = "hub.unauthorized"
    advice = "Make a new access token on the hub, store it at the source, and test it there."


class TokenNeededError(HubError):
    """The hub wants to know who asks: the repository is private, gated, or does not exist."""

    code = "hub.token_needed"
    advice = "Check the name; if it is right, store an access token at the source."


class GatedError(HubError):
    """The repository's owners let only those in who asked them, and this token's owner is not among them."""

    code = "hub.gated"
    advice = "Open the model's page with the account of the token, accept its terms, then try again."


class ForbiddenError(HubError):
    """The token is known, but may not do this."""

    code = "hub.forbidden"
    advice = "Give the token the right to read this repository, or use another token."


class ForbiddenWithoutTokenError(ForbiddenError):
    """Nobody gave a token, and the hub, or what stands before it, refuses."""

    advice = "Give the source a token; or ask who runs the hub whether it refuses this machine's address."


class RepositoryNotFoundError(HubError):
    """There is no such repository, or this token may not know of it."""

    code = "hub.repository_not_found"
    advice = "Check the name; a private repository needs a token that may read it."


class RevisionNotFoundError(HubError):
    """The repository has no such branch, tag or commit."""

    code = "hub.revision_not_found"
    advice = "Choose one of the revisions that the repository has."


class HubFileNotFoundError(HubError):
    """The revision has no such file."""

    code = "hub.file_not_found"
    advice = "Look the revision up again and choose from the files that it has."


class RateLimitedError(HubError):
    """The hub has had enough requests from here for now."""

    code = "hub.rate_limited"
    temporary = True
    advice = "Wait; a token of your own, or a mirror, has a higher limit."


class UnreachableError(HubError):
    """No connection to the hub, or it went away in the middle."""

    code = "hub.unreachable"
    temporary = True
    advice = "Check the endpoint's address, the network and the proxy of the machine that asks."


class ServerError(HubError):
    """The hub says that it has a problem itself."""

    code = "hub.server_error"
    temporary = True
    advice = "Try again in a few minutes; if it stays, use a mirror."


class BadAnswerError(HubError):
    """The answer is not one of a hub: a proxy's page, a portal's login, or another server."""

    code = "hub.bad_answer"
    advice = "Check the endpoint's address; a proxy or a login page may stand between."


class FileChangedError(HubError):
    """The source has another file under this name and commit than the one that was chosen."""

    code = "hub.file_changed"
    advice = "Look the revision up again: the source has changed what it serves."


class ChecksumMismatchError(HubError):
    """The bytes that the source sent are not those that its own listing describes."""

    code = "hub.checksum_mismatch"
    advice = "Try another source for this model; if the listing is wrong, tell its owners."


def from_response(response: httpx2.Response, body: bytes, *, what: str, with_token: bool) -> HubError:
    """The error that an unsuccessful response stands for. `body` is what of it was read, perhaps nothing.

    `what` names what was asked for, as in "organisation/name at main".
    """
    status = response.status_code
    error_code = response.headers.get("X-Error-Code", "")
    said = _said(response, body)
    by_code: dict[str, type[HubError]] = {
        "RevisionNotFound": RevisionNotFoundError,
        "EntryNotFound": HubFileNotFoundError,
        "GatedRepo": GatedError,
        "FileChanged": FileChangedError,
        "RepoNotFound": RepositoryNotFoundError if with_token or status == 404 else TokenNeededError,
    }
    if status == 401 and with_token and error_code != "GatedRepo" and "credentials" in said.lower():
        return UnauthorizedError(f"the hub does not accept the token{_quoted(said)}")
    if found := by_code.get(error_code):
        return _named(found, what, said)
    if status == 401:
        if with_token:
            return UnauthorizedError(f"the hub does not accept the token{_quoted(said)}")
        return _named(TokenNeededError, what, said)
    if status == 403:
        if "gated" in said.lower() or "restricted" in said.lower():
            return _named(GatedError, what, said)
        return _named(ForbiddenError if with_token else ForbiddenWithoutTokenError, what, said)
    if status == 429:
        return _rate_limited(response)
    return _by_status(status, what, said, response)


def _by_status(status: int, what: str, said: str, response: httpx2.Response) -> HubError:
    if status in (404, 410):
        return _named(RepositoryNotFoundError, what, said)
    if status >= 500 or status == 408:
        text = f"the hub answers with status {status} for {what}{_quoted(said)}"
        return ServerError(text, retry_after=retry_after_seconds(response.headers))
    return BadAnswerError(f"the hub answers with status {status} for {what}{_quoted(said)}")


def _named(kind: type[HubError], what: str, said: str) -> HubError:
    texts: dict[type[HubError], str] = {
        GatedError: f"access to {what} is restricted by its owners",
        TokenNeededError: f"the hub shows {what} to nobody without a token, if it exists",
        RepositoryNotFoundError: f"the hub has no {what}, or this token may not see it",
        RevisionNotFoundError: f"the hub has the repository, but not {what}",
        HubFileNotFoundError: f"the hub has no {what}",
        ForbiddenError: f"the token may not read {what}",
        ForbiddenWithoutTokenError: f"the hub refuses {what} to a request without a token",
        FileChangedError: f"{what} is not what it was",
    }
    return kind(texts[kind] + _quoted(said))


def _rate_limited(response: httpx2.Response) -> HubError:
    wait = retry_after_seconds(response.headers)
    when = f"; it asks to wait {wait:.0f} s" if wait is not None else ""
    return RateLimitedError(f"the hub has had too many requests from here{when}", retry_after=wait)


def _said(response: httpx2.Response, body: bytes) -> str:
    if text := response.headers.get("X-Error-Message", ""):
        return text[:_MOST_WORDS]
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if isinstance(content, dict):
        for name in ("error", "Message", "message"):
            if isinstance(content.get(name), str):
                return str(content[name])[:_MOST_WORDS]
    return ""


def _quoted(said: str) -> str:
    return f" (it says: {' '.join(said.split())})" if said else ""


def retry_after_seconds(headers: httpx2.Headers) -> float | None:
    """How long the server asks to wait: `Retry-After` in seconds, or the window's rest in `RateLimit` (`…;t=55`)."""
    if (plain := headers.get("Retry-After", "").strip()).isdigit():
        return float(plain)
    if match := re.search(r";\s*t=(\d+)", headers.get("RateLimit", "")):
        return float(match[1])
    return None


def from_transport(error: Exception, *, endpoint: str) -> UnreachableError:
    """The error for a connection that failed; names the endpoint, never its credentials."""
    reasons = {
        httpx2.ConnectTimeout: "it does not answer in time",
        httpx2.ReadTimeout: "it went silent",
        httpx2.PoolTimeout: "no free connection",
    }
    reason = next((text for kind, text in reasons.items() if isinstance(error, kind)), str(error) or "connection lost")
    return UnreachableError(f"{endpoint} can't be reached: {reason[:_MOST_WORDS]}")
