"""Is the new side worse than the old one, at least as good, or is that undecided? Pure statistics, no I/O.

Non-inferiority with margins: "worse" is said where the data exclude that the difference lies within the margin, "better
or equal" where they exclude that it lies beyond it; in between more requests are needed. Both sentences are wrong for at
most one rollout in a hundred, however often one looks:

- "worse" ends a rollout, so each of its tests, in each step and at each look, takes its own part of that 1 %;
- "better or equal" must be said of every measure, so the weakest of them bounds the error, and only looks share the 1 %.

What the console asks itself and what users ask are two strata: they are compared with their like, never mixed. Times are
compared by a quantile test (how many of the slowest twentieth belong to the new side, after the old one's times were
stretched by the margin: an exact hypergeometric tail) and, for "worse" alone, by a rank sum, which sees early that
everything became slower. Shares are compared by exact binomial bounds of each side, put together by their squares
(R. Newcombe 1998, method 10, with exact bounds instead of Wilson's).
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

ERROR_SHARE = 0.01
"""Chance that a whole rollout of an equally good side is called worse; and that a worse one is called good."""
LEAST_REQUESTS = 50
LOOK_GROWTH = 1.5
"""The next look comes when the smaller side has so many times the requests of the last one."""
SPENDING_HALF = 300
"""With so many requests, half of the allowed error has been spent."""
QUANTILE = 0.95
WORSE_TESTS = 6
"""Tail and typical of the first token, the same of the pace, errors, finish reasons."""

Times = Mapping[str, Sequence[float]]
"""Times of one side by stratum."""
Counts = Mapping[str, tuple[int, int]]
"""Bad ones and all of one side by stratum."""


class Verdict(StrEnum):
    """What is known of the new side."""

    BETTER_OR_EQUAL = "better_or_equal"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Allowance:
    """How often each sentence may be wrong at one look."""

    worse: float
    good: float


@dataclass(frozen=True)
class Comparison:
    """One measure of both sides: seconds or milliseconds for times, shares for counts; None where nothing is known."""

    verdict: Verdict
    old: float | None
    new: float | None
    old_count: int
    new_count: int
    p_worse: float = 1.0
    p_good: float = 1.0


def looks(requests: int) -> int:
    """How many looks are due with so many requests on the smaller side: 1 from `LEAST_REQUESTS` on."""
    if requests < LEAST_REQUESTS:
        return 0
    return 1 + int(math.log(requests / LEAST_REQUESTS) / math.log(LOOK_GROWTH) + 1e-9)


def look_size(look: int) -> int:
    """The number of requests from which a look is due."""
    return math.ceil(LEAST_REQUESTS * LOOK_GROWTH ** (look - 1) - 1e-9)


def allowance(look: int, *, steps: int) -> Allowance:
    """What one look may spend. Summed over all looks, steps and tests it stays under `ERROR_SHARE`."""
    before = _spent(look_size(look - 1)) if look > 1 else 0.0
    part = ERROR_SHARE * (_spent(look_size(look)) - before)
    return Allowance(worse=part / (steps * WORSE_TESTS), good=part)


def _spent(requests: int) -> float:
    return requests / (requests + SPENDING_HALF)


# -- times ----------------------------------------------------------------------------------------------------------------


def compare_times(old: Times, new: Times, *, margin: float, allowed: Allowance) -> Comparison:
    """Compare the 95th percentiles of two sides; `margin` 0.2: the new one may be a fifth slower."""
    counts = _total(old), _total(new)
    figures = _quantile_of_mix(old, new), quantile([one for some in new.values() for one in some], QUANTILE)
    if min(counts) < LEAST_REQUESTS:
        return Comparison(Verdict.UNDECIDED, *figures, *counts)
    stretched = {name: [one * (1 + margin) for one in some] for name, some in old.items()}
    more, fewer = _tail(stretched, new)
    slower = _rank_sum(stretched, new)
    p_worse = min(more, slower)
    verdict = Verdict.UNDECIDED
    if p_worse < allowed.worse:
        verdict = Verdict.WORSE
    elif fewer < allowed.good:
        verdict = Verdict.BETTER_OR_EQUAL
    return Comparison(verdict, *figures, *counts, p_worse=p_worse, p_good=fewer)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all don't exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _total(side: Times) -> int:
    return sum(len(some) for some in side.values())


def _quantile_of_mix(old: Times, new: Times) -> float | None:
    """The old side's percentile as if its strata were mixed as the new side's are: the two figures can be held together."""
    total = _total(new)
    if not total:
        return quantile([one for some in old.values() for one in some], QUANTILE)
    weighted = [(one, len(new.get(name, ())) / total / len(some)) for name, some in old.items() if some for one in some]
    whole = sum(weight for _one, weight in weighted)
    if not whole:
        return None
    reached = 0.0
    for one, weight in sorted(weighted):
        reached += weight
        if reached >= QUANTILE * whole - 1e-12:
            return one
    return max(one for one, _weight in weighted)


def _tail(old: Times, new: Times) -> tuple[float, float]:
    """Chance of at least, and of at most, so many new ones among the slowest twentieth, were both sides alike."""
    counts: dict[int, float] = {0: 1.0}
    seen = 0
    for name in old.keys() & new.keys():
        ours, theirs = new[name], old[name]
        if not ours or not theirs:
            continue
        pooled = sorted([*ours, *theirs])
        wanted = max(1, math.ceil((1 - QUANTILE) * len(pooled)))
        threshold = pooled[len(pooled) - wanted - 1]
        if len(pooled) - bisect_right(pooled, threshold) < wanted / 2:
            # Many are equally slow: all of them are the slowest ones.
            threshold = math.nextafter(threshold, -math.inf)
        slow_new = sum(one > threshold for one in ours)
        slow = slow_new + sum(one > threshold for one in theirs)
        seen += slow_new
        counts = _joined(counts, _hypergeometric(slow, len(ours), len(pooled)))
    more = sum(chance for count, chance in counts.items() if count >= seen)
    fewer = sum(chance for count, chance in counts.items() if count <= seen)
    return min(1.0, more), min(1.0, fewer)


def _joined(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """Distribution of a sum."""
    found: dict[int, float] = {}
    for first, chance in one.items():
        for second, likewise in other.items():
            found[first + second] = found.get(first + second, 0.0) + chance * likewise
    return found


def _hypergeometric(drawn: int, marked: int, total: int) -> dict[int, float]:
    """Chances of the number of marked ones among `drawn` of `total`."""
    whole = _log_choose(total, drawn)
    return {
        count: math.exp(_log_choose(marked, count) + _log_choose(total - marked, drawn - count) - whole)
        for count in range(max(0, drawn - total + marked), min(drawn, marked) + 1)
    }


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _rank_sum(old: Times, new: Times) -> float:
    """Chance of ranks as high as the new side's, were both sides alike (van Elteren: strata weighed by their size)."""
    lead = variance = 0.0
    for name in old.keys() & new.keys():
        ours, theirs = new[name], sorted(old[name])
        if not ours or not theirs:
            continue
        size = len(ours) + len(theirs)
        # Ties count as half, by looking from just below and from just above.
        over = sum(bisect_right(theirs, one) + bisect_right(theirs, math.nextafter(one, -math.inf)) for one in ours) / 2
        weight = 1 / (size + 1)
        lead += weight * (over - len(ours) * len(theirs) / 2)
        variance += weight**2 * len(ours) * len(theirs) * (size + 1) / 12
    return _normal_tail(lead / math.sqrt(variance)) if variance else 1.0


