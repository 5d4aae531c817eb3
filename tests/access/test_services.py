"""People: the last admin stays, passwords are shown once, and what a role may do."""

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404

from console.access import policies, services
from console.access.models import AuditEntry, Role, Team, User
from console.access.policies import Action
from console.common.errors import Refused
from console.fleet.models import Host

pytestmark = pytest.mark.django_db


def test_the_last_admin_can_be_neither_demoted_nor_disabled(admin: User) -> None:
    with pytest.raises(Refused, match="last admin"):
        services.change_role(admin, role=Role.VIEWER, actor=admin)
    with pytest.raises(Refused, match="last admin"):
        services.set_active(admin, active=False, actor=admin)


def test_a_disabled_admin_does_not_count_as_one(admin: User) -> None:
    other, _password = services.add_person(username="bob", role=Role.ADMIN, actor=admin)
    services.set_active(other, active=False, actor=admin)
    with pytest.raises(Refused, match="last admin"):
        services.change_role(admin, role=Role.OPERATOR, actor=admin)


def test_one_of_two_admins_can_be_demoted(admin: User) -> None:
    services.add_person(username="bob", role=Role.ADMIN, actor=admin)
    services.change_role(admin, role=Role.VIEWER, actor=admin)
    admin.refresh_from_db()
    assert admin.role == Role.VIEWER


def test_a_new_person_must_change_the_first_password_which_no_log_keeps(admin: User) -> None:
    person, password = services.add_person(username="carol", role=Role.VIEWER, actor=admin)
    assert person.must_change_password
    assert person.check_password(password)
    assert password not in str(list(AuditEntry.objects.values()))


def test_names_are_taken_whatever_their_case(admin: User) -> None:
    with pytest.raises(Refused) as refused:
        services.add_person(username=admin.username.upper(), role=Role.VIEWER, actor=admin)
    assert refused.value.field == "username"


def test_ones_own_password_needs_the_current_one_and_a_good_new_one(viewer: User) -> None:
    with pytest.raises(Refused) as refused:
        services.change_own_password(viewer, current="wrong", new="a long new password")
    assert refused.value.field == "current"
    with pytest.raises(Refused) as refused:
        services.change_own_password(viewer, current="correct horse battery", new="short")
    assert refused.value.field == "new"
    services.change_own_password(viewer, current="correct horse battery", new="a long new password")
    assert viewer.check_password("a long new password")


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.VIEWER, {Action.VIEW}),
        (Role.OPERATOR, {Action.VIEW, Action.OPERATE}),
        (Role.ADMIN, set(Action)),
    ],
)
def test_each_role_may_do_exactly_what_its_row_says(role: Role, allowed: set[Action]) -> None:
    person = User(username="x", role=role)
    assert {action for action in Action if policies.can(person, action)} == allowed


def test_a_disabled_person_may_do_nothing() -> None:
    person = User(username="x", role=Role.ADMIN, is_active=False)
    assert not any(policies.can(person, action) for action in Action)


def test_what_another_team_owns_does_not_exist(admin: User) -> None:
    host = Host.objects.create(name="theirs", team=Team.objects.create(name="others"))
    with pytest.raises(Http404):
        policies.get(admin, Host.objects.all(), Action.VIEW, pk=host.pk)


def test_a_role_that_may_not_is_refused_before_anything_is_looked_up(viewer: User) -> None:
    with pytest.raises(PermissionDenied):
        policies.get(viewer, Host.objects.all(), Action.DEPLOY, pk=1)
