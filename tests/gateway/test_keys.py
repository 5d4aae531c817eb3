"""Keys: made once, changed, rotated with an overlap, revoked; and what of them reaches the gateway's description."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from console.access.models import AuditEntry, Team, User
from console.common.errors import Refused
from console.gateway import keys, plan
from console.gateway.models import Key, Route, TeamLimits, UsageDay


def make(actor: User | None = None, **given: Any) -> tuple[Key, str]:
    fields: dict[str, Any] = {"name": "app", "owner": None, "routes": None, "expires_at": None, "actor": actor}
    return keys.create(**(fields | given), team_id=1)


def digests() -> set[str]:
    return {key.sha256 for key in plan.read().keys}


def test_a_key_is_stored_as_a_digest_and_recognised_by_its_ends(admin: User) -> None:
    key, secret = make(admin)
    key.refresh_from_db()
    assert secret.startswith("sk-")
    assert len(secret) > 40
    assert secret not in str(vars(key))
    assert key.sha256 == keys.digest(secret)
    assert key.shown == f"{secret[:7]}…{secret[-4:]}"
    assert AuditEntry.objects.get(action="key.create").actor == admin
    assert digests() == {key.sha256}


def test_what_is_revoked_expired_or_its_owners_no_more_is_not_told_to_the_gateway(admin: User, viewer: User) -> None:
    kept, _secret = make(name="kept")
    revoked, _secret = make(name="revoked")
    make(name="expired", expires_at=timezone.now() - timedelta(seconds=1))
    make(name="orphan", owner=viewer)
    viewer.is_active = False
    viewer.save()
    keys.revoke(revoked, actor=admin, reason="leaked")
    assert digests() == {kept.sha256}
    keys.revoke(revoked, actor=admin, reason="again")
    assert AuditEntry.objects.filter(action="key.revoke").count() == 1


def test_rotation_makes_a_successor_with_the_same_rights_and_ends_the_old_one_later(admin: User) -> None:
    route = Route.objects.create(name="chat")
    old, _secret = make(admin, routes=[route], tokens_per_minute=600, daily_tokens=5)
    new, secret = keys.rotate(old, overlap=timedelta(hours=1), actor=admin, reason="yearly")
    old.refresh_from_db()
    assert old.expires_at
    assert timedelta(minutes=59) < old.expires_at - timezone.now() <= timedelta(hours=1)
    assert keys.digest(secret) == new.sha256
    assert (list(new.routes.all()), new.all_routes) == ([route], False)
    assert (new.tokens_per_minute, new.daily_tokens) == (600, 5)
    assert digests() == {old.sha256, new.sha256}
    with pytest.raises(Refused):
        keys.rotate(old, overlap=timedelta(), actor=admin, reason="twice")


def test_a_revoked_key_can_be_neither_changed_nor_rotated(admin: User) -> None:
    key, _secret = make(admin)
    keys.revoke(key, actor=admin, reason="gone")
    with pytest.raises(Refused):
        keys.change(key, actor=admin, routes=None, name="new")
    with pytest.raises(Refused):
        keys.rotate(key, overlap=timedelta(), actor=admin, reason="no")


def test_a_key_reaches_only_routes_of_its_own_team(admin: User) -> None:
    ours = Route.objects.create(name="ours")
    theirs = Route.objects.create(name="theirs", team=Team.objects.create(name="others"))
    key, _secret = make(routes=[ours, theirs])
    every, _secret = make(name="every")
    assert {one.number: one.routes for one in plan.read().keys} == {
        key.pk: frozenset({ours.pk}),
        every.pk: frozenset({ours.pk}),
    }


def test_a_budget_is_spent_by_what_was_counted_today(admin: User) -> None:
    key, _secret = make(daily_tokens=100)
    TeamLimits.objects.create(team_id=1, daily_tokens=1000)
    today = timezone.now().date()
    row = UsageDay.objects.create(day=today, team_id=1, key=key, route="chat", prompt_tokens=60, output_tokens=39)
    assert plan.spent(timezone.now()) == {}
    UsageDay.objects.filter(pk=row.pk).update(output_tokens=40)
    spent = plan.spent(timezone.now())
    assert set(spent) == {f"k{key.pk}"}
    assert 0 < spent[f"k{key.pk}"] - timezone.now().timestamp() <= 86_400
    UsageDay.objects.filter(pk=row.pk).update(output_tokens=4000)
    assert set(plan.spent(timezone.now())) == {f"k{key.pk}", "t1"}
    assert plan.spent(timezone.now() + timedelta(days=1)) == {}


def test_a_routes_budget_is_spent_by_all_keys_together(admin: User) -> None:
    route = Route.objects.create(name="chat", team_id=1, daily_tokens=100)
    Route.objects.create(name="other", team_id=1)
    today = timezone.now().date()
    for name in ("one", "two"):
        key, _secret = make(name=name)
        UsageDay.objects.create(day=today, team_id=1, key=key, route="chat", prompt_tokens=30, output_tokens=19)
        UsageDay.objects.create(day=today, team_id=1, key=key, route="other", prompt_tokens=999)
    assert plan.spent(timezone.now()) == {}
    UsageDay.objects.filter(route="chat", key=key).update(output_tokens=21)
    assert set(plan.spent(timezone.now())) == {f"r{route.pk}"}
    assert plan.spent(timezone.now() + timedelta(days=1)) == {}
