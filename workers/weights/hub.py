"""Asks a model hub before anything is fetched: what is there, in which revisions, how large, for whom.

`lookup`, `search`, `revisions` and `whoami` speak with the Hugging Face hub, with any mirror of it, and with ModelScope;
each raises a `HubError` of its own class for each way to fail. The protocols: huggingface_hub's `hf_api.py` (model info
with `blobs`, tree, refs, whoami-v2), and `modelscope/hub/api.py` for ModelScope.
"""

import json
import struct
from typing import Any
from urllib.parse import quote

from workers.weights import hub_modelscope
from workers.weights.hub_errors import (
    BadAnswerError,
    ForbiddenError,
    GatedError,
    HubError,
    HubFileNotFoundError,
    RepositoryNotFoundError,
    TokenNeededError,
    UnauthorizedError,
)
from workers.weights.hub_http import LOOKUP_SECONDS, Hub, check_repository, check_revision
from workers.weights.hub_selection import Choice, Selection, select_files
from workers.weights.hub_types import (
    ConfigFacts,
    HubFile,
    Identity,
    RepositoryFacts,
    RevisionName,
    SearchHit,
    Source,
    SourceKind,
)

__all__ = [
    "Choice",
    "ConfigFacts",
    "HubError",
    "HubFile",
    "Identity",
    "RepositoryFacts",
    "RevisionName",
    "SearchHit",
    "Selection",
    "Source",
    "SourceKind",
    "config_facts",
    "lookup",
    "revisions",
    "search",
    "select_files",
    "whoami",
]

_MOST_CONFIG_BYTES = 4 << 20
_MOST_HEADER_BYTES = 32 << 20
_MOST_PAGES = 200


def lookup(
    source: Source, repository: str, revision: str = "", token: str = "", *, timeout_seconds: float = LOOKUP_SECONDS
) -> RepositoryFacts:
    """Everything about a repository at the commit that `revision` names now (empty: the source's default branch).

    Files that may not be fetched (a gate, say) do not fail it as long as the hub lists them: `refusal` says why.
    `timeout_seconds` is the longest silence of the hub. Raises a `HubError`.
    """
    check_repository(repository)
    if revision:
        check_revision(revision)
    with Hub(source, token, timeout_seconds=timeout_seconds) as hub:
        if source.kind is SourceKind.MODELSCOPE:
            listing = hub_modelscope.listing(hub, repository, revision or hub_modelscope.DEFAULT_REVISION)
        else:
            listing = _listing(hub, repository, revision or "main")
        return _with_config(hub, listing)


def search(
    source: Source, text: str, token: str = "", *, limit: int = 20, timeout_seconds: float = LOOKUP_SECONDS
) -> tuple[SearchHit, ...]:
    """Repositories whose name holds `text`, the most downloaded first. Raises a `HubError`."""
    with Hub(source, token, timeout_seconds=timeout_seconds) as hub:
        if source.kind is SourceKind.MODELSCOPE:
            return hub_modelscope.search(hub, text, limit)
        found = hub.json(
            "/api/models", what=f"the search for {text!r}", search=text, limit=limit, sort="downloads", direction=-1
        )
    return tuple(_hit(item) for item in _list(found, "the search") if isinstance(item.get("id"), str))[:limit]


def revisions(
    source: Source, repository: str, token: str = "", *, timeout_seconds: float = LOOKUP_SECONDS
) -> tuple[RevisionName, ...]:
    """All branches and tags, branches first. Raises a `HubError`."""
    check_repository(repository)
    with Hub(source, token, timeout_seconds=timeout_seconds) as hub:
        if source.kind is SourceKind.MODELSCOPE:
            return hub_modelscope.revisions(hub, repository)
        refs = hub.json(f"/api/models/{repository}/refs", what=repository)
    if not isinstance(refs, dict):
        raise BadAnswerError(f"{source.address} lists no revisions of {repository}")
    return tuple(
        RevisionName(item["name"], str(item.get("targetCommit", "")), kind)
        for kind, plural in (("branch", "branches"), ("tag", "tags"))
        for item in _list(refs.get(plural) or [], "the revisions")
        if isinstance(item.get("name"), str)
    )


