"""Rows that every app leaves: one for each change of a state."""

from django.conf import settings
from django.db import models
from django.utils import timezone


class StateChange(models.Model):
    """One move of one object from one state to another. Never changed, never deleted with its object."""

    kind = models.CharField(max_length=60)
    """The object's model, such as `deployments.instance`."""
    object_id = models.BigIntegerField()
    before = models.CharField(max_length=20)
    after = models.CharField(max_length=20)
    reason = models.TextField(blank=True, default="")
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [models.Index(fields=["kind", "object_id", "-at"]), models.Index(fields=["-at"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}: {self.before} → {self.after}"
