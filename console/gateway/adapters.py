"""LoRA adapters as model names: which deployments have them, and which instances have them loaded now."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from django.db.models import Max
from django.utils.translation import gettext as _

from console.deployments.models import Adapter, AdapterLoad, Attempt, Deployment
from console.gateway.models import Alias, Route
from workers.gateway import description


@dataclass(frozen=True)
class Loaded:
    """An adapter of a deployment, and the instances whose running engine has it."""

    number: int
    instances: frozenset[int]


ByDeployment = Mapping[str, Mapping[str, Loaded]]
"""Name of a deployment to its adapters by their names."""


def read(deployments: Collection[int]) -> ByDeployment:
    """What the database says. An adapter that was loaded into a process that has ended is loaded nowhere."""
    adapters = list(
        Adapter.objects.filter(deployment__in=deployments).values_list("pk", "name", "deployment__name").order_by("pk")
    )
    if not adapters:
        return {}
    loads = list(
        AdapterLoad.objects.filter(adapter__in=[pk for pk, *_rest in adapters], state="loaded").values_list(
            "adapter", "instance", "attempt"
        )
    )
    newest = dict(
        Attempt.objects.filter(instance__in={instance for _pk, instance, _attempt in loads})
        .order_by()
        .values_list("instance")
        .annotate(newest=Max("number"))
    )
    where: dict[int, set[int]] = defaultdict(set)
    for pk, instance, attempt in loads:
        if attempt is not None and attempt == newest.get(instance):
            where[pk].add(instance)
    found: dict[str, dict[str, Loaded]] = defaultdict(dict)
    for pk, name, deployment in adapters:
        found[deployment][name] = Loaded(pk, frozenset(where[pk]))
    return found


def with_adapters(
    routes: Iterable[description.Route], adapters: ByDeployment
) -> Iterable[description.Route]:  # fmt: skip
    """Each route, and after it one for each adapter of its deployments: the same keys, its rules, a name of its own.

    Where a deployment stands behind several routes, its adapters are names of the one that was made first.
    """
    taken: set[str] = set()
    for route in routes:
        yield route
        names = {name for target in route.targets for name in adapters.get(target.deployment, {})} - taken
        taken |= names
        for name in sorted(names):
            targets = tuple(_targets(route, name, adapters))
            yield replace(
                route, names=(name,), base=route.names[0], adapter=targets[0].adapter, targets=targets, fallback=None
            )


def _targets(route: description.Route, name: str, adapters: ByDeployment) -> Iterable[description.Target]:
    for target in route.targets:
        loaded = adapters.get(target.deployment, {}).get(name)
        if loaded is not None:
            servers = tuple(one for one in target.servers if one.instance in loaded.instances)
            yield replace(target, adapter=loaded.number, servers=servers)


def names_of(route: Route) -> list[str]:
    """Model names that a route has by the adapters of its deployments."""
    found = Adapter.objects.filter(deployment__route_targets__route=route)
    return sorted(set(found.values_list("name", flat=True)))


def names_in_log() -> dict[str, str]:
    """What the access log calls adapters' routes, to the adapters' names."""
    rows = Adapter.objects.values_list("pk", "name", "deployment__route_targets__route")
    by_name: dict[tuple[str, int], list[int]] = defaultdict(list)
    for pk, name, route in rows:
        if route is not None:
            by_name[name, route].append(pk)
    # Of several deployments' adapters with one name, any may have given the route its number.
    return {f"r{route}{description.ADAPTER}{pk}": name for (name, route), pks in by_name.items() for pk in pks}


def why_taken(deployment: Deployment, name: str) -> str:
    """Why an adapter of a deployment can't be asked for by a name; empty if it can."""
    route = Route.objects.filter(name=name).first()
    alias = Alias.objects.filter(name=name).select_related("route").first()
    if route or alias:
        return _("“%(name)s” belongs to the route %(route)s.") % {
            "name": name, "route": route or (alias and alias.route),
        }  # fmt: skip
    behind = set(deployment.route_targets.values_list("route", flat=True))
    for other in Adapter.objects.filter(name=name).exclude(deployment=deployment).select_related("deployment"):
        if behind.isdisjoint(other.deployment.route_targets.values_list("route", flat=True)):
            return _("“%(name)s” is an adapter of %(deployment)s, which stands behind no route of this one.") % {
                "name": name, "deployment": other.deployment,
            }  # fmt: skip
    return ""


def holder_of(name: str) -> Adapter | None:
    """The adapter that has a name, which no route may have then."""
    return Adapter.objects.filter(name=name).select_related("deployment").first()
