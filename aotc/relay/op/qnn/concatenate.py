# SPDX-License-Identifier: Apache-2.0
"""qnn.concatenate: concatenate quantized tensors with different scales into one quantized tensor.

concatenate((x, y), (0.1, 0.2), (0, 3), 0.2, 3, axis=1)    # y has the output scale and is copied unchanged

The result is quantize(dequantize(x)) for each element. For 8-bit inputs with constant scales it is
rounded once, from the exact quotient: a tensor is multiplied by one factor if that gives the
correct result for all 256 values, and is mapped by a lookup table otherwise. int32 inputs are
requantized, since float32 cannot represent them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import Arg, Attrs, DType, OpPattern, Type, Types, require
from aotc.relay.expr import Expr, Tuple, item_of
from aotc.relay.op import concat_split
from aotc.relay.op.operator_definition import Array, OpDef, Samples, all_but_axis, random_array, tensor_fields
from aotc.relay.op.qnn import lookup_table, requantize
from aotc.relay.op.qnn import quant_params as q


class ConcatenateAttrs(Attrs):
    """Quantized tensors concatenated along an axis, requantized to the output's scale and zero
    point.
    """

    axis: int = 0


def _tuple_of(takes: Any) -> Callable[[Any, Any], Any]:
    """Return a converter of call arguments that applies `takes` to each item of a sequence and
    builds a tuple.
    """
    return lambda value, given: Tuple([takes(v, given) for v in value]) if isinstance(value, Sequence) else value


_ARGS = (
    Arg("data", "Sequence[Expr] | Expr", takes=_tuple_of(lambda value, _: value)),
    Arg("input_scales", "Sequence[Expr | float] | Expr", takes=_tuple_of(q.SCALE)),
    Arg("input_zero_points", "Sequence[Expr | int] | Expr", takes=_tuple_of(q.ZERO)),
    *q.scales(*q.ONTO),
)


def _infer(a: ConcatenateAttrs, types: Types) -> Type:
    data, scales, zeros = (tensor_fields(ty, arg.name) for ty, arg in zip(types[:3], _ARGS, strict=False))
    same = len(data) == len(scales) == len(zeros)
    require(
        "qnn.inputs",
        same,
        f"{len(data)} tensors need as many scales and zero points, got {len(scales)} and {len(zeros)}",
    )
    result = q.quantized_type(concat_split.concatenate.infer(a, types[:1]), bits=32)
    for ty, *pair in zip(data, scales, zeros, strict=True):
        q.check_pairs(pair, ty, None, *q.FROM)
    q.check_pairs(types[3:], result, None, *q.ONTO)
    return result


def _moved(x: Array, pair: Sequence[Array], onto: Sequence[Array]) -> Array:
    if x.dtype == np.int32:
        attributes = requantize.RequantizeAttrs(out_dtype="int32")
        return np.asarray(requantize.requantize.reference(attributes, x, *pair, *onto))
    # in float64, products of 8-bit integers and scales are exact, and quotients near ties stay
    # distinct from ties
    work = np.float64 if DType.of(x).bits == 8 else np.float32
    wide = q.dequantized(x, pair[0], pair[1], None, work)
    return q.quantized(wide, onto[0].astype(work), onto[1], DType.of(x))


def _reference(
    a: ConcatenateAttrs, data: Sequence[Array], scales: Sequence[Array], zeros: Sequence[Array], *onto: Array
) -> Array:
    parts = (_moved(x, pair, onto) for x, *pair in zip(data, scales, zeros, strict=True))
    return np.concatenate(list(parts), a.axis)


def _part(x: Expr, pair: Sequence[Expr], onto: Sequence[Expr]) -> Expr:
    values, dtype = lookup_table.all_known(*pair, *onto), q.dtype_of(x)
    q.checked(dtype, (*q.FROM, *q.ONTO), *pair, *onto)
    if pair[0] is onto[0] and pair[1] is onto[1]:
        return x
    if values is not None and all(np.array_equal(np.ravel(values[k]), np.ravel(values[k + 2])) for k in (0, 1)):
        return x
    if values is not None and dtype.bits == 8:
        zeros = (int(np.ravel(values[k])[0]) for k in (1, 3))
        return lookup_table.moved(x, lambda every: _moved(every, values[:2], values[2:]), *zeros)
    if dtype.bits == 32:
        return requantize.requantize(x, *pair, *onto, out_dtype=str(dtype))
    return requantize.quantize(requantize.dequantize(x, *pair), *onto, out_dtype=str(dtype))


def _expand(a: ConcatenateAttrs, data: Expr, scales: Expr, zeros: Expr, *onto: Expr) -> Expr:
    count = len(tensor_fields(data.checked_type or _infer(a, ())))
    items = ([item_of(values, k) for values in (data, scales, zeros)] for k in range(count))
    return concat_split.concatenate([_part(x, pair, onto) for x, *pair in items], axis=a.axis)


def _samples() -> Samples:
    for dtype in ("int8", "uint8", "int16", "int32"):
        data = tuple(random_array(shape, dtype, k) for k, shape in enumerate(((2, 3), (2, 5), (2, 1))))
        scales = tuple(map(requantize.scale_array, (0.1, 0.25, 0.013)))
        zeros = tuple(map(requantize.zero_array, (0, 3, 17)))
        a, onto = ConcatenateAttrs(axis=1), (requantize.scale_array(0.25), requantize.zero_array(3))
        yield q.with_constants(a, data, scales, zeros, *onto)
        if dtype != "int32":
            yield q.with_constants(a, data, scales, zeros, *onto, given=5)


concatenate = OpDef(
    name="qnn.concatenate",
    attrs=ConcatenateAttrs,
    args=_ARGS,
    infer=_infer,
    reference=_reference,
    axes=all_but_axis,
    expand=_expand,
    samples=_samples,
    **q.facets(OpPattern.INJECTIVE),
)
