# SPDX-License-Identifier: Apache-2.0
"""Arguments for operator samples: special values of each data type, seeded random arrays, tables of
cases.

random_sample([(3, 4), (5, 4)], DenseAttrs(units=5))
exact_samples_from_rows(ReverseAttrs, "axis", (((2, 3), 1), ((4,), 0)))  # shape of the data, value of the attribute
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import NO_ATTRS, Attrs, DType, frozen
from aotc.relay.op.opdef import Accuracy, Array, Sample, Samples


@frozen
class DTypeKind:
    """A class of element types: a predicate of supported dtypes, and the dtypes used in samples."""

    accepts: Callable[[DType], bool]
    examples: tuple[str, ...]


_INTEGER_SAMPLE_DTYPES: Final = ("int8", "int32", "int64", "uint8", "uint32")
_FLOAT_SAMPLE_DTYPES: Final = ("float32", "float64", "float16", "bfloat16")
FLOAT_KIND: Final = DTypeKind(lambda d: d.is_float, _FLOAT_SAMPLE_DTYPES)
INTEGER_KIND: Final = DTypeKind(lambda d: d.is_integer, _INTEGER_SAMPLE_DTYPES)
NUMBER_KIND: Final = DTypeKind(lambda d: not d.is_bool, _FLOAT_SAMPLE_DTYPES + _INTEGER_SAMPLE_DTYPES)
NUMBER_WITH_ZERO_KIND: Final = DTypeKind(lambda d: not d.is_bool and d.can_represent_zero, NUMBER_KIND.examples)
INTEGER_OR_BOOL_KIND: Final = DTypeKind(lambda d: not d.is_float, (*_INTEGER_SAMPLE_DTYPES, "bool"))
BOOL_KIND: Final = DTypeKind(lambda d: d.is_bool, ("bool",))
ANY_DTYPE_KIND: Final = DTypeKind(lambda d: True, (*_FLOAT_SAMPLE_DTYPES, *_INTEGER_SAMPLE_DTYPES, "bool"))

_SPECIAL_FLOATS: Final = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    89.0,
    -104.0,
    3e38,
    1e-3,
    np.nan,
    np.inf,
    -np.inf,
)
_SPECIAL_INTEGERS: Final = (0, 1, 2, 3, -1, -2, 7, 100)


def sample_accuracy(dtype: str, exact: bool = False) -> Accuracy:
    """Return the tolerance of results computed in `dtype`: no difference for integers or if `exact`
    is True.
    """
    dt = DType(dtype)
    if exact or not dt.is_float:
        return Accuracy.EXACT
    return Accuracy.LOOSE if dt.is_narrow_float else Accuracy.ROUNDING


def special_values(dtype: str) -> Array:
    """Return the edge-case values of a data type: zeros, halves, limits, infinities, NaN."""
    dt = DType(dtype)
    if dt.is_float:
        with np.errstate(all="ignore"):
            return np.array(_SPECIAL_FLOATS, np.float32).astype(dt.numpy)
    if dt.is_bool:
        return np.array([True, False, True])
    return np.array([*(e for e in _SPECIAL_INTEGERS if e >= dt.min), dt.min, dt.max], dt.numpy)


def random_array(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    """Return a seeded random array: normally distributed floats, integers from -100 (unsigned: 0)
    to 99, or bools.
    """
    rng, dt = np.random.default_rng(seed), DType(dtype)
    if dt.is_bool:
        return random_array(shape, "int8", seed) > 0
    if dt.is_integer:
        return rng.integers(-100 if dt.is_signed else 0, 100, shape).astype(dt.numpy)
    return rng.standard_normal(tuple(shape)).astype(dt.numpy)


def random_sample(shapes: Sequence[Sequence[int]], attributes: Attrs = NO_ATTRS, dtype: str = "float32") -> Sample:
    """Return a sample with one random array per shape; the tolerance depends on `dtype`."""
    args = tuple(random_array(shape, dtype, seed) for seed, shape in enumerate(shapes))
    return Sample(args=args, attrs=attributes, accuracy=sample_accuracy(dtype))


def random_samples_from_rows(attrs_class: type[Attrs], rows: Sequence[Any]) -> Callable[[], Samples]:
    """Return a function that yields one random sample per row (argument shapes, attributes[,
    dtype]).

    The default dtype is float32.
    """
    return lambda: (random_sample(shapes, attrs_class(**given), *dtype) for shapes, given, *dtype in rows)


def exact_sample(attributes: Attrs, *args: Array | tuple[Array, ...]) -> Sample:
    """Return a sample whose results must agree bit for bit."""
    return Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)


def random_argument(shape: Sequence[Any], dtype: str = "float32") -> Array | tuple[Array, ...]:
    """Return a random array of a shape, which may begin with a dtype, or a tuple of arrays for a
    tuple of shapes.
    """
    if shape and isinstance(shape[0], str):
        return random_array(shape[1:], shape[0])
    if shape and isinstance(shape[0], tuple):
        return tuple(random_array(element_shape, dtype, seed) for seed, element_shape in enumerate(shape))
    return random_array(shape, dtype)


def exact_samples_from_rows(
    attrs_class: type[Attrs],
    attribute_names: str,
    rows: Sequence[Sequence[Any]],
    dtypes: Sequence[str] = ANY_DTYPE_KIND.examples,
) -> Callable[[], Samples]:
    """Return a function that yields one exact sample per row: shape of the data, then values of
    `attribute_names`.

    The sample of the first row is repeated for each of `dtypes`.
    """

    def yield_exact_samples() -> Samples:
        for k, (shape, *values) in enumerate(rows):
            attributes = attrs_class(**dict(zip(attribute_names.split(), values, strict=False)))
            for dtype in dtypes if k == 0 else ("float32",):
                yield exact_sample(attributes, random_argument(shape, dtype))

    return yield_exact_samples
