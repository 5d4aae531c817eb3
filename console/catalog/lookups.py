"""Asking a source: search, revisions, what a repository holds, whose token it is. Within a request, so at most 10 s."""

from django.core.cache import cache
from django.utils.translation import gettext as _

from console.catalog.models import Source
from console.common.errors import Refused
from console.common.secrets import decrypt
from workers.weights import hub
from workers.weights.hub_errors import HubError
from workers.weights.hub_types import Identity, RepositoryFacts, RevisionName, SearchHit, SourceKind
from workers.weights.hub_types import Source as HubSource

REMEMBERED_SECONDS = 900
SILENCE_SECONDS = 4
"""A lookup asks a source two or three times; a page must not wait longer than 10 s altogether."""
_FIELDS = {
    "hub.invalid_name": "q",
    "hub.repository_not_found": "q",
    "hub.gated": "q",
    "hub.forbidden": "q",
    "hub.token_needed": "q",
    "hub.revision_not_found": "revision",
}


class SourceRefused(Refused):
    """A source did not give what was asked. `code` is the hub error's; `about_token` if a token may help."""

    def __init__(self, error: HubError) -> None:
        super().__init__(sentence(error), field=_FIELDS.get(error.code, "source"))
        self.code = error.code
        self.about_token = error.code in ("hub.unauthorized", "hub.token_needed", "hub.gated", "hub.forbidden")


def sentence(error: HubError) -> str:
    """What went wrong and what to do next, as two sentences."""
    return f"{error.sentence} {error.next_step}"


def hub_source(source: Source) -> HubSource:
    """A source as the hub's client knows it."""
    return HubSource(SourceKind(source.kind), source.endpoint)


def token_of(source: Source) -> str:
    """The token in the clear; empty if there is none. Only for the request that is about to be sent."""
    return decrypt(source.token) if source.token else ""


def search(source: Source, text: str) -> list[SearchHit]:
    """Repositories whose name fits. Raises SourceRefused."""
    try:
        return list(hub.search(hub_source(source), text, token_of(source), timeout_seconds=SILENCE_SECONDS))
    except HubError as error:
        raise SourceRefused(error) from None


def revisions(source: Source, repository: str) -> list[RevisionName]:
    """Branches and tags of a repository; none when the source doesn't say: the commit is pinned anyway."""
    try:
        return list(hub.revisions(hub_source(source), repository, token_of(source), timeout_seconds=SILENCE_SECONDS))
    except HubError:
        return []


def look_up(source: Source, repository: str, revision: str) -> RepositoryFacts:
    """What a repository holds at a revision, pinned to its commit. Raises SourceRefused.

    The answer is kept for a while under its commit, so that the form that follows speaks of the same files.
    """
    try:
        facts = hub.lookup(hub_source(source), repository, revision, token_of(source), timeout_seconds=SILENCE_SECONDS)
    except HubError as error:
        raise SourceRefused(error) from None
    cache.set(_key(source, repository, facts.commit), facts, REMEMBERED_SECONDS)
    return facts


def at_commit(source: Source, repository: str, commit: str) -> RepositoryFacts:
    """The facts of a lookup that was made before, or a new lookup of that commit."""
    kept: RepositoryFacts | None = cache.get(_key(source, repository, commit))
    # A gate may have opened since: a refusal is asked for again.
    return kept if kept and kept.refusal is None else look_up(source, repository, commit)


def whoami(source: Source) -> Identity:
    """Whose token it is. Raises SourceRefused."""
    try:
        return hub.whoami(hub_source(source), token_of(source), timeout_seconds=SILENCE_SECONDS)
    except HubError as error:
        raise SourceRefused(error) from None


def refuse_gated(facts: RepositoryFacts) -> None:
    """Raise SourceRefused if the source shows the repository but will not give its files."""
    if facts.refusal is not None:
        raise SourceRefused(facts.refusal)
    if not facts.files:
        raise Refused(_("The repository has no files at this revision."), field="q")


def _key(source: Source, repository: str, commit: str) -> str:
    when = source.token_set_at.timestamp() if source.token_set_at else 0
    return f"lookup:{source.pk}:{when}:{repository}:{commit}"
