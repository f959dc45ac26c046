# SPDX-License-Identifier: Apache-2.0
"""Models and data of the quantization tests.

sets = digits(20)                      # [{"image": array}, ...]
"""

from __future__ import annotations

import numpy as np

from aotc.checking.input_generation import Arrays
from tests.cli.invoke import DIGITS

IMAGES = np.fromfile(DIGITS.parent / "digits_test.bin", np.uint8).reshape(-1, 65)[:, :64]


def digits(count: int) -> list[Arrays]:
    """Sets of inputs of the digits network."""
    return [{"image": row.reshape(1, 1, 8, 8).astype(np.float32) / 16} for row in IMAGES[:count]]
