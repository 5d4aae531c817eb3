"""Benchmarks of a route, through the gateway: asked from the host of an instance behind it, with a key of its own.

The key is made when the step is sent, and again when it is sent once more after its end; nobody is shown it. It is for this
route alone, has no limits (the route's and the team's hold), is revoked when the benchmark has ended, and expires by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from console import env
from console.access.models import User
from console.benchmarks import services, subjects
from console.benchmarks.models import Benchmark
from console.benchmarks.profiles import fitted
from console.benchmarks.services import Question, Remote, TrafficRefused
from console.common.errors import Refused
from console.common.secrets import decrypt, encrypt
from console.deployments.models import Instance
from console.gateway import keys
from console.gateway.models import Route
from console.jobs.models import Step

_LONGER = timedelta(minutes=10)
"""How long a key outlives the deadline of its step, at the latest: a host's clock and its way back take time."""


def measure_route(
    route: Route,
    question: Question,
    *,
    title: str = "",
    notes: str = "",
    tags: Sequence[str] = (),
    despite_traffic: bool = False,
    actor: User | None,
    reason: str = "",
) -> Benchmark:
    """Measure what clients of a route get. Refused with `TrafficRefused` if people use it, unless `despite_traffic`."""
    serving = _serving(route)
    if not serving:
        raise Refused(_("Nothing behind %(route)s is ready.") % {"route": route}, field="route")
    requests = sum(subjects.traffic_of(one) for one in serving)
    if requests >= 1 and not despite_traffic:
        raise TrafficRefused(
            _("%(name)s is in use: about %(count)d requests in the last minute. They would be slowed down, and would "
              "disturb the numbers. Measure another route, or say that you mean it.")
            % {"name": route, "count": round(requests)}, field="despite_traffic")  # fmt: skip
    first = serving[0]
    here = [one for one in serving if one.host_id == first.host_id]
    devices = dict.fromkeys(device.uuid for one in here for device in subjects.devices_of(one))
    remote = Remote(
        env.gateway_url(), route.name, "", first.engine, first.copy, route=route, devices=tuple(devices)
    )  # fmt: skip
    asked = replace(question, workload=fitted(question.workload, subjects.context_tokens(first)))
    return services.measure_remote(remote, asked, title=title, notes=notes, tags=tags, actor=actor, reason=reason)


def _serving(route: Route) -> list[Instance]:
    """Ready instances behind a route, of its heaviest deployment first."""
    ready = Instance.objects.filter(
        state="ready", deployment__route_targets__route=route, deployment__route_targets__weight__gt=0
    )
    ready = ready.annotate(weight=F("deployment__route_targets__weight")).order_by("-weight", "pk")
    return [one for one in ready.select_related("host", "deployment") if not one.is_unknown]


def secret_for(benchmark: Benchmark, step: Step) -> str:
    """The secret of the benchmark's key; a new one where it has none that the gateway takes."""
    route, known = benchmark.route, benchmark.gateway_key
    if route is None:
        return ""
    if known is not None and known.is_usable and benchmark.remote_key:
        return decrypt(benchmark.remote_key)
    key, secret = keys.create(
        name=_("benchmark %(number)d") % {"number": benchmark.pk}, owner=benchmark.requested_by, routes=[route],
        expires_at=timezone.now() + timedelta(seconds=step.deadline_seconds) + _LONGER,
        actor=benchmark.requested_by, team_id=route.team_id,
    )  # fmt: skip
    benchmark.gateway_key, benchmark.remote_key = key, encrypt(secret)
    benchmark.save(update_fields=["gateway_key", "remote_key"])
    return secret


def forget_key(benchmark: Benchmark) -> None:
    """Revoke the benchmark's key, if it has one."""
    if benchmark.gateway_key is None:
        return
    keys.revoke(benchmark.gateway_key, actor=None, reason=_("the benchmark has ended"))
    benchmark.remote_key = ""
    benchmark.save(update_fields=["remote_key"])
