"""States move only by their table, only once, and leave a row."""

import pytest

from console.catalog.models import COPY_STATES
from console.common.errors import IllegalMove, LostRace
from console.common.models import StateChange
from console.common.states import LOOKS, StateTable, move
from console.deployments.models import DEPLOYMENT_STATES, INSTANCE_STATES
from console.jobs.models import JOB_STATES, STEP_STATES, Job
from tests.factories import Fleet

TABLES = {
    "copy": COPY_STATES,
    "deployment": DEPLOYMENT_STATES,
    "instance": INSTANCE_STATES,
    "job": JOB_STATES,
    "step": STEP_STATES,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_has_a_look(name: str) -> None:
    for state in TABLES[name].states:
        assert LOOKS[state].word
        assert LOOKS[state].icon
        assert LOOKS[state].colour in {"green", "blue", "amber", "red", "grey"}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached(name: str) -> None:
    table = TABLES[name]
    first = table.states[0]
    reached, frontier = {first}, [first]
    while frontier:
        for follower in table.moves[frontier.pop()] - reached:
            reached.add(follower)
            frontier.append(follower)
    assert reached == set(table.states)


def test_a_table_with_an_unknown_follower_is_refused() -> None:
    with pytest.raises(IllegalMove):
        StateTable({"a": "b"})


@pytest.mark.django_db
def test_an_illegal_move_is_refused_and_changes_nothing(fleet: Fleet) -> None:
    job = Job.objects.create(kind="x", title="x", state="succeeded")
    with pytest.raises(IllegalMove):
        move(job, to="running")
    job.refresh_from_db()
    assert job.state == "succeeded"
    assert not StateChange.objects.filter(kind="jobs.job", object_id=job.pk).exists()


@pytest.mark.django_db
def test_of_two_that_move_at_once_the_second_loses_and_sees_the_truth() -> None:
    job = Job.objects.create(kind="x", title="x")
    same = Job.objects.get(pk=job.pk)
    assert move(job, to="running", reason="first")
    with pytest.raises(LostRace):
        move(same, to="cancelled", reason="second")
    assert same.state == "running"
    assert StateChange.objects.filter(kind="jobs.job", object_id=job.pk).count() == 1


@pytest.mark.django_db
def test_a_move_to_where_it_is_already_leaves_no_row() -> None:
    job = Job.objects.create(kind="x", title="x")
    assert move(job, to="queued") is False
    assert not StateChange.objects.exists()
