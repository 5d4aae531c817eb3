"""What uses a copy or an engine: deployments that serve by it, and those that would need it to start again."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Model, Q

SERVING_STATES = ("deploying", "serving", "degraded", "stopping")


@dataclass(frozen=True)
class User:
    """A deployment that names the thing in its current spec, or still runs an instance with it."""

    pk: int
    name: str
    live: bool


@dataclass
class Usage:
    """Users of one copy or engine by what they would lose."""

    live: list[User] = field(default_factory=list)
    """They serve by it now (or are about to)."""
    idle: list[User] = field(default_factory=list)
    """They are stopped, and could not start without it."""

    @property
    def everyone(self) -> list[User]:
        """All of them, the live ones first."""
        return [*self.live, *self.idle]

    @property
    def live_names(self) -> str:
        """Names of the live ones, for a sentence."""
        return ", ".join(user.name for user in self.live)

    @property
    def names(self) -> str:
        """Names of all of them, for a sentence."""
        return ", ".join(user.name for user in self.everyone)


def usage_of(things: Iterable[Model]) -> dict[int, Usage]:
    """Usage by primary key, of copies or of engines (one kind at a time), in two queries however many there are."""
    known = list(things)
    found = {thing.pk: Usage() for thing in known}
    if not known:
        return found
    model: Any = type(known[0])
    rows = (
        model.objects.filter(pk__in=found, specs__isnull=False)
        .filter(Q(specs__deployment__current_spec=F("specs")) | Q(specs__instances__ordered=True))
        .values_list(
            "pk",
            "specs__deployment__pk",
            "specs__deployment__name",
            "specs__deployment__state",
            "specs__instances__ordered",
        )
    )
    seen: dict[tuple[int, int], User] = {}
    for thing, deployment, name, state, ordered in rows:
        before = seen.get((thing, deployment))
        live = bool(ordered) or state in SERVING_STATES or (before is not None and before.live)
        seen[thing, deployment] = User(deployment, name, live)
    if hasattr(model, "revision"):
        seen |= {(thing, deployment): User(deployment, name, live=True) for thing, deployment, name in _adapted(known)}
    for (thing, _deployment), user in sorted(seen.items(), key=lambda pair: pair[1].name):
        (found[thing].live if user.live else found[thing].idle).append(user)
    return found


def _adapted(copies: list[Model]) -> list[tuple[int, int, str]]:
    """Copies that running engines read as an adapter: the copy, and the deployment's primary key and name."""
    model: Any = type(copies[0])
    rows = model.objects.filter(
        pk__in=[copy.pk for copy in copies],
        revision__adapters__deployment__instances__ordered=True,
        revision__adapters__deployment__instances__host=F("host"),
    )
    path = "revision__adapters__deployment"
    return list(rows.values_list("pk", f"{path}__pk", f"{path}__name").distinct().order_by())
