"""Who may do what. Every view, socket and API call asks here; templates ask the same to decide what to show."""

from enum import StrEnum
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.shortcuts import get_object_or_404

from console.access.models import Role, User


class Action(StrEnum):
    """What can be allowed. Objects of other teams are invisible whatever the action."""

    VIEW = "view"
    """Look at pages, metrics and logs."""
    OPERATE = "operate"
    """Restart, stop, cancel, retry, use the playground: what on-call people do."""
    DEPLOY = "deploy"
    """Create and change deployments, models, hosts and engines."""
    ADMINISTER = "administer"
    """People, settings, and everything else."""


ALLOWED: dict[str, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.VIEW}),
    Role.OPERATOR: frozenset({Action.VIEW, Action.OPERATE}),
    Role.ADMIN: frozenset(Action),
}

Row = TypeVar("Row", bound=Model)


def can(user: Any, action: Action | str) -> bool:
    """True if the person may do this at all (objects of other teams aside)."""
    return (
        getattr(user, "is_authenticated", False)
        and user.is_active
        and Action(action) in ALLOWED.get(getattr(user, "role", ""), frozenset())
    )


def require(user: Any, action: Action) -> User:
    """Return the user if the action is allowed; raise PermissionDenied otherwise."""
    if not can(user, action):
        raise PermissionDenied
    if not isinstance(user, User):
        raise PermissionDenied
    return user


def visible(user: Any, rows: QuerySet[Row], *, team_path: str = "team") -> QuerySet[Row]:
    """Limit a query to what the person's team owns. `team_path` leads from the rows to their team."""
    require(user, Action.VIEW)
    return rows.filter(**{f"{team_path}_id": user.team_id})


def get(user: Any, rows: QuerySet[Row], action: Action, *, team_path: str = "team", **lookup: Any) -> Row:
    """Fetch one object to do `action` with; 404 if the team doesn't own it, PermissionDenied if the role may not."""
    require(user, action)
    return get_object_or_404(visible(user, rows, team_path=team_path), **lookup)
