# SPDX-License-Identifier: Apache-2.0
"""Operators on every data type that their type rules accept: numpy and the tensor program give equal results."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DTYPES, DType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from tests.ops.harness import Array, assert_agrees, flat, interpret, kernel_job

NAMES = sorted(name for name, op in OPERATORS_BY_NAME.items() if op.static is None)
FAILED = {
    **dict.fromkeys(("max", "min"), ("int4", "uint2")),
    **dict.fromkeys(("argmax", "argmin", "nn.max_pool2d"), ("float8_e4m3fn", "float8_e5m2fnuz")),
    **dict.fromkeys(("nn.adaptive_max_pool2d", "nn.global_max_pool2d"), ("float8_e4m3fnuz",)),
    **dict.fromkeys(("nn.relu", "sign", "cumsum", "trilu"), ("float8_e8m0fnu",)),
    "nn.batch_norm": ("float64",),
    "stft": ("float8_e4m3fn", "float8_e5m2"),
}
"""Data types that an operator was once wrong on."""
COMPLEX = ("dft",)
"""Operators on complex numbers as two parts. A NaN in one part makes both parts of each product NaN, also the product
with 1, but numpy's transforms add the parts separately and leave the other one finite."""
AT_ONCE = 3


def converted(value: Any, old: DType, new: DType) -> Any:
    """The arrays of one type in a (nested) tuple as another, with values that every type of its kind holds."""
    if isinstance(value, tuple):
        return tuple(converted(v, old, new) for v in value)
    if DType.from_numpy(value) != old:
        return value
    with np.errstate(all="ignore"):
        if new.is_float or new.is_bool:
            return value.astype(np.float32).astype(new.numpy)
        numbers = np.nan_to_num(value.astype(np.float64) * 1.7)
        return np.clip(numbers, max(new.min, -100), min(new.max, 100)).astype(np.int64).astype(new.numpy)


def of_type(name: str, sample: Sample, dtype: DType) -> Sample:
    """A sample whose first argument, and all of its type, are of another type, and zero points among its numbers."""
    first = next(DType.from_numpy(a) for a in flat(sample.args))
    if first == dtype:
        return sample
    # types without a zero have no negative numbers either: these become NaN
    args = tuple(map(np.abs, sample.args)) if name in COMPLEX and not dtype.can_represent_zero else sample.args
    found = list(converted(args, first, dtype))
    for k, argument in enumerate(OPERATORS_BY_NAME[name].args[: len(found)]):
        if argument.name.endswith("zero_point") and dtype.is_integer:
            found[k] = np.clip(found[k], max(dtype.min, -(2**31)), min(dtype.max, 2**31 - 1)).astype(found[k].dtype)
    return replace(sample, args=tuple(found))


def samples(name: str, count: int) -> Iterator[Sample]:
    taken = (s for s in OPERATORS_BY_NAME[name].samples() if flat(tuple(s.args)))
    yield from (sample for sample, _ in zip(taken, range(count), strict=False))


def agrees(name: str, sample: Sample) -> bool:
    """Whether the operator takes a sample, after comparing its meanings."""
    op = OPERATORS_BY_NAME[name]
    try:
        job = kernel_job(op, sample)
    except AotcError:
        return False
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of means of nothing
        expected: list[Array] = [np.asarray(a) for a in flat(op.reference(sample.attrs, *sample.args))]
        found = interpret([job])[0]
    for actual, wanted in zip(found, expected, strict=True):
        assert_agrees(actual.reshape(wanted.shape), wanted, sample.accuracy)
    return True


@pytest.mark.parametrize("name", NAMES)
def test_some_data_types(name: str) -> None:
    drawn = random.Random(name).sample(DTYPES, AT_ONCE)
    for dtype in {*drawn, *map(DType, FAILED.get(name, ()))}:
        for sample in samples(name, 1):
            agrees(name, of_type(name, sample, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_data_types(name: str) -> None:
    for sample in samples(name, 4):
        assert agrees(name, sample)
        for dtype in DTYPES:
            agrees(name, of_type(name, sample, dtype))


@pytest.mark.parametrize("name", COMPLEX)
def test_transforms_of_powers_of_two(name: str) -> None:
    dtype = DType("float8_e8m0fnu")
    for sample in samples(name, 4):
        powers = of_type(name, sample, dtype)
        assert all(DType.from_numpy(a) == dtype and np.isfinite(a.astype(np.float32)).all() for a in flat(powers.args))
        assert agrees(name, powers)


@pytest.mark.parametrize("name", ["nn.relu", "sign", "cumsum", "trilu"])
def test_what_needs_a_zero_refuses_types_without(name: str) -> None:
    (sample,) = samples(name, 1)
    with pytest.raises(AotcError, match="data type float8_e8m0fnu is not supported"):
        kernel_job(OPERATORS_BY_NAME[name], of_type(name, sample, DType("float8_e8m0fnu")))


#: Operators whose windows reach into padding.
WINDOWS = [f"{kind}{n}d{end}" for n in (1, 2, 3) for kind, end in (("conv", ""), ("conv", "_transpose"))]
WINDOWS += ["avg_pool2d", "max_pool2d"]


@pytest.mark.parametrize("name", [f"nn.{name}" for name in WINDOWS])
def test_windows_at_borders_of_types_without_a_zero(name: str) -> None:
    """Padding adds nothing to a sum: no NaN comes from it, in numpy as in the tensor program."""
    dtype, finite = DType("float8_e8m0fnu"), 0
    for sample in samples(name, 8):
        positive = tuple(np.abs(a).clip(0.5, 2) for a in sample.args)
        powers = of_type(name, replace(sample, args=positive), dtype)
        assert agrees(name, powers)
        result = np.asarray(OPERATORS_BY_NAME[name].reference(powers.attrs, *powers.args), np.float32)
        finite += int(np.isfinite(result).all())
    assert finite
