# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of random numbers. Those of RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL and MULTINOMIAL are drawn when
the model is compiled: they are constants of the program, the numbers that LiteRT draws in the first run.

The generator is Philox4x32-10, whose key is the option `seed`, and whose counter has the option `seed2` in its high
half. LiteRT takes the low 32 bits of both, as signed integers. If both are 0, LiteRT draws them from the system. Here
the key is then the number of operators without seeds before this one, and the high half is 1, or 2 + seed with the
option `seed` of the compilation.

OPS["RANDOM_UNIFORM"]([2, 3], seed=7, seed2=5, node=node)    # a constant
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, repeat
from typing import Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.counter_based_random_bits import (
    high_word,
    joined_words,
    low_word,
    philox_4x32,
    philox_block_words,
    threefry_2x32,
)
from aotc.relay.frontend.tflite.node import KnownInts, Table, TfliteNode

_LEAST_UNIFORM: Final = np.float32(1e-7)
_BITS_OF_ONE: Final = np.uint32(0x3F800000)
_FRACTION: Final = 0x7FFFFF
#: Algorithms of STABLEHLO_RNG_BIT_GENERATOR, by their codes in the schema.
_ALGORITHMS: Final = ("PHILOX", "PHILOX", "THREEFRY")


def unseeded_streams(seed: int | None = None) -> Iterator[tuple[int, int]]:
    """Return the keys and the streams of operators without seeds, one after the other.

    seed    the option of the compilation; None if it is not given
    """
    return zip(count(), repeat(1 if seed is None else 2 + seed), strict=False)


def _random_words(node: TfliteNode, seed: int, seed2: int, size: int) -> Array:
    key, stream = (int(np.int64(v).astype(np.int32)) % (1 << 64) for v in (seed, seed2))
    if not key and not stream:
        key, stream = node.control.next_unseeded_stream()
    return philox_block_words(key, stream, size)


def _uniform_numbers(words: Array) -> Array:
    """Return float32 numbers from 0 to below 1 that have the low 23 bits of words as their fractions."""
    bits = (words & np.uint64(_FRACTION)).astype(np.uint32) | _BITS_OF_ONE
    return np.asarray(bits.view(np.float32) - np.float32(1))


def _checked_count(node: TfliteNode, shape: list[int]) -> int:
    sizes = g.checked_shape(shape, node.first_output_declaration.dtype, f"the result of {node.op.name}")
    g.check_materialization_cost(sizes, "float64", f"the random numbers of {node.op.name}")
    is_float = node.first_output_declaration.dtype == "float32"
    require("tflite-dtype", is_float, f"{node.op.name} of {node.first_output_declaration.dtype} is not supported")
    return math.prod(sizes)


def _convert_random_uniform_node(shape: KnownInts, *, seed: int = 0, seed2: int = 0, node: TfliteNode) -> Expr:
    size = _checked_count(node, shape)
    return g.constant(_uniform_numbers(_random_words(node, seed, seed2, size)).reshape(shape))


def _convert_random_normal_node(shape: KnownInts, *, seed: int = 0, seed2: int = 0, node: TfliteNode) -> Expr:
    """Convert RANDOM_STANDARD_NORMAL: pairs of numbers by Box and Muller's method."""
    size = _checked_count(node, shape)
    first, second = _uniform_numbers(_random_words(node, seed, seed2, size + size % 2)).reshape(-1, 2).T
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(first, _LEAST_UNIFORM)))
    angle = np.float32(2 * np.pi) * second
    pairs = np.stack([np.sin(angle) * radius, np.cos(angle) * radius], -1)
    return g.constant(pairs.reshape(-1)[:size].reshape(shape).astype(np.float32))


