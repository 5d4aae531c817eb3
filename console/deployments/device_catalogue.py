"""The device catalogue as this console has it: the built-in kinds, with what an admin changed or added laid over."""

from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common.errors import Refused
from console.deployments.models import DeviceKind
from workers.vllm.memory import Device, builtin_catalogue, merged_catalogue

FIELDS = (
    "title", "vendor", "platform", "memory_bytes", "capability", "bandwidth_gb_s", "nvlink_gb_s", "overhead_class",
    "aliases",
)  # fmt: skip


def catalogue() -> tuple[Device, ...]:
    """All kinds of devices, edited ones in place of the built-in ones of the same key."""
    return merged_catalogue(_device(row) for row in DeviceKind.objects.all())


def _device(row: DeviceKind) -> Device:
    capability = row.facts.get("capability")
    return Device(
        key=row.key,
        title=row.facts["title"],
        vendor=row.facts["vendor"],
        platform=row.facts["platform"],
        memory_bytes=row.facts["memory_bytes"],
        capability=(int(capability[0]), int(capability[1])) if capability else None,
        bandwidth_gb_s=row.facts["bandwidth_gb_s"],
        nvlink_gb_s=row.facts["nvlink_gb_s"] or 0,
        overhead_class=row.facts["overhead_class"],
        aliases=tuple(row.facts["aliases"]),
    )


def find(key: str) -> Device | None:
    """A kind by its key."""
    return next((one for one in catalogue() if one.key == key), None)


def is_builtin(key: str) -> bool:
    """True for a kind that comes with Slipway: an edit of it can be taken back, but not the kind itself."""
    return any(one.key == key for one in builtin_catalogue())


def save(key: str, facts: dict[str, Any], *, actor: User, reason: str = "") -> None:
    """Change or add a kind. Plans use it from the next keystroke on."""
    with transaction.atomic():
        before = find(key)
        DeviceKind.objects.update_or_create(key=key, defaults={"facts": facts, "changed_by": actor})
        access.record(
            actor=actor, action="device.change" if before else "device.add", target=key, target_url="/devices/",
            reason=reason, before=asdict(before) if before else None, after=facts,
        )  # fmt: skip


def reset(key: str, *, actor: User) -> None:
    """Take an edit back, or remove a kind that was added."""
    with transaction.atomic():
        gone, _rows = DeviceKind.objects.filter(key=key).delete()
        if not gone:
            raise Refused(_("Nothing was changed about this device."))
        access.record(actor=actor, action="device.reset", target=key, target_url="/devices/")
