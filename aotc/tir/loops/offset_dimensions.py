# SPDX-License-Identifier: Apache-2.0
"""Write a set of constant offsets, such as those of the statements of an unrolled tile, as a product
of a few dimensions.

Input: intervals of elements. Output: a first element, and dimensions (distance, count), so that the
elements are the first one plus n * distance for each dimension, 0 <= n < count:

    0..3, 100..103, 200..203       # 0, with the dimensions (1, 4) and (100, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

#: Distance in elements, and number of elements.
OffsetDimension: TypeAlias = "tuple[int, int]"


def split_offsets_into_dimensions(
    intervals: Iterable[tuple[int, int]], *, merges_offsets: bool
) -> list[tuple[int, tuple[OffsetDimension, ...]]]:
    """Return intervals of elements as products of dimensions, one product if the intervals are
    periodic and else one for each run of adjacent intervals.

    intervals         the first element and the number of elements of each interval
    merges_offsets    return one dimension, which includes the elements between the intervals
    """
    runs = _merge_adjacent_intervals(intervals)
    if merges_offsets:
        runs = [(runs[0][0], runs[-1][1])]
    lengths = {end - first for first, end in runs}
    dimensions = _periodic_dimensions([first for first, _ in runs]) if len(lengths) == 1 else None
    if dimensions is not None:
        return [(runs[0][0], (*_dimension_of_run(*runs[0]), *dimensions))]
    return [(first, _dimension_of_run(first, end)) for first, end in runs]


def _dimension_of_run(first: int, end: int) -> tuple[OffsetDimension, ...]:
    """Return the dimension of the elements `first` to `end` - 1; none for a single element."""
    return ((1, end - first),) if end - first > 1 else ()


def _merge_adjacent_intervals(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the runs of adjacent or overlapping intervals, each as its first element and its end."""
    runs: list[tuple[int, int]] = []
    for first, count in sorted(intervals):
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], first + count)
        else:
            runs.append((first, first + count))
    return runs


def _periodic_dimensions(starts: Sequence[int]) -> tuple[OffsetDimension, ...] | None:
    """Return the dimensions of increasing numbers, without the first number; None if they are not
    periodic.
    """
    if len(starts) == 1:
        return ()
    for inner_count in range(1, len(starts) // 2 + 1):
        period = starts[inner_count] - starts[0]
        count, rest = divmod(len(starts), inner_count)
        if rest == 0 and all(b - a == period for a, b in zip(starts, starts[inner_count:], strict=False)):
            inner = _periodic_dimensions(starts[:inner_count])
            return None if inner is None else (*inner, (period, count))
    return None