def whoami(source: Source, token: str, *, timeout_seconds: float = LOOKUP_SECONDS) -> Identity:
    """Whose token it is. Raises `UnauthorizedError` if the source doesn't accept it, or another `HubError`."""
    if not token:
        raise TokenNeededError("there is no token to test", next_step="Store an access token at the source first.")
    with Hub(source, token, timeout_seconds=timeout_seconds) as hub:
        if source.kind is SourceKind.MODELSCOPE:
            return hub_modelscope.whoami(hub, token)
        try:
            answer = hub.json("/api/whoami-v2", what="the token's owner")
        except RepositoryNotFoundError:
            raise BadAnswerError(
                f"{source.address} doesn't tell whose a token is",
                next_step="Some mirrors can't; the token may work all the same.",
            ) from None
    if not isinstance(answer, dict) or not answer.get("name"):
        raise BadAnswerError(f"{source.address} doesn't say whose the token is")
    access = (answer.get("auth") or {}).get("accessToken") or {}
    return Identity(name=str(answer["name"]), role=str(access.get("role", "")))


def config_facts(config: dict[str, Any]) -> ConfigFacts:
    """What a config.json says; multimodal models keep the language model's part in `text_config`."""
    text: dict[str, Any] = next(
        (config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), {}
    )
    inner = {**config, **{key: value for key, value in text.items() if value is not None}}
    architectures = config.get("architectures")
    length = next((inner[key] for key in _LENGTHS if isinstance(inner.get(key), int)), None)
    dtype = next((inner[key] for key in ("dtype", "torch_dtype") if isinstance(inner.get(key), str)), "")
    return ConfigFacts(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=str(config.get("model_type") or ""),
        dtype=dtype.removeprefix("torch."),
        quantization=_quantization(inner),
        context_length=length,
        needs_remote_code=isinstance(config.get("auto_map"), dict) and bool(config["auto_map"]),
    )


_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx")


def _quantization(config: dict[str, Any]) -> str:
    found = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, dict):
        return ""
    method = str(found.get("quant_method") or found.get("quant_algo") or "unknown")
    detail = found.get("format") or found.get("quant_algo") or found.get("fmt") or ""
    bits = found.get("bits")
    extra = f"{bits} bit" if isinstance(bits, int) else str(detail)
    return f"{method} ({extra})" if extra and extra != method else method


def _listing(hub: Hub, repository: str, revision: str) -> RepositoryFacts:
    what = f"{repository} at {revision}"
    path = f"/api/models/{repository}/revision/{quote(revision, safe='')}"
    info = hub.json(path, what=what, blobs="true")
    if not isinstance(info, dict) or not isinstance(info.get("sha"), str):
        raise BadAnswerError(f"{hub.address} doesn't say which commit {what} is")
    siblings = [item for item in info.get("siblings") or [] if isinstance(item, dict)]
    if siblings and all(isinstance(item.get("size"), int) for item in siblings):
        files = tuple(_sibling(item) for item in siblings)
    else:
        files = _tree(hub, repository, info["sha"], what)
    card = info.get("cardData") if isinstance(info.get("cardData"), dict) else {}
    tags = tuple(str(tag) for tag in info.get("tags") or [])
    weights = info.get("safetensors") if isinstance(info.get("safetensors"), dict) else {}
    return RepositoryFacts(
        repository=str(info.get("id") or repository),
        revision=revision,
        commit=info["sha"],
        files=files,
        license=_license(card or {}, tags),
        gated=bool(info.get("gated")),
        private=bool(info.get("private")),
        tags=tags,
        parameters=_count((weights or {}).get("total")),
        last_modified=str(info.get("lastModified") or ""),
    )


def _sibling(item: dict[str, Any]) -> HubFile:
    lfs = item.get("lfs") or {}
    return HubFile(
        path=_path(item.get("rfilename")),
        size=int(item["size"]),
        sha256=str(lfs.get("sha256") or ""),
        git_oid="" if lfs else str(item.get("blobId") or ""),
    )


def _tree(hub: Hub, repository: str, commit: str, what: str) -> tuple[HubFile, ...]:
    found: list[HubFile] = []
    following = f"/api/models/{repository}/tree/{commit}"
    params: dict[str, Any] | None = {"recursive": "true"}
    for _page in range(_MOST_PAGES):
        content, following = hub.json_and_next(following, what=what, params=params)
        for item in _list(content, "the files"):
            if item.get("type") == "file" and isinstance(item.get("size"), int):
                lfs = item.get("lfs") or {}
                sha256 = str(lfs.get("oid") or lfs.get("sha256") or "")
                oid = "" if lfs else str(item.get("oid") or "")
                found.append(HubFile(_path(item.get("path")), item["size"], sha256, oid))
        params = None
        if not following:
            return tuple(found)
    raise BadAnswerError(f"the list of files of {what} does not end")


