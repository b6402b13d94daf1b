"""Figures of many values: percentiles, and averages over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Spread:
    """How values spread: their number, mean, percentiles and maximum."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the ordered values lie, interpolated between two neighbours.

    The first value is at share 0, the last at 1 (NumPy's "linear"). Raises ValueError without values.
    """
    if not ordered:
        raise ValueError("a percentile of no values was asked for")
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of `values`; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def over_time(times: NDArray[np.int64], values: NDArray[np.int64], end: int, buckets: int) -> list[float]:
    """Return the time-weighted mean of a step function in each of `buckets` equal stretches up to `end`.

    The value is `values[i]` from `times[i]` on, until the next time, and 0 before the first. Of values that
    begin at the same time the last one counts. Raises ValueError for times that fall or lie past `end`.
    """
    if len(times) and (np.any(np.diff(times) < 0) or times[-1] > end):
        raise ValueError("the times of a step function must not fall, nor lie past its end")
    if end <= 0:
        return [float(values[-1]) if len(values) else 0.0] * buckets
    bounds = np.append(times, end).astype(np.float64)
    area = np.concatenate(([0.0], np.cumsum(np.diff(bounds) * values)))
    edges = np.linspace(0.0, float(end), buckets + 1)
    if not len(times):
        return [0.0] * buckets
    at_edges = np.interp(edges, bounds, area)
    return [float(mean) for mean in np.diff(at_edges) / (end / buckets)]


def counts_over_time(times: Sequence[int], end: int, buckets: int) -> list[int]:
    """Return how many of `times` lie in each of `buckets` equal stretches up to `end`, `end` included."""
    counts = [0] * buckets
    for time in times:
        counts[min(time * buckets // end, buckets - 1) if end > 0 else 0] += 1
    return counts


def weighted_percentile(values: NDArray[np.int64], weights: NDArray[np.int64], share: float) -> int:
    """Return the least value such that values up to it have at least `share` of all weight.

    Raises ValueError when the weights are all zero, or there are none.
    """
    total = int(weights.sum()) if len(weights) else 0
    if total <= 0:
        raise ValueError("a percentile of values without weight was asked for")
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return int(values[order[int(np.searchsorted(reached, share * total, side="left"))]])