def _convert_multinomial_node(
    logits: Expr, samples: KnownInts, *, seed: int = 0, seed2: int = 0, node: TfliteNode
) -> Expr:
    """Convert MULTINOMIAL: for each row of logarithms of probabilities, classes that are drawn with these."""
    text = f"MULTINOMIAL draws {samples} classes from rows of shape {g.dims(logits)}"
    fits = g.rank(logits) == 2 and 0 not in g.shape(logits) and len(samples) == 1 and samples[0] > 0
    require("graph-shape", fits, text)
    (batch, classes), drawn = g.shape(logits), samples[0]
    g.check_materialization_cost((batch, drawn, classes), "float64", "the cumulative probabilities of MULTINOMIAL")
    words = _random_words(node, seed, seed2, 2 * batch * drawn).reshape(-1, 2).T
    bits = joined_words(words[1], words[0] & np.uint64((1 << 20) - 1)) | np.uint64(1023 << 52)
    numbers = g.constant((bits.view(np.float64) - 1.0).reshape(batch, drawn, 1))
    wide = g.cast(logits, "float64")
    largest = g.call_reduction("max", wide, [1], True)
    sums = g.call_op("cumsum", g.call_op("exp", g.sub(wide, largest)), axis=1, dtype="float64")
    total = g.strided_slice(sums, [classes - 1], [classes], [1])
    below = g.less_equal(g.unsqueeze(sums, [1]), g.mul(numbers, g.unsqueeze(total, [1])))
    index = g.minimum(g.count_of_flags(below), classes - 1)
    return g.cast(index, str(node.first_output_declaration.dtype))


def _convert_rng_bit_generator_node(state: Expr, *, algorithm: int = 0, node: TfliteNode) -> list[Expr]:
    """Convert STABLEHLO_RNG_BIT_GENERATOR: the state after the run, and bits. The state is that of LiteRT: a key of
    64 bits, and a counter, of which the low 64 bits count.
    """
    require("tflite-options", 0 <= algorithm < len(_ALGORITHMS), f"the algorithm {algorithm} is not known")
    name, lengths = _ALGORITHMS[algorithm], (2, 3) if _ALGORITHMS[algorithm] == "PHILOX" else (2,)
    fits = g.dtype(state) == "uint64" and g.rank(state) == 1 and g.dim(state, 0) in lengths and len(node.results) == 2
    text = f"{node.op.name} by {name} takes a state of {' or '.join(map(str, lengths))} elements of uint64"
    require("graph-shape", fits, f"{text}, not {g.dtype(state)}{g.dims(state)}")
    result = node.results[1]
    size, width = math.prod(result.shape), result.dtype.bits // 32
    known = str(result.dtype) in ("int32", "uint32", "int64", "uint64")
    require("tflite-dtype", known and size > 0, f"{node.op.name} of {result.dtype}{result.shape} is not supported")
    words = 4 if name == "PHILOX" else 2
    blocks = -(-size * width // words)
    g.check_materialization_cost((blocks, words), "uint64", f"the bits of {node.op.name}")
    key, low, *more = g.split(state, [1] * g.dim(state, 0), 0)
    numbers = g.add(low, g.iota(blocks, "uint64"))
    halves = (low_word(key), high_word(key))
    counter: tuple[Expr, ...] = (low_word(numbers), high_word(numbers))
    if name == "PHILOX":
        counter = (*counter, low_word(more[0]), high_word(more[0])) if more else (*counter, *halves)
        counter = tuple(g.broadcast_to(x, (blocks,)) for x in counter)
        drawn = list(philox_4x32(halves, counter))
    else:
        drawn = list(threefry_2x32(halves, counter))
    if width == 2:
        drawn = [joined_words(a, b) for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
    bits = g.strided_slice(g.reshape(g.stack(drawn, 1), (-1,)), [0], [size], [0])
    after = g.concat([key, g.add(low, g.constant(blocks, "uint64")), *more], 0)
    return [after, g.cast(g.reshape(bits, result.shape), str(result.dtype))]


OPS: Final[Table] = {
    "MULTINOMIAL": _convert_multinomial_node,
    "RANDOM_STANDARD_NORMAL": _convert_random_normal_node,
    "RANDOM_UNIFORM": _convert_random_uniform_node,
    "STABLEHLO_RNG_BIT_GENERATOR": _convert_rng_bit_generator_node,
}
INTEGERS: Final[frozenset[str]] = frozenset()
MOVES: Final[frozenset[str]] = frozenset()