def _path(name: Any) -> str:
    """A file's path, refused if it leads out of the model's directory."""
    parts = str(name).split("/")
    if not isinstance(name, str) or not name or any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise BadAnswerError(f"the hub lists a file with an impossible name: {str(name)[:120]!r}")
    return name


def _license(card: dict[str, Any], tags: tuple[str, ...]) -> str:
    found = card.get("license_name") if card.get("license") == "other" else card.get("license")
    if isinstance(found, list):
        found = ", ".join(str(item) for item in found)
    return str(found or next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), ""))


def _with_config(hub: Hub, facts: RepositoryFacts) -> RepositoryFacts:
    """The facts with what config.json and the weights' headers add, or with the reason why they can't be read."""
    changes: dict[str, Any] = {}
    names = {file.path: file for file in facts.files}
    try:
        probe = "config.json" if "config.json" in names else min(names, key=lambda name: names[name].size, default="")
        if probe and names[probe].size <= _MOST_CONFIG_BYTES:
            content = hub.bytes_of(
                _file_path(hub, facts, probe), what=f"{probe} of {facts.repository}", most=_MOST_CONFIG_BYTES
            )
            if probe == "config.json":
                changes |= _parsed_config(content)
        if facts.parameters is None:
            changes["parameters"] = _parameters(hub, facts, names)
    except (GatedError, TokenNeededError, ForbiddenError, UnauthorizedError) as error:
        changes["refusal"] = error
    except HubFileNotFoundError:
        pass
    return _replace(facts, changes)


def _replace(facts: RepositoryFacts, changes: dict[str, Any]) -> RepositoryFacts:
    values = {name: getattr(facts, name) for name in RepositoryFacts.__slots__}
    return RepositoryFacts(**{**values, **changes})


def _parsed_config(content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        return {}  # the verification says what is wrong with it, with the file's name
    return {"config": config_facts(config), "config_json": config} if isinstance(config, dict) else {}


def _parameters(hub: Hub, facts: RepositoryFacts, names: dict[str, HubFile]) -> int | None:
    """Number of parameters: from the index's own count, or from the header of a single safetensors file."""
    index = "model.safetensors.index.json"
    if index in names and names[index].size <= _MOST_HEADER_BYTES:
        content = hub.bytes_of(_file_path(hub, facts, index), what=index, most=_MOST_HEADER_BYTES)
        try:
            return _count(json.loads(content)["metadata"]["total_parameters"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    weights = [name for name in names if name.endswith(".safetensors")]
    return _header_parameters(hub, _file_path(hub, facts, weights[0]), weights[0]) if len(weights) == 1 else None


def _header_parameters(hub: Hub, path: str, name: str) -> int | None:
    start = hub.bytes_of(path, what=name, most=_MOST_HEADER_BYTES, first=8)
    if len(start) < 8 or (length := struct.unpack("<Q", start)[0]) > _MOST_HEADER_BYTES:
        return None
    header = hub.bytes_of(path, what=name, most=_MOST_HEADER_BYTES + 8, first=length + 8)[8:]
    try:
        tensors = json.loads(header)
        shapes = [item["shape"] for key, item in tensors.items() if key != "__metadata__"]
        return sum(_product(shape) for shape in shapes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count


def _file_path(hub: Hub, facts: RepositoryFacts, name: str) -> str:
    return file_path(hub.source.kind, facts.repository, facts.commit, name)


def file_path(kind: SourceKind, repository: str, commit: str, name: str) -> str:
    """Path and query, below the endpoint, of one file at one commit."""
    if kind is SourceKind.MODELSCOPE:
        return hub_modelscope.file_path(repository, commit, name)
    return f"/{repository}/resolve/{quote(commit, safe='')}/{quote(name)}"


def _hit(item: dict[str, Any]) -> SearchHit:
    return SearchHit(
        repository=item["id"],
        downloads=_count(item.get("downloads")) or 0,
        likes=_count(item.get("likes")) or 0,
        gated=bool(item.get("gated")),
        private=bool(item.get("private")),
        task=str(item.get("pipeline_tag") or ""),
        last_modified=str(item.get("lastModified") or ""),
    )


def _list(content: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise BadAnswerError(f"the hub's answer for {what} is no list")
    return [item for item in content if isinstance(item, dict)]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
