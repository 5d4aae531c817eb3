"""The card of a deployment's adapters: each with what it is to every instance."""

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.states import LOOKS, Look
from console.deployments import adapter_fit, public
from console.deployments.models import Adapter, AdapterLoad, Deployment, Instance


@dataclass(frozen=True)
class ShownLoad:
    """An adapter in one instance."""

    instance: Instance
    look: Look
    why: str
    next: str = ""


@dataclass(frozen=True)
class ShownAdapter:
    """An adapter in a line, and below it where it is not loaded and why."""

    adapter: Adapter
    rank: int
    loaded: int
    loads: list[ShownLoad]

    @property
    def look(self) -> Look:
        """The state of all of it."""
        if self.loads and self.loaded == len(self.loads):
            return LOOKS["loaded"]
        if any(one.look == LOOKS["failed"] for one in self.loads):
            return LOOKS["failed"] if not self.loaded else LOOKS["degraded"]
        return LOOKS["loading"] if self.loads else LOOKS["stopped"]


@dataclass(frozen=True)
class AdapterCard:
    """What the card shows. `enabled`: the engines take adapters at all."""

    enabled: bool
    room: str
    public_model: str
    rows: list[ShownAdapter]

    @property
    def sentence(self) -> str:
        """The truth about all of them."""
        if not self.rows:
            return ""
        good = sum(row.look == LOOKS["loaded"] for row in self.rows)
        return ngettext(
            "%(good)d of %(all)d adapter is loaded everywhere.", "%(good)d of %(all)d adapters are loaded everywhere.",
            len(self.rows),
        ) % {"good": good, "all": len(self.rows)}  # fmt: skip


def card(deployment: Deployment, instances: list[Instance]) -> AdapterCard:
    """Read it, in a constant number of queries."""
    spec = deployment.current_spec
    running = [one for one in instances if one.ordered and one.run]
    adapters = list(deployment.adapters.select_related("revision__model"))
    known = AdapterLoad.objects.filter(adapter__in=adapters, instance__in=running)
    loads = {(one.adapter_id, one.instance_id): one for one in known}
    rows = []
    for adapter in adapters:
        shown = [_load(instance, loads.get((adapter.pk, instance.pk))) for instance in running]
        facts = adapter_fit.facts_of(adapter.revision)
        loaded = sum(one.look == LOOKS["loaded"] for one in shown)
        rows.append(ShownAdapter(adapter, facts.rank if facts else 0, loaded, shown))
    reached = public.endpoint(deployment) if rows else None
    return AdapterCard(
        enabled=adapter_fit.settings_for(deployment).enabled,
        room=adapter_fit.room_words(spec) if spec else "",
        public_model=reached.model if reached else "",
        rows=rows,
    )


def _load(instance: Instance, load: AdapterLoad | None) -> ShownLoad:
    if instance.is_unknown:
        return ShownLoad(instance, LOOKS["unknown"], _("%(host)s is silent") % {"host": instance.host})
    if instance.state != "ready":
        why = _("waits until the instance is ready; it is %(state)s") % {"state": instance.look.word}
        return ShownLoad(instance, LOOKS["queued"], why)
    if load is None:
        return ShownLoad(instance, LOOKS["queued"], _("waits for its files"))
    failure = load.failure if isinstance(load.failure, dict) else {}
    why = str(failure.get("message") or load.state_reason)
    return ShownLoad(instance, load.look, why, str(failure.get("next") or ""))
