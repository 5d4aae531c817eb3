"""Whether an adapter can serve beside a deployment's model: checked before anything is fetched, ordered or sent."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _

from console.catalog.models import Revision
from console.common.errors import Refused
from console.common.spans import readable_bytes
from console.deployments.models import Deployment, Spec
from workers.vllm.lora import ENABLE, NO_LORA, RANKS, LoraSettings, misfits, settings_of, slot_bytes, widths_of


@dataclass(frozen=True)
class AdapterFacts:
    """What the verification of an adapter's files found."""

    base_model: str
    """As its author named it; empty where the files don't say."""
    rank: int
    details: Mapping[str, Any]


def facts_of(revision: Revision) -> AdapterFacts | None:
    """What an adapter's revision is made for; None where its files were not verified yet, or are none of an adapter."""
    found = revision.facts.get("adapter") if isinstance(revision.facts, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    rank = found.get("rank")
    return AdapterFacts(str(found.get("base_model") or ""), rank if isinstance(rank, int) else 0, found)


def settings_for(deployment: Deployment) -> LoraSettings:
    """What the current spec says about adapters."""
    spec = deployment.current_spec
    return settings_of(spec.arguments) if spec is not None else NO_LORA


def room_words(spec: Spec) -> str:
    """What taking adapters costs a spec's engines, or would cost them, in a sentence."""
    settings = settings_of(spec.arguments)
    nbytes = slot_bytes(widths_of(spec.copy.revision.config), replace(settings, enabled=True))
    size = readable_bytes(nbytes) if nbytes else _("an unknown amount")
    words = {"size": size, "rank": settings.max_rank, "at_once": settings.at_once, "flag": ENABLE}
    if not settings.enabled:
        return (
            _(
                "With %(flag)s each device keeps about %(size)s aside for %(at_once)d at a time, of rank %(rank)d at most, "
                "loaded or not."
            )
            % words
        )
    return (
        _("Each device keeps about %(size)s aside for %(at_once)d at a time, of rank %(rank)d at most, loaded or not.")
        % words
    )


def check(deployment: Deployment, revision: Revision, *, other_base: bool) -> None:
    """Refuse an adapter that the deployment's engines could not load, or that was made for another model.

    `other_base`: a person says that it belongs to this model although its author names it otherwise.
    """
    spec = deployment.current_spec
    if spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    settings = settings_of(spec.arguments)
    if not settings.enabled:
        raise Refused(
            _("Its engines run without %(flag)s, so they take no adapters. Change the deployment and add it.")
            % {"flag": ENABLE}
        )
    facts = facts_of(revision)
    if facts is None:
        raise Refused(
            _("What %(revision)s is made for is not known yet. Verify its files first.") % {"revision": revision},
            field="revision",
        )
    _check_rank(facts, settings)
    check_base(facts, spec.copy.revision, other_base=other_base)


def _check_rank(facts: AdapterFacts, settings: LoraSettings) -> None:
    if facts.rank > settings.max_rank:
        enough = next((rank for rank in RANKS if rank >= facts.rank), None)
        text = _("It has rank %(rank)d; the engines take %(most)d at most.") % {
            "rank": facts.rank, "most": settings.max_rank,
        }  # fmt: skip
        if enough is not None:
            text += " " + _("Change the deployment: --max-lora-rank %(enough)d.") % {"enough": enough}
        raise Refused(text, field="revision")


def check_base(facts: AdapterFacts, base: Revision, *, other_base: bool) -> None:
    """Refuse what doesn't have the base's widths, and what names another base unless a person says it is this one."""
    if reasons := misfits(facts.details, base.config):
        raise Refused(
            _("It was not made for %(model)s: %(why)s.") % {"model": base.model, "why": "; ".join(reasons[:3])},
            field="revision",
        )
    if facts.base_model and not other_base and not _same_model(facts.base_model, base):
        raise Refused(
            _(
                "It says that its base is %(said)s; this deployment serves %(model)s. Tick this if that is the same model."
            )
            % {"said": facts.base_model, "model": base.model},
            field="other_base",
        )


def refuse_losing(deployment: Deployment, arguments: Sequence[str], base: Revision) -> None:
    """Refuse a spec whose engines could not load the deployment's adapters any more."""
    adapters = list(deployment.adapters.select_related("revision__model"))
    if not adapters:
        return
    settings, names = settings_of(arguments), ", ".join(one.name for one in adapters)
    if not settings.enabled:
        raise Refused(
            _("Without %(flag)s its adapters could not be loaded: %(names)s. Keep it, or remove them first.")
            % {"flag": ENABLE, "names": names},
            field="arguments",
        )
    for adapter in adapters:
        facts = facts_of(adapter.revision)
        if facts is None:
            continue
        try:
            _check_rank(facts, settings)
            check_base(facts, base, other_base=True)
        except Refused as refusal:
            raise Refused(
                _("The adapter %(name)s could not be loaded any more. %(why)s Or remove the adapter first.")
                % {"name": adapter.name, "why": refusal.message},
                field="arguments",
            ) from None


def _same_model(said: str, base: Revision) -> bool:
    last = _plain(said.rstrip("/").rpartition("/")[2])
    return last in {_plain(base.model.name.rpartition("/")[2]), _plain(base.model.repository.rpartition("/")[2])}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
