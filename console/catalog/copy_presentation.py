"""Copies as pages show them: what the last verification found, who uses them, what works on them now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import prefetch_related_objects
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from console.catalog import consents
from console.catalog.models import Copy
from console.catalog.presentation import short_sums
from console.common.spans import readable_bytes, readable_duration
from console.fleet.models import Host
from console.fleet.usage import Usage, usage_of

HELD_STATES = ("damaged", "incomplete")
"""States in which nothing can be launched from a copy until it is repaired."""
PRESENT_STATES = ("verified", "unverified", "downloading")
"""States in which a host has a revision's files, or is getting them."""
_FETCHING = ("serve_copy", "download", "verify")
_FETCHED = "/models--"
"""Part of the path of files that were fetched: they lie in a hub cache."""
_TELLING_SECONDS = 0.1
"""A shorter time would read "0.0 s"."""
_LIVE = ("queued", "running", "cancelling", "interrupted")
"""States of steps that go on or will, if their job's is one, too: one that failed leaves steps queued, for a retry."""
_SEVERITIES: dict[str, tuple[str | Promise, str, str]] = {
    "error": (gettext_lazy("Errors"), "alert-circle", "red"),
    "warning": (gettext_lazy("Warnings"), "alert-triangle", "amber"),
    "info": (pgettext_lazy("findings", "Notes"), "info-circle", "grey"),
}


@dataclass(frozen=True)
class ShownFinding:
    """One thing that a verification noted."""

    severity: str
    file: str
    message: str
    fix: str
    code: str

    @property
    def lead(self) -> str:
        """The file, if the message doesn't begin with it."""
        return "" if self.message.startswith(self.file) else self.file


@dataclass(frozen=True)
class FindingGroup:
    """All findings of one severity."""

    severity: str
    label: str
    icon: str
    colour: str
    findings: list[ShownFinding]


@dataclass(frozen=True)
class RunningJob:
    """A job that works on a copy now."""

    pk: int
    title: str
    progress: Mapping[str, Any]


