"""Emptying a host: its deployments are stopped with grace; and giving up what ran on a host that is removed."""

from django.db import transaction
from django.utils.translation import gettext as _

from console.access.models import User
from console.deployments import services
from console.deployments.handlers import forget
from console.deployments.models import Deployment
from console.fleet import intake
from console.fleet.models import Host
from console.jobs.models import Job


def on_host(host: Host) -> list[Deployment]:
    """Deployments that have something ordered on the host, by name."""
    return list(Deployment.objects.filter(instances__host=host, instances__ordered=True).distinct().order_by("name"))


def drain(host: Host, *, actor: User, reason: str) -> list[Job]:
    """Take no new work and stop what runs there, each with its grace; returns the jobs that do it."""
    with transaction.atomic():
        intake.begin_draining(host, actor=actor, reason=reason)
        # A deployment lives on one host as yet, so stopping its instances there is stopping the deployment.
        return [
            services.stop(
                deployment, actor=actor, reason=_("%(host)s is drained: %(reason)s") % {"host": host, "reason": reason}
            )
            for deployment in on_host(host)
            if deployment.state not in ("stopped", "stopping", "draft")
        ]


def give_up(host: Host, actor: User, reason: str) -> None:  # noqa: ARG001 - who it was stands in the audit of the removal
    """The host is removed by force: its instances are no longer ordered. What runs there is not reached any more."""
    why = _("%(host)s was removed from the console; it may still run there (%(reason)s)") % {
        "host": host,
        "reason": reason,
    }
    for instance in host.instances.filter(ordered=True).select_related("deployment", "host"):
        forget(instance, reason=why)
        services.settle(instance.deployment_id)
