# SPDX-License-Identifier: Apache-2.0
"""Random bits of the counter-based generators Philox4x32-10 and Threefry2x32-20 of Salmon et al., "Parallel Random
Numbers: As Easy as 1, 2, 3" (2011), on numpy arrays or on expressions of the graph IR.

words = philox_4x32((np.uint64(7), np.uint64(0)), (counts, zeros, zeros, zeros))       # 4 arrays like `counts`

A word of 32 bits is an element of type uint64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from aotc.ir import Array
from aotc.relay.frontend import op_calls as g
from aotc.relay.graph_api import Expr

#: An array, or an expression, of uint64.
Words = TypeVar("Words", Array, Expr)

_LOW: Final = 0xFFFFFFFF
_PHILOX_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS: Final = 10
_THREEFRY_PARITY: Final = 0x1BD11BDA
_THREEFRY_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_GROUPS: Final = 5


def _combine(operator: str, a: Words, b: Words | int) -> Words:
    if isinstance(a, Expr):
        return g.call_binary_op(operator, a, g.constant(b, "uint64") if isinstance(b, int) else b)
    other = np.uint64(b) if isinstance(b, int) else b
    with np.errstate(over="ignore"):
        result: Array = getattr(np, operator)(a, other)
    return result


def low_word(x: Words) -> Words:
    """Return the 32 low bits of integers of 64 bits."""
    return _combine("bitwise_and", x, _LOW)


def high_word(x: Words) -> Words:
    """Return the 32 high bits of integers of 64 bits."""
    return _combine("right_shift", x, 32)


def joined_words(low: Words, high: Words) -> Words:
    """Return integers of 64 bits from two words each."""
    return _combine("bitwise_or", low, _combine("left_shift", high, 32))


def _sum(a: Words, b: Words | int) -> Words:
    return low_word(_combine("add", a, b))


def philox_4x32(key: Sequence[Words], counter: Sequence[Words]) -> tuple[Words, ...]:
    """Return the 4 words of the blocks with a counter of 4 words and a key of 2 words, which broadcast."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(_PHILOX_ROUNDS):
        left, right = _combine("multiply", a, _PHILOX_FACTORS[0]), _combine("multiply", c, _PHILOX_FACTORS[1])
        a = _combine("bitwise_xor", _combine("bitwise_xor", high_word(right), b), first)
        c = _combine("bitwise_xor", _combine("bitwise_xor", high_word(left), d), second)
        b, d = low_word(right), low_word(left)
        first, second = _sum(first, _PHILOX_KEY_STEPS[0]), _sum(second, _PHILOX_KEY_STEPS[1])
    return a, b, c, d


def threefry_2x32(key: Sequence[Words], counter: Sequence[Words]) -> tuple[Words, ...]:
    """Return the 2 words of the blocks with a counter of 2 words and a key of 2 words, which broadcast."""
    parity = _combine("bitwise_xor", _combine("bitwise_xor", key[0], key[1]), _THREEFRY_PARITY)
    keys: list[Words] = list(key)
    keys.append(parity)
    a, b = _sum(counter[0], keys[0]), _sum(counter[1], keys[1])
    for group in range(_THREEFRY_GROUPS):
        for count in _THREEFRY_ROTATIONS[group % 2]:
            a = _sum(a, b)
            turned = _combine("bitwise_or", _combine("left_shift", b, count), _combine("right_shift", b, 32 - count))
            b = _combine("bitwise_xor", low_word(turned), a)
        a = _sum(a, keys[(group + 1) % 3])
        b = _sum(_sum(b, keys[(group + 2) % 3]), group + 1)
    return a, b


def philox_block_words(seed: int, stream: int, count: int) -> Array:
    """Return `count` words of the blocks 0, 1, ... of a stream, as TensorFlow and LiteRT draw them.

    seed      the key, 64 bits
    stream    the high half of the counter, 64 bits
    """
    key = [np.array(v, np.uint64) for v in (seed & _LOW, seed >> 32)]
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    high = [np.full_like(blocks, v) for v in (stream & _LOW, stream >> 32)]
    words = philox_4x32(key, (low_word(blocks), high_word(blocks), *high))
    return np.stack(words, -1).reshape(-1)[:count]
