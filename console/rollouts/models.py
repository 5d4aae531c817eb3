"""Rollouts, their steps, what the console asked both sides, and what happened."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.common.states import LOOKS, Look, Stateful, StateTable
from console.deployments.models import Deployment, Instance, Spec
from console.jobs.models import Job
from console.rollouts.plans import Plan

ROLLOUT_STATES = StateTable(
    {
        "preparing": "shadowing shifting failed rolling_back",
        "shadowing": "shifting held rolling_back",
        "shifting": "held draining rolling_back",
        "held": "shadowing shifting draining rolling_back",
        "draining": "succeeded rolling_back",
        "rolling_back": "rolled_back aborted",
        "succeeded": "",
        "rolled_back": "",
        "aborted": "",
        "failed": "",
    }
)
MOVING_STATES = ("shadowing", "shifting")
"""At a step, and looking for a verdict of it."""
LIVE_STATES = ("preparing", *MOVING_STATES, "held", "draining", "rolling_back")
ABORTABLE_STATES = ("preparing", *MOVING_STATES, "held", "draining")
VERDICT_LOOKS = {
    "better_or_equal": Look(_("as good or better"), "check", "green"),
    "worse": Look(_("worse"), "x", "red"),
    "undecided": Look(_("undecided"), "help", "grey"),
}
SIDES = [("old", _("old")), ("new", _("new"))]


def title_of(weight: int, shadow_percent: int) -> str:
    """What a step is called: its share of the requests, or that it only copies some."""
    return str(_("shadow, %d %%") % shadow_percent) if shadow_percent else f"{weight} %"


class Rollout(Owned, Stateful):
    """A new spec of a deployment on its way to all of its requests, or back."""

    STATES = ROLLOUT_STATES
    state = models.CharField(max_length=12, choices=ROLLOUT_STATES.choices(), default="preparing")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="rollouts")
    old_spec = models.ForeignKey(Spec, on_delete=models.CASCADE, related_name="+")
    new_spec = models.ForeignKey(Spec, on_delete=models.CASCADE, related_name="rollouts")
    plan: Any = models.JSONField(default=dict)
    """`console.rollouts.plans.Plan`."""
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    """Brings the new side up."""
    stop_job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    """Stops the side that is given up."""
    ended_by_person = models.BooleanField(default=False)
    """True if someone aborted it."""
    finding: Any = models.JSONField(default=dict)
    """Why it was rolled back: `code` and `text`."""
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(state__in=LIVE_STATES), name="one_live_rollout_per_deployment"
            )
        ]

    def __str__(self) -> str:
        return f"{self.deployment}: {self.old_spec.number} → {self.new_spec.number}"

    @property
    def chosen(self) -> Plan:
        """Its plan."""
        return Plan.of_json(self.plan)

    @property
    def is_live(self) -> bool:
        """True until it has ended."""
        return self.state in LIVE_STATES

    @property
    def outcome(self) -> str:
        """The state in which it ends, once the engines of the side that was given up are gone."""
        if self.state == "draining":
            return "succeeded"
        return "aborted" if self.ended_by_person else "rolled_back"

    def current(self) -> "RolloutStep | None":
        """The step that it is at; None before the first."""
        return self.steps.order_by("position").last()


class RolloutStep(models.Model):
    """A share of the requests that was reached, and what was seen there."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveSmallIntegerField()
    weight = models.PositiveSmallIntegerField()
    shadow_percent = models.PositiveSmallIntegerField(default=0)
    """Above 0: requests are only copied, so many per cent of them."""
    hold_seconds = models.FloatField()
    began_at = models.DateTimeField(default=timezone.now)
    patient_since = models.DateTimeField(default=timezone.now)
    """From when the wait for a verdict counts: its beginning, or when a person said to go on."""
    ended_at = models.DateTimeField(null=True)
    first_request = models.BigIntegerField(default=0)
    """`GatewayRequest` rows up to this one came before."""
    looks = models.PositiveSmallIntegerField(default=0)
    verdict = models.CharField(max_length=16, default="undecided")
    measures: Any = models.JSONField(default=list)
    """What was compared at the last look: name, verdict, both figures, counts, margin."""
    figure: Any = models.JSONField(default=dict)
    """Times by ten seconds and side, for the chart; of a shadow also `shadow`, as `judging.shadow_facts` has it."""
    passed_by = models.CharField(max_length=8, blank=True)
    """`verdict` or `person`."""

    class Meta:
        ordering = ["rollout", "position"]
        constraints = [models.UniqueConstraint(fields=["rollout", "position"], name="one_rollout_step_per_position")]

    def __str__(self) -> str:
        return f"{self.rollout}: {self.title}"

    @property
    def title(self) -> str:
        """Its name on the pages."""
        return title_of(self.weight, self.shadow_percent)

    @property
    def verdict_look(self) -> Look:
        """How its verdict is shown."""
        return VERDICT_LOOKS[self.verdict] if self.passed_by != "person" else LOOKS["skipped"]


class Probe(models.Model):
    """One question that the console asked an instance: its answer is the console's own, so it may be read."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="probes")
    side = models.CharField(max_length=3, choices=SIDES)
    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="+")
    is_validation = models.BooleanField(default=False)
    """True: the deployment's own question, whose answer is judged; else a short one, for the times."""
    at = models.DateTimeField()
    ttft_ms = models.FloatField(null=True)
    pace_ms = models.FloatField(null=True)
    """Time between tokens, the mean of one answer."""
    finish_reason = models.CharField(max_length=40, blank=True)
    trouble = models.CharField(max_length=8, blank=True)
    """Empty: well. `error` (refused or broken), `away` (no connection), `silent` (no token in time), `garbage`."""
    detail = models.TextField(blank=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.side} {self.instance}: {self.trouble or 'ok'}"


class Happening(models.Model):
    """One line of a rollout's timeline."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="happenings")
    at = models.DateTimeField(default=timezone.now)
    icon = models.CharField(max_length=30)
    text = models.TextField()
    reason = models.TextField(blank=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.text
