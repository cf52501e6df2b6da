"""Observations of a batch, at the price of one."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from prometheus_client import Histogram


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """Observe each of the values.

    A batch falls into few buckets, and each bucket's lock is taken once: one by one, observing cost a worker as
    much as decoding its tasks.
    """
    if not values:
        return
    bounds = histogram._upper_bounds
    histogram._sum.inc(sum(values))
    for place, count in Counter([bisect_left(bounds, value) for value in values]).items():
        histogram._buckets[place].inc(count)
