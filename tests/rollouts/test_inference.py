"""The verdicts against distributions whose truth is known, with fixed seeds."""

import math
import random

import pytest

from console.rollouts import inference
from console.rollouts.inference import Verdict, allowance, compare_shares, compare_times, look_size, looks

STEPS = 5


def times(chance: random.Random, count: int, *, scale: float = 100, spread: float = 0.4) -> list[float]:
    return [scale * math.exp(chance.gauss(0, spread)) for _number in range(count)]


def rollout(
    chance: random.Random, *, slower: float = 1.0, errors: float = 0.002, most: int = 400, spread: float = 0.4
) -> Verdict:
    """A whole rollout in five steps, looked at as often as the driver does; ends at the first "worse"."""
    bad_old = bad_new = total = 0
    verdict = Verdict.UNDECIDED
    for _step in range(STEPS):
        old, new = times(chance, most, spread=spread), times(chance, most, scale=100 * slower, spread=spread)
        failed = [(chance.random() < 0.002, chance.random() < errors) for _number in range(most)]
        for look in range(1, looks(most) + 1):
            size, allowed = look_size(look), allowance(look, steps=STEPS)
            seen_old = sum(one for one, _other in failed[:size])
            seen_new = sum(other for _one, other in failed[:size])
            counts = ({"users": (bad_old + seen_old, total + size)}, {"users": (bad_new + seen_new, total + size)})
            verdict = inference.together([
                compare_times({"users": old[:size]}, {"users": new[:size]}, margin=0.2, allowed=allowed).verdict,
                compare_shares(*counts, margin=0.01, allowed=allowed).verdict,
            ])  # fmt: skip
            if verdict is Verdict.WORSE:
                return verdict
        bad_old, bad_new, total = (
            bad_old + sum(a for a, _b in failed),
            bad_new + sum(b for _a, b in failed),
            total + most,
        )
    return verdict


def test_an_equally_good_side_is_hardly_ever_called_worse() -> None:
    chance = random.Random(1)
    assert sum(rollout(chance, most=120) is Verdict.WORSE for _number in range(120)) == 0


@pytest.mark.long
@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_of_two_thousand_rollouts_at_the_margin_fewer_than_one_in_a_hundred_is_called_worse(slower: float) -> None:
    chance = random.Random(2)
    assert sum(rollout(chance, slower=slower, most=170) is Verdict.WORSE for _number in range(2000)) < 20


def test_a_doubled_time_to_the_first_token_is_found_with_fifty_requests_a_side() -> None:
    chance, allowed = random.Random(3), allowance(1, steps=STEPS)
    found = [
        compare_times({"u": times(chance, 60)}, {"u": times(chance, 60, scale=200)}, margin=0.2, allowed=allowed)
        for _number in range(50)
    ]
    assert sum(one.verdict is Verdict.WORSE for one in found) >= 45


def test_a_tail_that_alone_is_longer_is_found_too() -> None:
    chance = random.Random(4)
    allowed = allowance(4, steps=STEPS)
    found = 0
    for _number in range(20):
        new = [one * (3 if chance.random() < 0.2 else 1) for one in times(chance, 250, spread=0.2)]
        one = compare_times({"u": times(chance, 250, spread=0.2)}, {"u": new}, margin=0.2, allowed=allowed)
        found += one.verdict is Verdict.WORSE
    assert found >= 18


def test_equal_sides_are_called_equal_after_some_hundred_requests_and_worse_ones_never() -> None:
    chance = random.Random(5)

    def good(slower: float, spread: float) -> int:
        count = 0
        for _number in range(20):
            old, new = times(chance, 260, spread=spread), times(chance, 260, scale=100 * slower, spread=spread)
            one = compare_times({"u": old}, {"u": new}, margin=0.2, allowed=allowance(5, steps=STEPS))
            count += one.verdict is Verdict.BETTER_OR_EQUAL
        return count

    assert good(1.0, 0.1) == 20
    assert good(1.3, 0.1) == 0
    assert good(1.2, 0.3) == 0


def test_fewer_than_fifty_requests_decide_nothing() -> None:
    one = compare_times({"u": [1.0] * 500}, {"u": [9.0] * 49}, margin=0.2, allowed=allowance(1, steps=1))
    assert one.verdict is Verdict.UNDECIDED
    assert (looks(49), looks(50), looks(74), looks(75)) == (0, 1, 1, 2)


def test_users_and_probes_are_compared_with_their_like() -> None:
    """Probes are ten times quicker than users here, and the new side has few users: mixed, it would look splendid."""
    chance, allowed = random.Random(6), allowance(4, steps=STEPS)
    old = {"users": times(chance, 900, scale=1000), "probes": times(chance, 200)}
    new = {"users": times(chance, 60, scale=2000), "probes": times(chance, 200, scale=200)}
    one = compare_times(old, new, margin=0.2, allowed=allowed)
    assert one.verdict is Verdict.WORSE
    assert one.old is not None
    assert one.new is not None
    assert one.old < one.new


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((0, 2000), (0, 300), Verdict.UNDECIDED),
        ((0, 2000), (0, 1200), Verdict.BETTER_OR_EQUAL),
        ((20, 2000), (12, 1200), Verdict.UNDECIDED),
        ((2, 2000), (20, 200), Verdict.WORSE),
        ((200, 2000), (20, 200), Verdict.UNDECIDED),
    ],
)
def test_errors_are_compared_with_a_margin_of_one_point(
    old: tuple[int, int], new: tuple[int, int], expected: Verdict
) -> None:
    found = compare_shares({"users": old}, {"users": new}, margin=0.01, allowed=allowance(6, steps=STEPS))
    assert found.verdict is expected


def test_bounds_of_a_share_are_the_exact_ones() -> None:
    """Known values of Clopper and Pearson: 5 of 50 at 2.5 % on each side is 3.33 % to 21.81 %."""
    assert inference._lower(5, 50, 0.025) == pytest.approx(0.0333, abs=2e-4)
    assert inference._upper(5, 50, 0.025) == pytest.approx(0.2181, abs=2e-4)
    assert inference._upper(0, 459, 0.01) == pytest.approx(0.01, abs=1e-4)


def test_all_looks_of_all_steps_together_spend_no_more_than_one_in_a_hundred() -> None:
    parts = [allowance(look, steps=STEPS) for look in range(1, 30)]
    assert sum(one.worse for one in parts) * STEPS * inference.WORSE_TESTS < inference.ERROR_SHARE
    assert sum(one.good for one in parts) < inference.ERROR_SHARE
