"""What is known of a repository on a hub before anything of it is fetched. Frozen values; sizes are bytes."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from workers.weights.hub_errors import HubError, InvalidNameError


class SourceKind(StrEnum):
    """Which protocol a source speaks. A mirror speaks the Hugging Face hub's from another address."""

    HUB = "hub"
    MIRROR = "mirror"
    MODELSCOPE = "modelscope"


DEFAULT_ENDPOINTS = {
    SourceKind.HUB: "https://huggingface.co",
    SourceKind.MIRROR: "",
    SourceKind.MODELSCOPE: "https://www.modelscope.cn",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where models come from: a protocol and the address that speaks it (empty: the protocol's own)."""

    kind: SourceKind = SourceKind.HUB
    endpoint: str = ""

    @property
    def address(self) -> str:
        """The endpoint without a closing slash. Raises `InvalidNameError` if it is no http(s) address."""
        address = (self.endpoint or DEFAULT_ENDPOINTS[self.kind]).rstrip("/")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InvalidNameError(
                f"{address or 'an empty endpoint'!r} is no address of a source",
                next_step="Give it as https://host, without user name, password or query.",
            )
        return address


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a revision. `sha256` is known for large files (on ModelScope for all), `git_oid` for the others."""

    path: str
    size: int
    sha256: str = ""
    git_oid: str = ""


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """What config.json says. `None` or empty: it doesn't say."""

    architecture: str = ""
    model_type: str = ""
    dtype: str = ""
    quantization: str = ""
    context_length: int | None = None
    needs_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """A repository at one commit. `refusal` is set when the files may not be fetched (gate, missing token)."""

    repository: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]
    license: str = ""
    gated: bool = False
    private: bool = False
    tags: tuple[str, ...] = ()
    config: ConfigFacts = field(default_factory=ConfigFacts)
    config_json: dict[str, Any] | None = None
    parameters: int | None = None
    last_modified: str = ""
    refusal: HubError | None = None

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One repository that a search found."""

    repository: str
    downloads: int = 0
    likes: int = 0
    gated: bool = False
    private: bool = False
    task: str = ""
    last_modified: str = ""


@dataclass(frozen=True, slots=True)
class RevisionName:
    """A branch or tag, and the commit that it points to now (empty if the hub doesn't say)."""

    name: str
    commit: str = ""
    kind: str = "branch"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose token it is, and what it may do (empty if the hub doesn't say)."""

    name: str
    role: str = ""
