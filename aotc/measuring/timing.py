# SPDX-License-Identifier: Apache-2.0
"""How long calls take, and how often they are measured.

times = [milliseconds(binding.run) for _ in turns(3, seconds=0.1)]
summary(times)["median"]
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence


def milliseconds(function: Callable[[], object], calls: int = 1) -> float:
    """How long a call takes, on average of so many in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e3 * (time.perf_counter() - start) / calls


def turns(least: int, seconds: float, most: int = sys.maxsize) -> Iterator[None]:
    """`least` times, then more until so many seconds are over, `most` times at most."""
    end = time.perf_counter() + seconds
    for k in range(most):
        if k >= least and time.perf_counter() >= end:
            break
        yield


def summary(times: Sequence[float]) -> dict[str, float]:
    """What is told of the times of many runs: "min" and "median"."""
    return {"min": min(times), "median": statistics.median(times)}
