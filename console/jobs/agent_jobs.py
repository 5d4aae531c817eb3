"""Upgrading a host's agent to the version that this console comes with."""

from django.db import transaction
from django.utils.translation import gettext as _

from console import env
from console.access import services as access
from console.access.models import User
from console.common.errors import Refused
from console.fleet import agent_card, host_wheel
from console.fleet.models import Host
from console.jobs import services
from console.jobs.models import Job
from console.jobs.services import PlannedStep
from workers.contracts import StepKind
from workers.step_payloads import UpgradeAgentPayload

UPGRADE_SECONDS = 1200


def upgrade_agent(host: Host, *, actor: User | None, reason: str) -> Job:
    """Install the console's own agent beside the old one and switch; the host goes back by itself if it fails."""
    card = agent_card.describe(host)
    if not card.can_upgrade:
        raise Refused(card.text)
    wheel = host_wheel.current()
    payload = UpgradeAgentPayload(
        version=wheel.version, wheel=wheel.name, sha256=wheel.sha256, offline=env.environment().wheels_dir is not None
    )
    with transaction.atomic():
        services.refuse_while_busy(subject_kind="host", subject_id=host.pk)
        access.record(
            actor=actor, action="host.upgrade_agent", target=host.name, target_url=f"/hosts/{host.pk}/",
            reason=reason, before=host.agent_version, after=wheel.version,
        )  # fmt: skip
        return services.create(
            kind="upgrade_agent",
            title=_("Upgrade the agent of %(host)s") % {"host": host},
            host=host,
            steps=[PlannedStep(StepKind.UPGRADE_AGENT, payload.model_dump(mode="json"), UPGRADE_SECONDS)],
            actor=actor,
            subject=("host", host.pk),
            reason=reason,
        )
