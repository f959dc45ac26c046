# SPDX-License-Identifier: Apache-2.0
"""Mutations of bytes and numbers that do not depend on a file format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Generator = np.random.Generator

INTEGERS = (
    0, 1, -1, 2, 3, 4, 5, 7, 8, 13, -2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 255, 256, 1000, 65535, 1 << 20,
    (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, 1e3, 1e-45, 1e-40, 3.4028235e38, -3.4028235e38, 1e30, float("inf"),
    float("-inf"), float("nan"), 16777217.0, 2147483648.0, -9.3e18,
)  # fmt: skip
STRINGS = ("", " ", "x", "a/b", "\n", "ünï", "%s%n", "*/", '"', "x" * 300, "float32", "0", "-1", "\\", "{}", "None")


def pick(rng: Generator, choices: Any) -> Any:
    """One of some choices, as it is."""
    return choices[int(rng.integers(len(choices)))]


def odds(rng: Generator, of: float) -> bool:
    return bool(rng.random() < of)


def integer(rng: Generator, near: int, lowest: int, highest: int) -> int:
    """Near another, or special, within bounds."""
    value = near + pick(rng, (-2, -1, 1, 2)) if odds(rng, 0.4) else pick(rng, INTEGERS)
    return min(max(value, lowest), highest)


def changed_bytes(rng: Generator, data: bytes) -> bytes:
    """Bits flipped, bytes overwritten, parts removed, repeated or moved, the end cut off."""
    made = bytearray(data)
    if not made:
        return bytes(rng.integers(0, 256, 8, np.uint8))
    at, length = int(rng.integers(len(made))), int(rng.geometric(0.1))
    match int(rng.integers(7)):
        case 0:
            made[at] ^= 1 << int(rng.integers(8))
        case 1:
            made[at] = pick(rng, (0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))))
        case 2:
            del made[at : at + length]
        case 3:
            made[at:at] = made[at : at + length]
        case 4:
            del made[at:]
        case 5:
            width = pick(rng, (2, 4, 8))
            made[at : at + width] = (pick(rng, INTEGERS) % (1 << 8 * width)).to_bytes(
                width, pick(rng, ("little", "big"))
            )
        case _:
            other = int(rng.integers(len(made)))
            made[at : at + length] = made[other : other + length]
    return bytes(made)


def shorter(data: bytes) -> Iterator[bytes]:
    """Variants without a part, the larger parts first."""
    size = len(data) // 2
    while size >= max(1, len(data) // 64):
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2
