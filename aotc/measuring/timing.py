# SPDX-License-Identifier: Apache-2.0
"""Time calls of a function, limit repetitions by count and time, and summarize the times.

times = [milliseconds_per_call(binding.run) for _ in repeat_for_seconds(3, seconds=0.1)]
min_and_median(times)["median"]
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence


def milliseconds_per_call(function: Callable[[], object], calls: int = 1) -> float:
    """Return the time of a call in milliseconds, averaged over `calls` consecutive calls."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e3 * (time.perf_counter() - start) / calls


def repeat_for_seconds(min_count: int, seconds: float, max_count: int = sys.maxsize) -> Iterator[None]:
    """Yield at least `min_count` times, then until `seconds` have passed, but at most `max_count`
    times: limits a measuring loop.
    """
    end = time.perf_counter() + seconds
    for k in range(max_count):
        if k >= min_count and time.perf_counter() >= end:
            break
        yield


def format_thread_count(count: int) -> str:
    """Return "1 thread", or "2 threads" for other counts."""
    return f"{count} thread{'' if count == 1 else 's'}"


def min_and_median(times: Sequence[float]) -> dict[str, float]:
    """Return {"min": minimum, "median": median} of measured times."""
    return {"min": min(times), "median": statistics.median(times)}
