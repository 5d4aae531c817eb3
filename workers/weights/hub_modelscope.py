"""ModelScope's own protocol, as its public client speaks it (`modelscope/hub/api.py` and `file_download.py`).

Answers are wrapped in `{"Code": 200, "Success": true, "Message": …, "Data": …}`. Every file comes with its sha256. The
commit of a listing is `LatestCommitter.Id`, which may be empty: then it is the newest of the files' own commits.
"""

from typing import Any
from urllib.parse import quote, urlencode

from workers.weights.hub_errors import (
    BadAnswerError,
    HubError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    UnauthorizedError,
)
from workers.weights.hub_http import Hub
from workers.weights.hub_types import HubFile, Identity, RepositoryFacts, RevisionName, SearchHit

DEFAULT_REVISION = "master"


def listing(hub: Hub, repository: str, revision: str) -> RepositoryFacts:
    """The repository at the commit that `revision` names now; configuration not read yet. Raises a `HubError`."""
    what = f"{repository} at {revision}"
    # A missing repository and a missing revision are both 404: ask for the repository alone first.
    details = _data(hub.json(f"/api/v1/models/{repository}", what=repository), what=repository)
    try:
        content = hub.json(f"/api/v1/models/{repository}/repo/files", what=what, Revision=revision, Recursive="True")
        listed = _data(content, what=what)
    except RepositoryNotFoundError as error:
        raise RevisionNotFoundError(f"the hub has the repository, but not {what}") from error
    files = [item for item in listed.get("Files") or [] if isinstance(item, dict) and item.get("Type") != "tree"]
    tags = details.get("Tags") or []
    return RepositoryFacts(
        repository=repository,
        revision=revision,
        commit=_commit(listed, files) or revision,
        files=tuple(_file(item) for item in files),
        license=str(details.get("License") or ""),
        private=details.get("Visibility") == 1,
        tags=tuple(str(tag) for tag in tags if isinstance(tag, str)),
        last_modified=str(details.get("LastUpdatedTime") or ""),
    )


def search(hub: Hub, text: str, limit: int) -> tuple[SearchHit, ...]:
    """Repositories whose name holds `text`."""
    body = {"PageSize": limit, "PageNumber": 1, "Name": text, "SortBy": "DownloadsCount"}
    answer = hub.json("/api/v1/dolphin/models", what=f"the search for {text!r}", method="PUT", body=body)
    found = (_data(answer, what="the search").get("Model") or {}).get("Models") or []
    return tuple(
        SearchHit(
            repository=f"{item['Path']}/{item['Name']}",
            downloads=_number(item.get("Downloads")),
            likes=_number(item.get("Stars")),
            last_modified=str(item.get("LastUpdatedTime") or ""),
        )
        for item in found
        if isinstance(item, dict) and item.get("Path") and item.get("Name")
    )[:limit]


def revisions(hub: Hub, repository: str) -> tuple[RevisionName, ...]:
    """All branches and tags, branches first."""
    data = _data(hub.json(f"/api/v1/models/{repository}/revisions", what=repository), what=repository)
    names = data.get("RevisionMap") or {}
    return tuple(
        RevisionName(str(item["Revision"]), kind=kind)
        for kind, plural in (("branch", "Branches"), ("tag", "Tags"))
        for item in names.get(plural) or []
        if isinstance(item, dict) and item.get("Revision")
    )


def whoami(hub: Hub, token: str) -> Identity:
    """Whose token it is: ModelScope answers a login with the user's name."""
    try:
        answer = hub.json("/api/v1/login", what="the login", method="POST", body={"AccessToken": token})
        name = _data(answer, what="the login").get("Username")
    except (RepositoryNotFoundError, BadAnswerError) as error:
        raise UnauthorizedError(f"the hub does not accept the token ({error.message})") from error
    if not name:
        raise BadAnswerError(f"{hub.address} doesn't say whose the token is")
    return Identity(name=str(name))


def file_path(repository: str, commit: str, name: str) -> str:
    """Path and query of one file at one commit."""
    query = urlencode({"Revision": commit, "FilePath": name}, quote_via=quote)
    return f"/api/v1/models/{repository}/repo?{query}"


def _data(answer: Any, *, what: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise BadAnswerError(f"the hub's answer for {what} is no object")
    if answer.get("Code", 200) != 200 or answer.get("Success") is False:
        raise _refused(answer, what)
    data = answer.get("Data")
    return data if isinstance(data, dict) else {}


def _refused(answer: dict[str, Any], what: str) -> HubError:
    said = str(answer.get("Message") or "")[:300]
    code = str(answer.get("Code"))
    if code.endswith("404") or "not exist" in said.lower() or "not found" in said.lower():
        return RepositoryNotFoundError(f"the hub has no {what}, or this token may not see it (it says: {said})")
    if code.endswith(("401", "403")):
        return UnauthorizedError(f"the hub does not let this token see {what} (it says: {said})")
    return BadAnswerError(f"the hub refuses {what}: {said or f'code {code}'}")


def _file(item: dict[str, Any]) -> HubFile:
    path, size = item.get("Path"), item.get("Size")
    if not isinstance(path, str) or any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise BadAnswerError(f"the hub lists a file with an impossible name: {str(path)[:120]!r}")
    return HubFile(path=path, size=_number(size), sha256=str(item.get("Sha256") or "").lower())


def _commit(listed: dict[str, Any], files: list[dict[str, Any]]) -> str:
    latest = listed.get("LatestCommitter") or {}
    if isinstance(latest, dict) and isinstance(latest.get("Id"), str) and latest["Id"]:
        return str(latest["Id"])
    newest = max(files, key=lambda item: _number(item.get("CommittedDate")), default={})
    return str(newest.get("Revision") or "")


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
