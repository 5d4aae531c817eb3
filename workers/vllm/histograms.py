"""Prometheus histograms as values: windows of them, sums of them, and quantiles.

Percentiles are never averaged: the buckets of several instances or moments are added, then the quantile is taken.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets: `counts[i]` observations were at most `bounds[i]`; the last bound is infinity.

    `total` is the sum of all observations, in the metric's unit (seconds for latencies).
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        """Mean of the observations; None if there are none."""
        return self.total / self.count if self.count > 0 else None

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """What was observed after `earlier`; all of it if the counters restarted or the buckets changed."""
        if earlier is None or earlier.bounds != self.bounds:
            return self
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        if any(count < 0 for count in counts):
            return self
        return Histogram(self.bounds, counts, max(0.0, self.total - earlier.total))

    def quantile(self, share: float) -> float | None:
        """The value that `share` (0 to 1) of the observations don't exceed; None without observations.

        Interpolates inside a bucket like Prometheus' `histogram_quantile`: the first bucket begins at 0, and a quantile in
        the last, endless bucket is its lower bound, which then is a lower bound of the answer too.
        """
        if not self.count > 0 or not 0 <= share <= 1:
            return None
        rank = share * self.count
        # Buckets merged from different sources can wobble by rounding; a cumulative count never really falls.
        index = min(bisect_left(self.counts, rank), len(self.bounds) - 1)
        upper, lower = self.bounds[index], self.bounds[index - 1] if index else min(0.0, self.bounds[0])
        if math.isinf(upper):
            return lower if index else None
        below = self.counts[index - 1] if index else 0.0
        inside = self.counts[index] - below
        return lower + (upper - lower) * ((rank - below) / inside if inside > 0 else 1.0)


def added(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """The sum of histograms; None if there is none.

    Where engine versions have different buckets, only the bounds that all share are kept: at those the cumulative counts
    can be added exactly, between them they can't.
    """
    present = [histogram for histogram in histograms if histogram is not None and histogram.bounds]
    if not present:
        return None
    if len(present) == 1:
        return present[0]
    if all(histogram.bounds == present[0].bounds for histogram in present):
        columns = zip(*(histogram.counts for histogram in present), strict=True)
        return Histogram(present[0].bounds, tuple(map(sum, columns)), sum(histogram.total for histogram in present))
    shared = set(present[0].bounds).intersection(*(histogram.bounds for histogram in present[1:]))
    bounds = tuple(bound for bound in present[0].bounds if bound in shared)
    counts = [0.0] * len(bounds)
    for histogram in present:
        at_bound = dict(zip(histogram.bounds, histogram.counts, strict=True))
        for index, bound in enumerate(bounds):
            counts[index] += at_bound[bound]
    return Histogram(bounds, tuple(counts), sum(histogram.total for histogram in present))
