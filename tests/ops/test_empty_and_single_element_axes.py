# SPDX-License-Identifier: Apache-2.0
"""Every operator with axes of extent 0 and 1: refused by the type rule, or defined and computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Var, typed_op_call
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from tests.ops.harness import assert_agrees, flat, interpret, kernel_job, type_of_value
from tests.share import share

TRANSFORMED = "nn.contrib_conv2d_winograd_without_weight_transform"
"""Its weights are no weights any more if they are cut off."""
NAMES = sorted(name for name, op in OPERATORS_BY_NAME.items() if op.static is None and name != TRANSFORMED)


def resized(value: Any, old: int, new: int) -> Any:
    """Arrays whose axes of extent `old` have extent `new`."""
    if isinstance(value, tuple):
        return tuple(resized(v, old, new) for v in value)
    shape = tuple(new if d == old else d for d in value.shape)
    return np.resize(value, shape).astype(value.dtype) if value.size else np.zeros(shape, value.dtype)


def cases(op: OpDef, samples: int) -> Iterator[Sample]:
    """Samples changed so, where the type rule takes them."""
    for sample in list(op.samples())[:samples]:
        extents = sorted({d for a in flat(tuple(sample.args)) for d in a.shape})
        for old, new in ((old, new) for old in extents for new in (0, 1) if new != old):
            args = resized(tuple(sample.args), old, new)
            try:
                typed_op_call(op, [Var(f"a{k}", type_of_value(v)) for k, v in enumerate(args)], sample.attrs)
            except AotcError:
                continue
            yield replace(sample, args=args)


def check(name: str, samples: int) -> None:
    op = OPERATORS_BY_NAME[name]
    for sample in cases(op, samples):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of means of nothing
            expected = [np.asarray(a) for a in flat(op.reference(sample.attrs, *sample.args))]
        for actual, wanted in zip(interpret([kernel_job(op, sample)])[0], expected, strict=True):
            assert_agrees(actual, wanted, Accuracy.LOOSE if sample.accuracy is Accuracy.ROUNDING else sample.accuracy)


@pytest.mark.parametrize("name", share(NAMES, len(NAMES) // 2))
def test_axes_of_none_and_one(name: str) -> None:
    check(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_axes_of_none_and_one_in_all_samples(name: str) -> None:
    check(name, 1000)