@dataclass(frozen=True)
class ShownCopy:
    """A copy with what its last verification said, who uses it, and what works on it."""

    copy: Copy
    usage: Usage
    job: RunningJob | None = None
    elsewhere: bool = False
    """True if another host has the same revision, verified."""
    everywhere: bool = False
    """True if every host has its revision, or is fetching it."""
    groups: list[FindingGroup] = field(default_factory=list)
    failure: Mapping[str, Any] | None = None

    @property
    def files(self) -> int | None:
        """How many files the last sound verification saw."""
        found = self._result.get("files")
        return found if isinstance(found, int) else None

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        found = self._result.get("seconds")
        return found if isinstance(found, int | float) else None

    @property
    def how(self) -> str:
        """What was read, as a sentence; empty if nothing was verified yet."""
        details = self._result.get("details")
        if self.files is None or not isinstance(details, Mapping):
            return ""
        hashed = details.get("hashed")
        text = (
            ngettext("Every byte of %(n)d file was read", "Every byte of %(n)d files was read", self.files)
            if hashed
            else ngettext("The headers of %(n)d file were read", "The headers of %(n)d files were read", self.files)
        ) % {"n": self.files}
        size = self._result.get("size_bytes")
        if isinstance(size, int):
            text += f" ({readable_bytes(size)})"
        if self.seconds and self.seconds >= _TELLING_SECONDS:
            text += _(", in %(time)s") % {"time": readable_duration(self.seconds)}
        return _("%s.") % text

    @property
    def checked_against(self) -> list[tuple[str, int]]:
        """Whose checksums the files were compared with, and how many files each spoke of."""
        found = self._result.get("checked_against")
        if not isinstance(found, Mapping):
            return []
        return sorted(((str(source), int(count)) for source, count in found.items()), key=lambda pair: -pair[1])

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by severity."""
        return {group.severity: len(group.findings) for group in self.groups}

    @property
    def sources_disagree(self) -> bool:
        """True if published checksums contradict each other: nobody can say yet which files are right."""
        return any(one.code == "checksum.sources_disagree" for group in self.groups for one in group.findings)

    @property
    def can_repair(self) -> bool:
        """True if the files have a source, or came from a host that still has them, and something is wrong with them."""
        revision = self.copy.revision
        broken = self.copy.state in ("damaged", "incomplete", "unverified")
        has_source = revision.is_pinned and revision.model.origin_id is not None
        return broken and (has_source or (self.elsewhere and _FETCHED in self.copy.path))

    @property
    def can_share(self) -> bool:
        """True if other hosts can get its files: from here, or at least from where these came from."""
        return self.copy.state == "verified" and self.job is None and not self.everywhere

    @property
    def partial(self) -> bool:
        """True if only parts of a download lie there."""
        return self.copy.is_partial

    @property
    def as_published(self) -> bool:
        """True if its files are wrong where they come from, too: fetching them again brings the same ones."""
        return self.copy.state in HELD_STATES and bool(self._result.get("as_published"))

    @property
    def repair_first(self) -> bool:
        """True if a repair is the next thing to do: not if it would bring the same files, or nobody knows the right ones."""
        return self.copy.state in HELD_STATES and not self.sources_disagree and not self.as_published

    @property
    def search_elsewhere(self) -> str:
        """Query of the search for another revision or source, if that is the next thing to do; empty otherwise."""
        model = self.copy.revision.model
        if not self.as_published or not model.repository or self.job is not None:
            return ""
        return urlencode(({"source": model.origin_id} if model.origin_id else {}) | {"q": model.repository})

    @property
    def verifiable(self) -> bool:
        """True if there are files that can be read."""
        states = ("verified", "unverified", "damaged", "incomplete")
        return self.copy.state in states and not self.partial and self.job is None

    @property
    def is_adapter(self) -> bool:
        """True if it is a LoRA adapter, which serves only together with its base model."""
        return self.copy.revision.is_adapter

    @property
    def removable(self) -> bool:
        """True if no job works on it."""
        return self.copy.state not in ("deleting", "removed") and self.job is None

    @property
    def _result(self) -> Mapping[str, Any]:
        return self.copy.verification if isinstance(self.copy.verification, Mapping) else {}


def shown_copies(copies: Iterable[Copy]) -> list[ShownCopy]:
    """Copies as pages show them, in a number of queries that doesn't grow with them."""
    rows = list(copies)
    usages = usage_of(rows)
    jobs = _running(rows)
    present = Copy.objects.filter(state__in=PRESENT_STATES, revision__in={copy.revision_id for copy in rows})
    sound: dict[int, set[int]] = {}
    there: dict[int, set[int]] = {}
    for revision, host, state in present.values_list("revision_id", "host_id", "state"):
        there.setdefault(revision, set()).add(host)
        if state == "verified":
            sound.setdefault(revision, set()).add(host)
    hosts = set(Host.objects.exclude(public_key="").values_list("pk", flat=True))
    prefetch_related_objects([copy.revision for copy in rows if consents.needed_by(copy)], "consents")
    return [
        _shown(
            copy,
            usages[copy.pk],
            jobs.get(copy.pk),
            elsewhere=bool(sound.get(copy.revision_id, set()) - {copy.host_id}),
            everywhere=hosts <= there.get(copy.revision_id, set()),
        )
        for copy in rows
    ]


def _shown(copy: Copy, usage: Usage, job: RunningJob | None, *, elsewhere: bool, everywhere: bool) -> ShownCopy:
    found = copy.verification if isinstance(copy.verification, Mapping) else {}
    failure = found.get("failure")
    entries = found.get("findings") or (failure or {}).get("evidence") or []
    return ShownCopy(copy, usage, job, elsewhere, everywhere, _groups(entries, _severities(copy)), failure)


def _severities(copy: Copy) -> Mapping[str, str]:
    """What needs an admin's yes is no error in sound files, and a note once it is allowed."""
    asked = consents.needed_by(copy) if copy.state == "verified" else set()
    allowed = consents.allowed_codes(copy) if asked else []
    return {code: "info" if code in allowed else "warning" for code in asked}


def _groups(entries: Sequence[Any], severities: Mapping[str, str]) -> list[FindingGroup]:
    findings = [
        ShownFinding(
            severities.get(str(entry.get("code")), str(entry.get("severity") or "warning")),
            str(entry.get("file") or ""),
            str(entry.get("message") or entry.get("text") or entry.get("code") or ""),
            "" if severities.get(str(entry.get("code"))) == "info" else str(entry.get("fix") or ""),
            str(entry.get("code") or ""),
        )
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("code")
    ]
    return [
        FindingGroup(severity, str(label), icon, colour, chosen)
        for severity, (label, icon, colour) in _SEVERITIES.items()
        if (chosen := [one for one in findings if one.severity == severity])
    ]


