# SPDX-License-Identifier: Apache-2.0
"""Operators on float16 and bfloat16 compute in float32 and round once, at both ends of the range.

Data of a few hundreds have squares beyond float16, data of 1e-4 have squares below it.  The registry gives the cases,
so that a new operator is tried, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from tests.ops.harness import Array, flat, interpret, kernel_job
from tests.ops.test_every_dtype import NAMES, of_type, samples
from tests.share import share_of_each

ENDS = {"large": 400.0, "small": 4e-4}
"""The greatest magnitude of data."""
JUMPS = frozenset({"floor_divide", "floor_mod", "trunc_mod", "trunc_divide", "nn.fake_quantize"})
"""Operators whose results jump where float32 and float64 round a quotient differently."""


def scaled(sample: Sample, most: float) -> Sample:
    """A sample whose first argument of floats has no number above `most`."""
    args = list(sample.args)
    for k, value in enumerate(args):
        for part in flat(value):
            if DType.from_numpy(part).is_float:
                args[k] = times(value, most)
                return Sample(args=tuple(args), attrs=sample.attrs, accuracy=sample.accuracy, known=sample.known)
    return sample


def times(value: Any, most: float) -> Any:
    if isinstance(value, tuple):
        return tuple(times(v, most) for v in value)
    finite = np.abs(np.nan_to_num(value.astype(np.float64), posinf=0, neginf=0)).max(initial=0.0)
    return (value.astype(np.float64) * (most / finite if finite else 1.0)).astype(value.dtype)


def widened(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(widened, value))
    return value.astype(np.float64) if DType.from_numpy(value).is_narrow_float else value


def assert_rounded_once(found: Array, exact: Array, dtype: DType, most: float) -> None:
    """Finite results that the type can hold are those of float64, to the type's last digit but one."""
    a, b = found.astype(np.float64).reshape(exact.shape), exact.astype(np.float64)
    held = np.isfinite(b) & (np.abs(b) < float(np.asarray(dtype.max, np.float64)) * 0.99)
    unit = float(np.spacing(np.ones((), dtype.numpy)).astype(np.float64))
    least = float(np.spacing(np.zeros((), dtype.numpy)).astype(np.float64))
    np.testing.assert_allclose(a[held], b[held], rtol=2 * unit, atol=2 * least + 1e-5 * most)


@pytest.mark.parametrize(("name", "end"), share_of_each(NAMES, ENDS, 1))
def test_operators_round_once(name: str, end: str) -> None:
    op, most = OPERATORS_BY_NAME[name], ENDS[end]
    for dtype in map(DType, ("float16", "bfloat16")):
        for sample in samples(name, 3):
            if not any(DType.from_numpy(a).is_float for a in flat(tuple(sample.args))):
                continue
            narrow = scaled(of_type(name, sample, dtype), most)
            try:
                job = kernel_job(op, narrow)
            except AotcError:
                continue  # not an operator on narrow floats
            with np.errstate(all="ignore"):
                exact = flat(op.reference(narrow.attrs, *map(widened, narrow.args)))
                stated = flat(op.reference(narrow.attrs, *narrow.args))
                found = interpret([job])[0]
            for meant, said, got in zip(exact, stated, found, strict=True):
                if DType.from_numpy(got) == dtype and name not in JUMPS:
                    assert_rounded_once(got, np.asarray(meant), dtype, most)
                    assert_rounded_once(np.asarray(said), np.asarray(meant), dtype, most)
