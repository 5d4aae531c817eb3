"""What moves rollouts on: twice a second, in the process of the gateway's controller, one process at a time.

All that counts lies in the database: whoever drives next goes on where the last one stopped.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog
from django.db import close_old_connections, connection, transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from console.common import broker, live
from console.common.databases import DATABASE_AWAY
from console.common.errors import Refused
from console.gateway import controller, machines
from console.gateway.models import Target
from console.rollouts import inference, judging, services
from console.rollouts.inference import Verdict
from console.rollouts.models import ABORTABLE_STATES, LIVE_STATES, MOVING_STATES, Rollout, RolloutStep
from console.rollouts.probing import Prober
from console.rollouts.samples import Samples
from workers.gateway.description import is_of_canary

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.5
IDLE_SECONDS = 2.0
"""While nothing is rolled out: half of what an idle gateway used was this question."""
LOCK = "console:rollouts:driver"
LOCK_SECONDS = 10
FIGURES_EVERY_SECONDS = 5.0


class Driver:
    """One run."""

    def __init__(self) -> None:
        self.stopping = False
        self._name = str(uuid4())
        self._probers: dict[int, Prober] = {}
        self._samples: dict[int, Samples] = {}
        self._told: dict[int, float] = {}
        self._has_work = False

    def run(self) -> None:
        """Work until `stopping`. What is away is waited for."""
        try:
            while not self.stopping:
                try:
                    close_old_connections()
                    if self._is_mine():
                        self.round()
                except (*DATABASE_AWAY, RedisError) as error:
                    log.warning("rollouts: database or broker away", error=str(error))
                except Exception:
                    log.exception("rollouts: a round failed")
                time.sleep(ROUND_SECONDS if self._has_work else IDLE_SECONDS)
        finally:
            for prober in self._probers.values():
                prober.close()
            connection.close()

    def _is_mine(self) -> bool:
        """True while this process holds the lock, which it takes if nobody does."""
        link = broker.connection()
        if link.set(LOCK, self._name, nx=True, ex=LOCK_SECONDS):
            return True
        if link.get(LOCK) != self._name:
            return False
        link.expire(LOCK, LOCK_SECONDS)
        return True

    def round(self) -> None:
        """Look at every rollout once."""
        living = list(
            Rollout.objects.filter(state__in=LIVE_STATES).select_related(
                "deployment", "old_spec", "new_spec", "job", "stop_job"
            )
        )
        self._has_work = bool(living)
        asked = {one.pk for one in living if one.state in (*MOVING_STATES, "held", "draining")}
        for gone in self._probers.keys() - asked:
            self._probers.pop(gone).close()
        for gone in self._samples.keys() - {one.pk for one in living}:
            del self._samples[gone]
        for rollout in living:
            try:
                self._drive(rollout)
            except Refused as refusal:
                # A person, or another process, was faster; or a job can't be given to a host now. The next round sees.
                log.info("rollout not moved", rollout=rollout.pk, why=str(refusal))
            except DATABASE_AWAY:
                raise
            except Exception:
                log.exception("rollout not driven", rollout=rollout.pk)

    def _drive(self, rollout: Rollout) -> None:
        work: dict[str, Callable[[Rollout], Any]] = {
            "preparing": self._prepare,
            "shadowing": self._look,
            "shifting": self._look,
            "held": self._watch,
            "draining": self._drain,
            "rolling_back": self._withdraw,
        }
        if rollout.state in ("preparing", *MOVING_STATES, "held") and (why := _lost_ground(rollout)):
            _back(rollout, "gone", why)
            return
        work[rollout.state](rollout)

    # -- coming up ----------------------------------------------------------------------------------------------------

    def _prepare(self, rollout: Rollout) -> None:
        job = rollout.job
        if job is None or job.state in ("failed", "cancelled"):
            why = job.state_reason if job else ""
            with transaction.atomic():
                services.finish(
                    services.locked(rollout), "failed", _("The new engines did not come up: %s") % (why or "–")
                )
        elif job.state == "succeeded":
            with transaction.atomic():
                rollout = services.locked(rollout)
                if rollout.state == "preparing":
                    services.advance(rollout, by="verdict")

    # -- a step -------------------------------------------------------------------------------------------------------

    def _seen(self, rollout: Rollout) -> Samples:
        samples = self._samples.setdefault(rollout.pk, Samples(rollout))
        samples.read()
        return samples

    def _watch(self, rollout: Rollout, *, may_top_up: bool = False) -> bool:
        """Ask, and end it at once if it is in an emergency; True if it was."""
        samples, step = self._seen(rollout), rollout.current()
        prober = self._probers.setdefault(rollout.pk, Prober(rollout))
        prober.poke(users=samples.new(step).users if step else 0, may_top_up=may_top_up)
        if found := judging.emergency(rollout, step, samples, prober.dead):
            self._keep_figures(rollout, step, samples)
            _back(rollout, *found)
            return True
        self._show(rollout, step, samples)
        return False

    def _look(self, rollout: Rollout) -> None:
        step = rollout.current()
        is_good = step is not None and step.verdict == Verdict.BETTER_OR_EQUAL
        if self._watch(rollout, may_top_up=not is_good) or step is None:
            return
        if step.shadow_percent and not _may_copy(rollout):
            _ask_people(rollout, _("No route allows its requests to be copied any more. Skip this step or abort."))
            return
        samples, now = self._samples[rollout.pk], timezone.now()
        look = inference.looks(judging.smaller_side(samples, step))
        if look > step.looks:
            found = judging.compare(samples, step, rollout.chosen, look)
            verdict = inference.together([one.verdict for one in found.values()])
            step.looks, step.measures = look, judging.stored(found, rollout.chosen, looked=True)
            # What was shown once stays shown, unless it turns out to be worse.
            step.verdict = str(verdict) if verdict is not Verdict.UNDECIDED else step.verdict
            step.save(update_fields=["looks", "measures", "verdict"])
            if verdict is Verdict.WORSE:
                self._keep_figures(rollout, step, samples)
                name, why = judging.worst(found)
                _back(rollout, name, why)
                return
        if step.verdict == Verdict.BETTER_OR_EQUAL and now - step.began_at >= timedelta(seconds=step.hold_seconds):
            self._keep_figures(rollout, step, samples)
            with transaction.atomic():
                services.advance(services.locked(rollout), by="verdict")
        elif step.verdict == Verdict.UNDECIDED and now - step.patient_since >= timedelta(
            seconds=max(rollout.chosen.patience_seconds, step.hold_seconds)
        ):
            _ask_people(rollout, _("No verdict in time. Look at the numbers, then go on, skip or abort."))

    def _show(self, rollout: Rollout, step: RolloutStep | None, samples: Samples) -> None:
        if step is None or time.monotonic() - self._told.get(rollout.pk, 0) < FIGURES_EVERY_SECONDS:
            return
        self._told[rollout.pk] = time.monotonic()
        self._keep_figures(rollout, step, samples)

    def _keep_figures(self, rollout: Rollout, step: RolloutStep | None, samples: Samples) -> None:
        if step is None:
            return
        values = {"figure": judging.figure(step, samples)}
        if not step.looks:
            found = judging.compare(samples, step, rollout.chosen, 0)
            values["measures"] = judging.stored(found, rollout.chosen, looked=False)  # type: ignore[assignment]
        RolloutStep.objects.filter(pk=step.pk).update(**values)
        live.changed("rollout", rollout.pk)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, rollout: Rollout) -> None:
        job = rollout.stop_job
        if job is None:
            if self._watch(rollout):
                return
            if _is_drained(rollout, "old"):
                with transaction.atomic():
                    services.stop_side(services.locked(rollout), "old")
                    if not services.instances_of(rollout, "old"):
                        services.finish(services.locked(rollout), "succeeded", _("Done: the new spec is in force."))
        elif job.state == "succeeded":
            with transaction.atomic():
                services.finish(services.locked(rollout), "succeeded", _("Done: the new spec is in force."))

    def _withdraw(self, rollout: Rollout) -> None:
        job = rollout.stop_job
        nothing_left = job is None and not services.instances_of(rollout, "new")
        if nothing_left or (job is not None and job.state == "succeeded"):
            with transaction.atomic():
                rollout = services.locked(rollout)
                gone = _("All requests go to the old engines; the new ones are gone.")
                services.finish(rollout, rollout.outcome, gone)
        elif job is None and _is_drained(rollout, "new"):
            with transaction.atomic():
                services.stop_side(services.locked(rollout), "new")


def _lost_ground(rollout: Rollout) -> str:
    """Why there is nothing to roll out any more: someone stopped the deployment, or took it off its routes."""
    if rollout.deployment.state in ("stopping", "stopped"):
        return _("%(name)s was stopped.") % {"name": rollout.deployment}
    if not Target.objects.filter(deployment=rollout.deployment_id, canary__isnull=False).exists():
        return _("No route leads to %(name)s any more.") % {"name": rollout.deployment}
    return ""


def _back(rollout: Rollout, code: str, why: str) -> None:
    with transaction.atomic():
        rollout = services.locked(rollout)
        if rollout.state in ABORTABLE_STATES:
            services.go_back(rollout, why, code=code)
    log.warning("rolled back", rollout=rollout.pk, code=code, why=why)


def _ask_people(rollout: Rollout, why: str) -> None:
    with transaction.atomic():
        rollout = services.locked(rollout)
        if rollout.state in MOVING_STATES:
            services.hold(rollout, actor=None, reason=why)


def _may_copy(rollout: Rollout) -> bool:
    """True while a route that leads there allows copies of its requests."""
    allowed = Target.objects.filter(route__enabled=True, route__shadow_allowed_at__isnull=False)
    return allowed.filter(deployment=rollout.deployment_id, canary__isnull=False).exists()


def _is_drained(rollout: Rollout, side: str) -> bool:
    """True once nothing is in flight on a side that gets nothing new, or its time is over."""
    since = timezone.now() - rollout.state_since
    if since >= timedelta(seconds=rollout.chosen.drain_seconds):
        return True
    told = controller.status()
    elsewhere = machines.live_servers()
    if told is None or elsewhere is None or told.at <= rollout.state_since.timestamp() + 1:
        return False
    names = {f"i{one.pk}" for one in services.instances_of(rollout, side)}
    ends_new = side == "new"
    return not any(
        one.get("in_flight", 0)
        for one in (*told.servers, *elsewhere)
        if one["instance"] in names and is_of_canary(one["backend"]) == ends_new
    )
