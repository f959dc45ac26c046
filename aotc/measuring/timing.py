# SPDX-License-Identifier: Apache-2.0
"""Time calls of a function, limit repetitions by count and time, and summarize the times.

times = [milliseconds(binding.run) for _ in turns(3, seconds=0.1)]
summary(times)["median"]
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence


def milliseconds(function: Callable[[], object], calls: int = 1) -> float:
    """Return the time of a call in milliseconds, averaged over `calls` consecutive calls."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e3 * (time.perf_counter() - start) / calls


def turns(least: int, seconds: float, most: int = sys.maxsize) -> Iterator[None]:
    """Yield at least `least` times, then until `seconds` have passed, but at most `most` times:
    limits a measuring loop.
    """
    end = time.perf_counter() + seconds
    for k in range(most):
        if k >= least and time.perf_counter() >= end:
            break
        yield


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return {"min": minimum, "median": median} of measured times."""
    return {"min": min(times), "median": statistics.median(times)}
