from pathlib import Path

from workers.contracts import CONTRACT, DesiredState, Generation
from workers.host.desired import DesiredStore


def state(epoch: int, number: int, **changes: object) -> str:
    generation = Generation(epoch=epoch, number=number)
    return DesiredState.model_validate({"generation": generation} | changes).model_dump_json()


def test_a_newer_number_is_accepted_and_an_older_one_refused(tmp_path: Path) -> None:
    store = DesiredStore(tmp_path / "desired.json")
    assert store.offer(state(1, 5))
    assert not store.offer(state(1, 4))
    assert not store.offer(state(1, 5))
    assert store.state is not None
    assert store.state.generation.number == 5


def test_a_later_epoch_wins_over_any_number_and_an_earlier_one_never(tmp_path: Path) -> None:
    store = DesiredStore(tmp_path / "desired.json")
    store.offer(state(1, 900))
    assert store.offer(state(2, 1))
    assert not store.offer(state(1, 901))


def test_the_accepted_state_outlives_the_agent(tmp_path: Path) -> None:
    DesiredStore(tmp_path / "desired.json").offer(state(1, 7))
    again = DesiredStore(tmp_path / "desired.json")
    assert again.state is not None
    assert again.state.generation == Generation(epoch=1, number=7)
    assert not again.offer(state(1, 6))


def test_what_is_not_understood_leaves_the_last_state_in_force(tmp_path: Path) -> None:
    store = DesiredStore(tmp_path / "desired.json")
    store.offer(state(1, 7))
    assert not store.offer("{")
    assert not store.offer('{"generation": 3}')
    assert not store.offer(state(1, 8, contract=CONTRACT + 1))
    assert store.state is not None
    assert store.state.generation.number == 7
