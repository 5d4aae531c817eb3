"""Incidents: one for each cause and thing that broke, with the notes of whoever took care of it."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from console.access.models import Owned, User
from console.common.states import LOOKS, Look, Stateful, StateTable
from console.deployments.models import Deployment
from console.fleet.models import Host

INCIDENT_STATES = StateTable({"open": "closed", "closed": ""})


class Incident(Owned, Stateful):
    """A time in which something was broken for one reason. It opens and closes by itself.

    What it is about is kept by name and number as well, since an incident is read when the deployment is long gone.
    """

    STATES = INCIDENT_STATES
    state = models.CharField(max_length=12, choices=INCIDENT_STATES.choices(), default="open")
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="incidents")
    host = models.ForeignKey(Host, null=True, on_delete=models.SET_NULL, related_name="incidents")
    name = models.CharField(max_length=120)
    """Name of the deployment or the host."""
    about: Any = models.JSONField(default=dict)
    """Primary keys of what its timeline is read from: `deployment`, `host`, `instances`."""
    code = models.CharField(max_length=60, blank=True)
    """Code of the cause (`workers.vllm.diagnosis`), `host.offline`, or empty while it isn't known."""
    title = models.CharField(max_length=200, blank=True)
    cause = models.TextField(blank=True)
    evidence: Any = models.JSONField(default=list)
    """Lines of the log that show the cause: `{line, text}`."""
    changed: Any = models.JSONField(default=list)
    """What was different from the last good start when it opened: `{name, before, after}`."""
    impact = models.TextField(blank=True)
    """Whom it hit when it was at its worst, in words."""
    served = models.BooleanField(default=True)
    """False once nothing of it served any more."""
    opened_at = models.DateTimeField(default=timezone.now)
    well_since = models.DateTimeField(null=True)
    """Since when all is well again; it closes when that has lasted for a while."""
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-opened_at", "-pk"]
        indexes = [models.Index(fields=["state", "-opened_at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["deployment", "code"],
                condition=models.Q(state="open", deployment__isnull=False),
                name="one_open_incident_per_deployment_and_cause",
            ),
            models.UniqueConstraint(
                fields=["host", "code"],
                condition=models.Q(state="open", deployment__isnull=True, host__isnull=False),
                name="one_open_incident_per_host_and_cause",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.heading}"

    @property
    def look(self) -> Look:
        """Open and not yet well, or over."""
        return LOOKS["closed" if self.state == "closed" else "failed" if not self.served else "degraded"]

    @property
    def word(self) -> str | Promise:
        """Its state in a word: `broken`, `well again` while it waits to close, `over`."""
        if self.state == "closed":
            return LOOKS["closed"].word
        return _("well again") if self.well_since else _("open")

    @property
    def heading(self) -> str:
        """The cause in a few words."""
        return self.title or self.code or _("no cause known yet")


class Note(models.Model):
    """What a person wrote down about an incident. Never changed."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="notes")
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    author_name = models.CharField(max_length=150)
    text = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.author_name}: {self.text[:40]}"


class Position(models.Model):
    """Up to which change of a state incidents have looked: one row."""

    last_change = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.last_change)
