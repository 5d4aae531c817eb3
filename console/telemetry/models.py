"""Roll-ups of metrics: one compressed row for each engine, hour and resolution."""

from django.db import models

from console.deployments.models import Instance

FINE_SECONDS, COARSE_SECONDS = 10, 60
"""Lengths of stored slots: 10 s for a day, 1 min for thirty days."""
HOUR = 3600


class MetricsHour(models.Model):
    """An hour of one instance in slots of `resolution_seconds`, packed by `console.telemetry.columns`."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="metrics")
    resolution_seconds = models.PositiveSmallIntegerField()
    begins_at = models.BigIntegerField()
    """Seconds since the epoch, a multiple of 3,600."""
    packed = models.BinaryField()

    class Meta:
        ordering = ["instance", "resolution_seconds", "begins_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["instance", "resolution_seconds", "begins_at"], name="one_row_per_hour_and_resolution"
            )
        ]
        indexes = [models.Index(fields=["resolution_seconds", "begins_at"])]

    def __str__(self) -> str:
        return f"{self.instance} {self.begins_at} ({self.resolution_seconds} s)"
