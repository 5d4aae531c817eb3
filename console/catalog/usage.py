"""What uses a copy: deployments that serve from it, and those that would need it to start again."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import F, Q

from console.catalog.models import Copy

SERVING_STATES = ("deploying", "serving", "degraded", "stopping")


@dataclass(frozen=True)
class User:
    """A deployment that names a copy in its current spec, or still runs an instance on it."""

    pk: int
    name: str
    live: bool


@dataclass
class Usage:
    """Users of one copy by what they would lose."""

    live: list[User] = field(default_factory=list)
    """They serve from it now (or are about to)."""
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


def usage_of(copies: Iterable[Copy]) -> dict[int, Usage]:
    """Usage by copy, in one query however many copies there are."""
    found = {copy.pk: Usage() for copy in copies}
    rows = (
        Copy.objects.filter(pk__in=found, specs__isnull=False)
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
    for copy, deployment, name, state, ordered in rows:
        before = seen.get((copy, deployment))
        live = bool(ordered) or state in SERVING_STATES or (before is not None and before.live)
        seen[copy, deployment] = User(deployment, name, live)
    for (copy, _deployment), user in sorted(seen.items(), key=lambda pair: pair[1].name):
        (found[copy].live if user.live else found[copy].idle).append(user)
    return found
