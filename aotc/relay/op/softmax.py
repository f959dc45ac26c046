# SPDX-License-Identifier: Apache-2.0
"""Softmax, fast softmax and log softmax along one axis.

softmax(x, axis=1)                     # exp(x - max) / sum(exp(x - max))
fast_softmax(x, axis=1)                # softmax with fast_exp instead of exp
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import Attrs, OpPattern
from aotc.relay.op.contraction import as_dtype, convert, float_work, promoted
from aotc.relay.op.elementwise_unary import clamped_exp
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples
from aotc.relay.op.operator_definition import (
    ScalarFn,
    all_but_axis,
    axis_of,
    float_along_axis,
    intrinsic,
    random_sample,
)
from aotc.relay.op.reduce import Reduction
from aotc.tir import Tensor, call, te


class SoftmaxAttrs(Attrs):
    axis: int = -1


_EXP = intrinsic("exp")


def _stages(x: Tensor, a: SoftmaxAttrs, exp: ScalarFn) -> tuple[Reduction, Tensor, Tensor, Tensor]:
    """Return the reduction along the axis, and for each row the maximum, exp(x - max) and the sum
    of exponentials.

    No exponential overflows, and at least one is 1.
    """
    row = Reduction(x.shape, (axis_of(a.axis, x.rank),), keepdims=True)
    greatest = row.reduce("max", x.__getitem__)
    terms = te.compute(x.shape, lambda *v: exp(x[v] - greatest[row.at(v)]), "exp", materialize=True)
    return row, greatest, terms, row.reduce("sum", terms.__getitem__)


def _compute_softmax(a: SoftmaxAttrs, data: Tensor, exp: ScalarFn = _EXP) -> Tensor:
    row, _, terms, total = _stages(promoted(data), a, exp)
    scale = te.compute(total.shape, lambda *v: 1.0 / total[v], "scale", materialize=True)
    return convert(te.compute(data.shape, lambda *v: terms[v] * scale[row.at(v)], "softmax"), data.dtype)


# an expansion to other operators takes 37 microseconds instead of 33 for (64, 1000) (one core,
# AVX-512)
def _compute_log_softmax(a: SoftmaxAttrs, data: Tensor) -> Tensor:
    x = promoted(data)
    row, greatest, _, total = _stages(x, a, _EXP)
    # maximum and logarithm are subtracted separately: their sum would drop the digits of a small
    # logarithm
    log = te.compute(total.shape, lambda *v: call("log", total[v]), "log", materialize=True)
    result = te.compute(x.shape, lambda *v: x[v] - greatest[row.at(v)] - log[row.at(v)], "log_softmax")
    return convert(result, data.dtype)


def _shifted(a: SoftmaxAttrs, data: Array) -> Array:
    x = float_work(data)
    return np.asarray(x - x.max(axis=a.axis, keepdims=True, initial=-np.inf))


def _reference_softmax(a: SoftmaxAttrs, data: Array, exp: Callable[[Any], Any] = np.exp) -> Array:
    terms = exp(_shifted(a, data))
    return as_dtype(terms / terms.sum(axis=a.axis, keepdims=True), data.dtype)


def _reference_log_softmax(a: SoftmaxAttrs, data: Array) -> Array:
    shifted = _shifted(a, data)
    return as_dtype(shifted - np.log(np.exp(shifted).sum(axis=a.axis, keepdims=True)), data.dtype)


def _samples() -> Samples:
    for shape, axis in (((3, 7), -1), ((2, 5, 3, 2), 1), ((4, 2, 3), 0), ((2, 1), -1)):
        yield random_sample((shape,), SoftmaxAttrs(axis=axis))
    yield random_sample(((5,),), SoftmaxAttrs(), "float64")
    yield random_sample(((2, 9),), SoftmaxAttrs(), "float16")
    large = np.array([[1000.0, 1001.0, -1000.0], [-np.inf, 0.0, 2.0], [np.nan, 0.0, 1.0]], np.float32)
    yield Sample(args=(large,), attrs=SoftmaxAttrs())


def _along(name: str, doc: str, reference: Callable[..., Array], compute: Callable[..., Tensor]) -> OpDef:
    return OpDef(
        name=f"nn.{name}",
        doc=doc,
        attrs=SoftmaxAttrs,
        infer=float_along_axis,
        reference=reference,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=all_but_axis,
        compute=compute,
        samples=_samples,
    )


softmax = _along("softmax", "exp(data) / sum(exp(data)) along an axis.", _reference_softmax, _compute_softmax)
fast_softmax = _along(
    "fast_softmax",
    "softmax with `fast_exp`: what is 87 or more below the largest counts as 87 below.",
    partial(_reference_softmax, exp=clamped_exp),
    partial(_compute_softmax, exp=clamped_exp),
)
log_softmax = _along(
    "log_softmax",
    "The logarithm of softmax, computed without taking one of a tiny number.",
    _reference_log_softmax,
    _compute_log_softmax,
)