def _running(copies: Sequence[Copy]) -> dict[int, RunningJob]:
    """Jobs that work on copies now. Read through the hosts' steps, because the ledger lies above the catalogue."""
    pks = [copy.pk for copy in copies]
    hosts = Host.objects.order_by("-steps__position")
    live = {"steps__state__in": _LIVE, "steps__job__state__in": _LIVE}
    shown = ("steps__job_id", "steps__job__title", "steps__progress", "steps__state")
    # One filter each: of several, each would look for a step of its own.
    own = hosts.filter(**live, steps__job__subject_kind="copy", steps__job__subject_id__in=pks)
    # A deploy that fetches the files on its way is about its deployment.
    fetching = hosts.filter(**live, steps__kind__in=_FETCHING, steps__job__payload__fetch__in=pks)
    found: dict[int, RunningJob] = {}
    for rows in (
        own.values_list("steps__job__subject_id", *shown),
        fetching.values_list("steps__job__payload__fetch", *shown),
    ):
        for subject, job, title, progress, state in rows:
            if subject is not None and (subject not in found or state == "running"):
                found[subject] = RunningJob(job, title, progress if state == "running" else {})
    return found


def last_sound(copy: Copy, others: Iterable[Copy]) -> Copy | None:
    """The copy to fall back to when this one is held: another revision's or host's that was verified last."""
    sound = [one for one in others if one.pk != copy.pk and one.state == "verified" and one.verified_at]
    sound.sort(key=lambda one: (one.host_id == copy.host_id, one.verified_at), reverse=True)
    return sound[0] if sound else None


def fallback_for(copy: Copy) -> Copy | None:
    """The same, asked of the database: for pages that are not about the model."""
    others = Copy.objects.filter(revision__model=copy.revision.model_id, state="verified")
    return last_sound(copy, others.select_related("revision__model", "host"))


def truth(shown: ShownCopy, unallowed: Sequence[str] = ()) -> str:
    """The truth about a copy in a sentence or two. `unallowed`: code that it brings and that no admin has allowed."""
    text = _truth(shown, unallowed)
    if shown.as_published:
        text += " " + _("Its files came like that, so fetching them again from there changes nothing.")
    return text


def _truth(shown: ShownCopy, unallowed: Sequence[str]) -> str:
    copy = shown.copy
    if copy.state == "damaged":
        if shown.sources_disagree:
            return _("Held: its sources contradict each other, so nobody can say whether the files are right.")
        reason = short_sums(copy.state_reason) or _("its files are incomplete or wrong.")
        return _("Damaged: %(reason)s") % {"reason": reason}
    if shown.partial:
        reason = copy.state_reason.rstrip(".") or _("a job stopped half-way")
        if shown.as_published:
            return _("Not complete: %(reason)s.") % {"reason": reason}
        return _("Not complete: %(reason)s. What has come is kept, and a download goes on from there.") % {
            "reason": reason
        }
    sentences = {
        "verified": _("Its files are complete and right."),
        "unverified": _("Not verified yet. A launch reads every byte first."),
        "downloading": _("Its files are on their way."),
        "incomplete": _("Not complete: %(reason)s") % {"reason": copy.state_reason or _("a job stopped half-way.")},
        "deleting": _("Its files are being removed."),
        "removed": _("No longer on this host."),
    }
    text = sentences[copy.state]
    if copy.state == "verified" and unallowed:
        text = _("Its files are complete and right, but a launch is refused until an admin allows %(what)s.") % {
            "what": _(" and ").join(unallowed)
        }
    if copy.state == "verified" and shown.is_adapter:
        text += " " + _(
            "It is a LoRA adapter: deploy its base model with --enable-lora and add it on that deployment's page, under "
            "Adapters; or give this directory with --lora-modules."
        )
    if copy.state == "verified" and shown.usage.live:
        text += " " + _("%(names)s serves from it.") % {"names": shown.usage.live_names}
    return text
