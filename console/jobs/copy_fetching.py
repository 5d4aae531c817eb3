"""Fetching as a part of a job that needs the files: a revision that is known here, but not on the job's host yet.

The steps are those of "download" and "copy to host"; the job that holds them names the copy in its payload.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.catalog.models import Copy, File, Revision
from console.common.errors import Refused
from console.common.given import whole_number
from console.fleet.models import Host
from console.jobs import copy_jobs, copy_sharing
from console.jobs.kinds import JobHandler, handler_of_kind
from console.jobs.models import Job
from console.jobs.services import PlannedStep
from workers.contracts import StepKind
from workers.weights.hub_selection import select_files
from workers.weights.hub_types import HubFile

ABSENT = ("removed", "incomplete")
"""States of a copy whose files have to be fetched before anything can use them."""
FETCHING = (StepKind.SERVE_COPY, StepKind.DOWNLOAD)
MOST_OFFERED = 200
"""Pairs of revision and host that a form offers; beyond that a model's page leads to the form."""


@dataclass(frozen=True)
class Absent:
    """A revision and a host that hasn't its files. `copy` is not stored, unless the host had it once."""

    copy: Copy
    giver: Copy | None
    """From where it will be copied; None: from the model's source."""

    @property
    def value(self) -> str:
        """What a form calls it."""
        return f"{self.copy.revision_id}@{self.copy.host_id}"


@dataclass(frozen=True)
class Fetch:
    """Steps that bring the files, and what the job's payload must say for them."""

    steps: list[PlannedStep]
    payload: dict[str, Any]


def offered(user: User, hosts: QuerySet[Host]) -> list[Absent]:
    """Revisions that `user` may use and that `hosts` could fetch. Newest revisions first, `MOST_OFFERED` at most."""
    rows = list(policies.visible(user, hosts.exclude(public_key="").filter(state="accepting")).order_by("name"))
    copies: dict[tuple[int, int], Copy] = {}
    for copy in Copy.objects.filter(host__in=rows).order_by("pk"):
        copies.setdefault((copy.revision_id, copy.host_id), copy)
    givers = copy_sharing.givers_by_revision()
    found: list[Absent] = []
    for revision in _revisions(user):
        for host in rows:
            known = copies.get((revision.pk, host.pk))
            if known is None or known.state in ABSENT:
                one = _absent(revision, host, known, givers.get(revision.pk, ()))
                found += [one] if one else []
        if len(found) >= MOST_OFFERED:
            break
    return found[:MOST_OFFERED]


def _revisions(user: User) -> Iterator[Revision]:
    adapters = Revision.of_adapters()
    rows = Revision.objects.select_related("model__origin").exclude(pk__in=adapters).order_by("-created_at", "-pk")
    yield from policies.visible(user, rows, team_path="model__team")


def find(user: User, value: str) -> Absent | None:
    """The revision and host that a form's value means; None if there is none, or not for this person."""
    before, _at, after = value.partition("@")
    revision_id, host_id = whole_number(before), whole_number(after)
    if revision_id is None or host_id is None:
        return None
    hosts = policies.visible(user, Host.objects.exclude(public_key="").filter(pk=host_id))
    revisions = Revision.objects.select_related("model__origin").filter(pk=revision_id)
    host, revision = hosts.first(), policies.visible(user, revisions, team_path="model__team").first()
    if host is None or revision is None:
        return None
    known = Copy.objects.filter(revision=revision, host=host).select_related("revision__model__origin", "host").first()
    if known is not None and known.state not in ABSENT:
        return None
    return _absent(revision, host, known, copy_sharing.givers(revision))


def _absent(revision: Revision, host: Host, known: Copy | None, givers: Sequence[Copy]) -> Absent | None:
    giver = next((one for one in givers if one.host_id != host.pk and one.host.is_online), None)
    if giver is None and (not revision.is_pinned or revision.model.origin is None):
        return None  # nobody has it, and nobody knows where it came from
    size = giver.size_bytes if giver is not None else revision.size_bytes
    if known is not None:
        known.revision, known.host = revision, host
        known.size_bytes = known.size_bytes or size
        return Absent(known, giver)
    path = f"hub/{revision.model.repository}/{revision.commit}"
    if giver is not None:
        path = copy_sharing.folder_of(giver)
    return Absent(Copy(revision=revision, host=host, state="removed", path=path, size_bytes=size), giver)


def is_absent(copy: Copy) -> bool:
    """True if a job that needs this copy has to fetch it first, and can."""
    return copy.state in ABSENT and _again(copy) is not None


def _again(copy: Copy) -> Absent | None:
    return _absent(copy.revision, copy.host, copy, copy_sharing.givers(copy.revision))


def stored(copy: Copy) -> Copy:
    """The same copy as a row of the database, which a spec can name. Nothing is fetched by that."""
    if copy.pk is not None:
        return copy
    row, _fresh = Copy.objects.get_or_create(
        host=copy.host, path=copy.path,
        defaults={"revision": copy.revision, "state": "removed", "size_bytes": copy.size_bytes},
    )  # fmt: skip
    if row.revision_id != copy.revision_id:
        raise Refused(_("%(host)s has other files in %(path)s.") % {"host": copy.host, "path": copy.path}, field="copy")
    row.revision, row.host = copy.revision, copy.host
    return row


def begin(copy: Copy, *, actor: User | None) -> Fetch:
    """Mark a copy as being fetched and plan the steps: from a host that has it, else from the model's source.

    Verification follows them. Raises `Refused` if another job works on it, or if nobody has the files any more.
    """
    absent = _again(copy)
    if absent is None:
        raise Refused(
            _("Nobody has the files of %(copy)s any more: no host, and no source.") % {"copy": copy}, field="copy"
        )
    revision, giver = copy.revision, absent.giver
    files = copy_sharing.paths_of(giver) if giver is not None else wanted_files(revision)
    receiving = copy_jobs.receiving_copy(copy.host, revision, files, actor, path=copy.path)
    if giver is not None:
        steps, more = copy_sharing.fetch_steps(giver)
        return Fetch(steps, {"fetch": receiving.pk, **more})
    payload = copy_jobs.download_payload(receiving)
    return Fetch([PlannedStep(StepKind.DOWNLOAD, payload, copy_jobs.DOWNLOAD_SECONDS)], {"fetch": receiving.pk})


def wanted_files(revision: Revision) -> list[str]:
    """What was chosen of a revision before, on any host; else what an engine loads."""
    chosen = next((one.selection for one in revision.copies.order_by("pk") if one.selection), None)
    if chosen:
        return sorted(chosen)
    rows = File.objects.filter(revision=revision)
    return [one.path for one in select_files(HubFile(row.path, row.size_bytes) for row in rows).files]


def handler_for(job: Job) -> JobHandler | None:
    """What answers for the fetching steps of a job of another kind; None if it fetches nothing."""
    if "fetch" not in job.payload:
        return None
    return handler_of_kind(copy_sharing.KIND if "giver" in job.payload else "download")