def _normal_tail(score: float) -> float:
    return math.erfc(score / math.sqrt(2)) / 2


# -- shares ---------------------------------------------------------------------------------------------------------------


def compare_shares(old: Counts, new: Counts, *, margin: float, allowed: Allowance) -> Comparison:
    """Compare the share of bad ones; `margin` 0.01: the new side may have one more in a hundred."""
    old_total, new_total = (sum(total for _bad, total in side.values()) for side in (old, new))
    ours = sum(bad for bad, _total in new.values()) / new_total if new_total else None
    mix = {name: total / new_total for name, (_bad, total) in new.items() if total} if new_total else {}
    theirs = _mixed(old, mix, 0.5)[0] if _is_covered(old, mix) else None
    if ours is None or theirs is None or min(old_total, new_total) < LEAST_REQUESTS:
        return Comparison(Verdict.UNDECIDED, theirs, ours, old_total, new_total)
    bad = sum(count for count, _total in new.values())
    verdict = Verdict.UNDECIDED
    _share, low, high = _mixed(old, mix, allowed.worse)
    if ours - theirs - math.hypot(ours - _lower(bad, new_total, allowed.worse), high - theirs) > margin:
        verdict = Verdict.WORSE
    else:
        _share, low, high = _mixed(old, mix, allowed.good)
        if ours - theirs + math.hypot(_upper(bad, new_total, allowed.good) - ours, theirs - low) < margin:
            verdict = Verdict.BETTER_OR_EQUAL
    return Comparison(verdict, theirs, ours, old_total, new_total)


