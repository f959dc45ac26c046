# SPDX-License-Identifier: Apache-2.0
"""Seeded random arguments for the samples of operators.

random_sample([(3, 4), (5, 4)], DenseAttrs(units=5))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir import NO_ATTRS, Attrs, DType
from aotc.relay.op.opdef import Accuracy, Array, Sample


def random_array(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    """Normally distributed floats; integers from -100 (unsigned: 0) to 99."""
    rng, dt = np.random.default_rng(seed), DType(dtype)
    if dt.is_integer:
        return rng.integers(-100 if dt.is_signed else 0, 100, shape).astype(dt.numpy)
    return rng.standard_normal(tuple(shape)).astype(dt.numpy)


def random_sample(shapes: Sequence[Sequence[int]], attributes: Attrs = NO_ATTRS, dtype: str = "float32") -> Sample:
    """A sample with one random array per shape: integers agree exactly, narrow floats loosely."""
    dt = DType(dtype)
    accuracy = Accuracy.EXACT if dt.is_integer else Accuracy.LOOSE if dt.is_narrow_float else Accuracy.ROUNDING
    args = tuple(random_array(shape, dtype, seed) for seed, shape in enumerate(shapes))
    return Sample(args=args, attrs=attributes, accuracy=accuracy)
