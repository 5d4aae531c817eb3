"""Models, their revisions and files, and the copies of them on hosts."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned
from console.common.states import Stateful, StateTable

COPY_STATES = StateTable(
    {
        "unverified": "verified damaged removed",
        "verified": "unverified damaged removed",
        "damaged": "unverified verified removed",
        "removed": "unverified",
    }
)


class Model(Owned):
    """A model as people call it, wherever it comes from."""

    class Source(models.TextChoices):
        """Where a model comes from."""

        DIRECTORY = "directory", _("a directory on a host")
        HUB = "hub", _("the Hugging Face hub")
        MODELSCOPE = "modelscope", _("ModelScope")

    name = models.CharField(max_length=120)
    source = models.CharField(max_length=12, choices=Source.choices, default=Source.DIRECTORY)
    repository = models.CharField(max_length=200, blank=True)
    license = models.CharField(max_length=60, blank=True)
    notes = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="one_model_per_name")]

    def __str__(self) -> str:
        return self.name


class Revision(models.Model):
    """One pinned state of a model's files: a commit, or for a directory the digest of its manifest."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="revisions")
    commit = models.CharField(max_length=64)
    architecture = models.CharField(max_length=80, blank=True)
    facts: Any = models.JSONField(default=dict)
    """From config.json: parameters, dtype, quantisation, context length."""
    size_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model", "-created_at"]
        constraints = [models.UniqueConstraint(fields=["model", "commit"], name="one_revision_per_commit")]

    def __str__(self) -> str:
        return f"{self.model} @ {self.commit[:12]}"


class File(models.Model):
    """One file of a revision. Size in bytes."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=400)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["path"]
        constraints = [models.UniqueConstraint(fields=["revision", "path"], name="one_file_per_path")]

    def __str__(self) -> str:
        return self.path


class Copy(Stateful):
    """A revision's files on one host."""

    STATES = COPY_STATES
    state = models.CharField(max_length=12, choices=COPY_STATES.choices(), default="unverified")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="copies")
    host = models.ForeignKey("fleet.Host", on_delete=models.CASCADE, related_name="copies")
    path = models.CharField(max_length=500)
    size_bytes = models.BigIntegerField(default=0)
    verified_at = models.DateTimeField(null=True)
    verification: Any = models.JSONField(default=dict)
    manifest: Any = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["revision", "host"]
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="one_copy_per_path")]

    def __str__(self) -> str:
        return f"{self.revision} on {self.host}"
