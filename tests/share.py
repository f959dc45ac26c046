# SPDX-License-Identifier: Apache-2.0
"""A share of a test's cases in `make test`, all of them in `make test-all`.

@pytest.mark.parametrize("name", share(NAMES, 4))      # the others are marked slow

AOTC_TEST_SEED chooses another share than that of seed 0.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def share(cases: Iterable[Any], count: int, *, always: Collection[Any] = ()) -> list[Any]:
    """Parameters of a test: `count` cases drawn by seed, and those that ever failed; the others are marked slow.

    A case that is a tuple gives several parameters.
    """
    cases = list(cases)
    drawn = random.Random(int(os.environ.get("AOTC_TEST_SEED", "0"))).sample(range(len(cases)), count)
    taken = {*drawn, *(k for k, case in enumerate(cases) if case in always)}
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*v, marks=() if k in taken else pytest.mark.slow) for k, v in enumerate(values)]
