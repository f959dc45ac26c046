# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of random numbers, which are drawn when the model is compiled: they are constants of the program,
and each run of it uses the same ones.

The generator is Philox4x64-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), which is
numpy's `Philox`: block n of a stream depends on n and on the key of the stream alone. The key of a node is the bits
of its attribute `seed` as float32, or, if it has none, the number of nodes without a seed before it plus 2**64, or plus
2**64 * (2 + seed) with the option `seed` of the compilation. Word n
gives the uniform number (word >> 11) / 2**53; normal numbers are those of Box and Muller from pairs of these.

OPS["RandomNormal"](shape=[2, 3], node=node)    # a constant
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from aotc.ir import Array, DType, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import OnnxNode, OptionalDType, Table, table_by_function_name

_FLOAT = DType("float32")


def keys_of_random_nodes(seed: int | None = None) -> Iterator[int]:
    """Return the keys of the streams of nodes without a seed, one after the other.

    seed    the option of the compilation; None if it is not given
    """
    return count((1 if seed is None else 2 + seed) << 64)


def _uniform_numbers(node: OnnxNode, shape: Sequence[int], per_element: int = 1) -> Array:
    """Return float64 numbers from 0 to below 1 of shape (*shape, per_element) of the stream of a node."""
    g.check_materialization_cost((*shape, per_element), "float64", f"the random numbers of {node.op_type}")
    seed = node.attrs.get("seed")
    key = node.next_random_key() if seed is None else struct.unpack("<I", struct.pack("<f", seed))[0]
    size = int(np.prod(shape, dtype=np.int64)) * per_element
    words = np.random.Philox(key=key).random_raw(size)
    return np.asarray(((words >> np.uint64(11)) * 2.0**-53).reshape(*shape, per_element))


def _normal_numbers(node: OnnxNode, shape: Sequence[int]) -> Array:
    first, second = np.moveaxis(_uniform_numbers(node, shape, 2), -1, 0)
    return np.asarray(np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second))


def _checked_shape(node: OnnxNode, shape: Sequence[int], dtype: DType) -> tuple[int, ...]:
    require("onnx-type", dtype.is_float, f"{node.op_type} of {dtype} is not supported; floating-point types are")
    return g.checked_shape(shape, dtype, f"the result of {node.op_type}")


def _dtype_like(x: Expr, dtype: DType | None) -> DType:
    return dtype or (g.dtype(x) if g.dtype(x).is_float else _FLOAT)


def _random_uniform(*, shape: Any, low: float, high: float, dtype: OptionalDType = None, node: OnnxNode) -> Expr:
    result = dtype or _FLOAT
    numbers = _uniform_numbers(node, _checked_shape(node, shape, result))[..., 0]
    return g.constant((numbers * (high - low) + low).astype(result.numpy))


def _random_normal(*, shape: Any, mean: float, scale: float, dtype: OptionalDType = None, node: OnnxNode) -> Expr:
    result = dtype or _FLOAT
    numbers = _normal_numbers(node, _checked_shape(node, shape, result))
    return g.constant((numbers * scale + mean).astype(result.numpy))


def _random_uniform_like(x: Expr, *, low: float, high: float, dtype: OptionalDType = None, node: OnnxNode) -> Expr:
    return _random_uniform(shape=g.shape(x), low=low, high=high, dtype=_dtype_like(x, dtype), node=node)


def _random_normal_like(x: Expr, *, mean: float, scale: float, dtype: OptionalDType = None, node: OnnxNode) -> Expr:
    return _random_normal(shape=g.shape(x), mean=mean, scale=scale, dtype=_dtype_like(x, dtype), node=node)


def _bernoulli(x: Expr, *, dtype: OptionalDType = None, node: OnnxNode) -> Expr:
    """Convert Bernoulli: each element is 1 with the probability p that the input gives, else 0.

    The standard's text says so, too. Its function body contradicts it: it gives 1 with probability 1 - p.
    """
    exact = g.dtype(x) if g.dtype(x) == "float64" else _FLOAT
    numbers = _uniform_numbers(node, _checked_shape(node, g.shape(x), g.dtype(x)))[..., 0]
    numbers = np.minimum(numbers, 1 - 2.0**-24)  # below 1 as float32, too, for a probability of 1
    return g.cast(g.less(g.constant(numbers.astype(exact.numpy)), g.cast(x, exact)), dtype or g.dtype(x))


def _multinomial(x: Expr, *, sample_size: int, dtype: DType, node: OnnxNode) -> Expr:
    """Convert Multinomial: for each row of logarithms of probabilities, classes drawn with these probabilities; the
    class of a number u is the first one whose cumulative probability is above u.
    """
    text = f"Multinomial takes (batch, classes) and a positive sample_size, got {g.dims(x)} and {sample_size}"
    require("onnx-attribute", g.rank(x) == 2 and sample_size > 0 and 0 not in g.dims(x), text)
    batch, classes = g.shape(x)
    numbers = _uniform_numbers(node, (batch, sample_size))
    wide = x if g.dtype(x) == "float64" else g.cast(x, "float32")
    exact = g.dtype(wide)
    sums = g.call_op("cumsum", g.call_op("nn.softmax", wide, axis=1), axis=1, dtype=str(exact))
    below = g.less_equal(g.unsqueeze(sums, [1]), g.constant(numbers.astype(exact.numpy)))
    index = g.count_of_flags(below)
    return g.cast(g.minimum(index, classes - 1), dtype)


OPS: Table = table_by_function_name(
    _bernoulli, _multinomial, _random_normal, _random_normal_like, _random_uniform, _random_uniform_like
)
