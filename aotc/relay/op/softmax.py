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
from aotc.relay.op.contraction_accumulator_types import (
    cast_array,
    cast_tensor,
    widen_narrow_float_array,
    widen_narrow_float_tensor,
)
from aotc.relay.op.elementwise_unary import exp_with_clamped_argument
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples
from aotc.relay.op.operator_definition import (
    ScalarFn,
    axis_map_excluding_axis_attribute,
    infer_float_along_axis_type,
    intrinsic_for_scalars_and_arrays,
    normalize_axis,
    random_sample,
)
from aotc.relay.op.reduce import Reduction
from aotc.tir import Tensor, call, te


class SoftmaxAttrs(Attrs):
    axis: int = -1


_EXP_FUNCTION = intrinsic_for_scalars_and_arrays("exp")


def _softmax_max_exponentials_and_sum(
    x: Tensor, a: SoftmaxAttrs, exp: ScalarFn
) -> tuple[Reduction, Tensor, Tensor, Tensor]:
    """Return the reduction along the axis, and for each row the maximum, exp(x - max) and the sum
    of exponentials.

    No exponential overflows, and at least one is 1.
    """
    row = Reduction(x.shape, (normalize_axis(a.axis, x.rank),), keepdims=True)
    greatest = row.reduce_terms("max", x.__getitem__)
    terms = te.compute(x.shape, lambda *v: exp(x[v] - greatest[row.result_index_of(v)]), "exp", materialize=True)
    return row, greatest, terms, row.reduce_terms("sum", terms.__getitem__)


def _compute_softmax(a: SoftmaxAttrs, data: Tensor, exp: ScalarFn = _EXP_FUNCTION) -> Tensor:
    row, _, terms, total = _softmax_max_exponentials_and_sum(widen_narrow_float_tensor(data), a, exp)
    scale = te.compute(total.shape, lambda *v: 1.0 / total[v], "scale", materialize=True)
    return cast_tensor(
        te.compute(data.shape, lambda *v: terms[v] * scale[row.result_index_of(v)], "softmax"), data.dtype
    )


# an expansion to other operators takes 37 microseconds instead of 33 for (64, 1000) (one core,
# AVX-512)
def _compute_log_softmax(a: SoftmaxAttrs, data: Tensor) -> Tensor:
    x = widen_narrow_float_tensor(data)
    row, greatest, _, total = _softmax_max_exponentials_and_sum(x, a, _EXP_FUNCTION)
    # maximum and logarithm are subtracted separately: their sum would drop the digits of a small
    # logarithm
    log = te.compute(total.shape, lambda *v: call("log", total[v]), "log", materialize=True)
    result = te.compute(
        x.shape, lambda *v: x[v] - greatest[row.result_index_of(v)] - log[row.result_index_of(v)], "log_softmax"
    )
    return cast_tensor(result, data.dtype)


def _subtract_row_maximum(a: SoftmaxAttrs, data: Array) -> Array:
    x = widen_narrow_float_array(data)
    return np.asarray(x - x.max(axis=a.axis, keepdims=True, initial=-np.inf))


def _softmax_reference(a: SoftmaxAttrs, data: Array, exp: Callable[[Any], Any] = np.exp) -> Array:
    terms = exp(_subtract_row_maximum(a, data))
    return cast_array(terms / terms.sum(axis=a.axis, keepdims=True), data.dtype)


def _log_softmax_reference(a: SoftmaxAttrs, data: Array) -> Array:
    shifted = _subtract_row_maximum(a, data)
    return cast_array(shifted - np.log(np.exp(shifted).sum(axis=a.axis, keepdims=True)), data.dtype)


def _softmax_test_samples() -> Samples:
    for shape, axis in (((3, 7), -1), ((2, 5, 3, 2), 1), ((4, 2, 3), 0), ((2, 1), -1)):
        yield random_sample((shape,), SoftmaxAttrs(axis=axis))
    yield random_sample(((5,),), SoftmaxAttrs(), "float64")
    yield random_sample(((2, 9),), SoftmaxAttrs(), "float16")
    large = np.array([[1000.0, 1001.0, -1000.0], [-np.inf, 0.0, 2.0], [np.nan, 0.0, 1.0]], np.float32)
    yield Sample(args=(large,), attrs=SoftmaxAttrs())


def _softmax_op(name: str, doc: str, reference: Callable[..., Array], compute: Callable[..., Tensor]) -> OpDef:
    return OpDef(
        name=f"nn.{name}",
        doc=doc,
        attrs=SoftmaxAttrs,
        infer=infer_float_along_axis_type,
        reference=reference,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=axis_map_excluding_axis_attribute,
        compute=compute,
        samples=_softmax_test_samples,
    )


softmax = _softmax_op("softmax", "exp(data) / sum(exp(data)) along an axis.", _softmax_reference, _compute_softmax)
fast_softmax = _softmax_op(
    "fast_softmax",
    "softmax with `fast_exp`: what is 87 or more below the largest counts as 87 below.",
    partial(_softmax_reference, exp=exp_with_clamped_argument),
    partial(_compute_softmax, exp=exp_with_clamped_argument),
)
log_softmax = _softmax_op(
    "log_softmax",
    "The logarithm of softmax, computed without taking one of a tiny number.",
    _log_softmax_reference,
    _compute_log_softmax,
)