def _is_covered(old: Counts, mix: Mapping[str, float]) -> bool:
    return bool(mix) and all(old.get(name, (0, 0))[1] for name in mix)


def _mixed(old: Counts, mix: Mapping[str, float], risk: float) -> tuple[float, float, float]:
    """The old side's share, and its bounds, as if its strata were mixed as the new side's are."""
    share = below = above = 0.0
    for name, weight in mix.items():
        bad, total = old[name]
        own = bad / total
        share += weight * own
        below += (weight * (own - _lower(bad, total, risk))) ** 2
        above += (weight * (_upper(bad, total, risk) - own)) ** 2
    return share, share - math.sqrt(below), share + math.sqrt(above)


def _upper(bad: int, total: int, risk: float) -> float:
    """The share that so few bad ones exclude (Clopper and Pearson): a larger one would show no more with chance `risk`."""
    return 1 - _lower(total - bad, total, risk)


@lru_cache(maxsize=4096)
def _lower(bad: int, total: int, risk: float) -> float:
    """The share that so many bad ones exclude: a smaller one would show no fewer with chance `risk`."""
    if bad == 0:
        return 0.0
    if bad == total:
        return float(risk ** (1 / total))
    low, high = 0.0, bad / total
    for _round in range(40):
        middle = (low + high) / 2
        if _at_least(bad, total, middle) < risk:
            low = middle
        else:
            high = middle
    return low


def _at_least(count: int, total: int, share: float) -> float:
    """Chance of at least `count` of `total` at a share: summed from the shorter end."""
    if share <= 0:
        return 0.0
    if count <= total * share:
        return 1 - _sum(0, count - 1, total, share)
    return _sum(count, total, total, share)


def _sum(first: int, last: int, total: int, share: float) -> float:
    """Chances of `first` to `last` of `total`, from the end that is likelier, until nothing is added any more."""
    odds = math.log(share) - math.log1p(-share)
    rising = first > total * share
    numbers = range(first, last + 1) if rising else range(last, first - 1, -1)
    whole = 0.0
    for count in numbers:
        chance = math.exp(_log_choose(total, count) + count * odds + total * math.log1p(-share))
        whole += chance
        if chance < whole * 1e-12:
            break
    return whole


# -- all of it ------------------------------------------------------------------------------------------------------------


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Worse if one measure is; better or equal only if all are."""
    if Verdict.WORSE in verdicts:
        return Verdict.WORSE
    return Verdict.BETTER_OR_EQUAL if all(one is Verdict.BETTER_OR_EQUAL for one in verdicts) else Verdict.UNDECIDED
