"""Models, where they come from, their revisions and files, the copies of them on hosts, and what admins allowed."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.common.states import Stateful, StateTable

COPY_STATES = StateTable(
    {
        "downloading": "unverified incomplete removed",
        "incomplete": "downloading unverified verified damaged deleting removed",
        "unverified": "downloading verified damaged deleting removed",
        "verified": "downloading unverified damaged deleting removed",
        "damaged": "downloading unverified verified deleting removed",
        "deleting": "removed incomplete unverified verified damaged",
        "removed": "downloading unverified",
    }
)

LOCAL_COMMIT = "local"
"""Commit of a revision whose files have no published state: a directory that lay on a host already."""
ADAPTER = "adapter"
"""Kind of a revision, among its facts, whose files are a LoRA adapter."""


class Source(Owned):
    """Where models are fetched from: the hub, a mirror of it, or ModelScope."""

    class Kind(models.TextChoices):
        """Whose protocol the source speaks."""

        HUB = "hub", _("Hugging Face hub")
        MIRROR = "mirror", _("mirror of the hub")
        MODELSCOPE = "modelscope", _("ModelScope")

    name = models.CharField(max_length=60)
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.HUB)
    endpoint = models.CharField(max_length=200)
    """Address without a slash at the end, such as `https://huggingface.co`."""
    token = models.TextField(blank=True)
    """Encrypted (`common.secrets`); empty: anonymous. It leaves the console only sealed to a host."""
    token_set_at = models.DateTimeField(null=True)
    token_checked_at = models.DateTimeField(null=True)
    """When the source was last asked whose token this is."""
    token_account = models.CharField(max_length=120, blank=True)
    token_problem = models.CharField(max_length=400, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="one_source_per_name")]

    def __str__(self) -> str:
        return self.name


class Model(Owned):
    """A model as people call it, wherever it comes from."""

    class Source(models.TextChoices):
        """Where a model comes from."""

        DIRECTORY = "directory", _("a directory on a host")
        HUB = "hub", _("the Hugging Face hub")
        MIRROR = "mirror", _("a mirror of the hub")
        MODELSCOPE = "modelscope", _("ModelScope")

    name = models.CharField(max_length=120)
    source = models.CharField(max_length=12, choices=Source.choices, default=Source.DIRECTORY)
    origin = models.ForeignKey("catalog.Source", null=True, on_delete=models.SET_NULL, related_name="models")
    """The source to fetch from again; null for a directory, or when the source was removed."""
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
    ref = models.CharField(max_length=120, blank=True)
    """Branch or tag that was asked for when it was pinned, such as `main`."""
    gated = models.BooleanField(default=False)
    architecture = models.CharField(max_length=80, blank=True)
    facts: Any = models.JSONField(default=dict)
    """From config.json: parameters, dtype, quantisation, context length."""
    shape: Any = models.JSONField(default=dict)
    """What memory is planned with (`workers.vllm.memory.shape_from`); empty until a host has read the files."""
    size_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model", "-created_at"]
        constraints = [models.UniqueConstraint(fields=["model", "commit"], name="one_revision_per_commit")]

    def __str__(self) -> str:
        return f"{self.model} @ {self.commit[:12]}"

    @property
    def is_pinned(self) -> bool:
        """True for a commit of a source: its files can't rightly change any more."""
        return self.commit != LOCAL_COMMIT

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json, as a host has read it; empty until then."""
        found = self.shape.get("config") if isinstance(self.shape, dict) else None
        return found if isinstance(found, dict) else {}

    @classmethod
    def of_adapters(cls) -> "models.QuerySet[Revision]":
        """All LoRA adapters: see `is_adapter`."""
        return cls.objects.filter(facts__kind=ADAPTER)

    @property
    def is_adapter(self) -> bool:
        """True if its files are a LoRA adapter, as a verification saw them: no engine serves one by itself."""
        return isinstance(self.facts, dict) and self.facts.get("kind") == ADAPTER


class File(models.Model):
    """One file of a revision. Size in bytes."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=400)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64, blank=True)
    git_oid = models.CharField(max_length=40, blank=True)
    """Object id that the source gives for a file outside of LFS: sha1 over a short header and the bytes."""

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
    checked_at = models.DateTimeField(null=True)
    """When a launch last saw that the files are those of the last verification (size, mtime, inode)."""
    verification: Any = models.JSONField(default=dict)
    """What the last verification found: `findings`, `details`, `checked_against`, `mode`, or `failure`."""
    manifest: Any = models.JSONField(default=dict)
    """`files` of the last sound verification: path, size, mtime_ns, inode, sha256."""
    selection: Any = models.JSONField(default=list)
    """Paths that were chosen for download; empty: all files of the directory."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["revision", "host"]
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="one_copy_per_path")]

    def __str__(self) -> str:
        return f"{self.revision} on {self.host}"

    @property
    def is_partial(self) -> bool:
        """True if a download stopped before there was a directory: only parts lie there, to go on with or to discard."""
        return self.state == "incomplete" and not self.path.startswith("/")


class Consent(models.Model):
    """An admin's yes to running code that comes with a revision's files. It holds for exactly these files."""

    class Kind(models.TextChoices):
        """What is allowed."""

        PICKLE = "pickle", _("pickle weights")
        REMOTE_CODE = "remote_code", _("the model's own Python code")

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="consents")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    digest = models.CharField(max_length=64)
    """sha256 over names and sums of the files that hold the code: other files need another yes."""
    given_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    given_by_name = models.CharField(max_length=150)
    reason = models.TextField()
    given_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-given_at"]
        constraints = [models.UniqueConstraint(fields=["revision", "kind", "digest"], name="one_consent_per_files")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.revision}"
