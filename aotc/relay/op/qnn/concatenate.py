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
from aotc.relay.expr import Expr, Tuple, tuple_item
from aotc.relay.op import concat_split
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    axis_map_excluding_axis_attribute,
    random_array,
    require_tensor_fields,
)
from aotc.relay.op.qnn import lookup_table, requantize
from aotc.relay.op.qnn import quant_params as q


class ConcatenateAttrs(Attrs):
    """Quantized tensors concatenated along an axis, requantized to the output's scale and zero
    point.
    """

    axis: int = 0


def _converter_of_sequence_to_tuple_expr(convert_item: Any) -> Callable[[Any, Any], Any]:
    """Return a converter of call arguments that applies `convert_item` to each item of a sequence
    and builds a tuple.
    """
    return lambda value, given: Tuple([convert_item(v, given) for v in value]) if isinstance(value, Sequence) else value


_CONCATENATE_ARGS = (
    Arg("data", "Sequence[Expr] | Expr", takes=_converter_of_sequence_to_tuple_expr(lambda value, _: value)),
    Arg("input_scales", "Sequence[Expr | float] | Expr", takes=_converter_of_sequence_to_tuple_expr(q.SCALE_CONVERTER)),
    Arg(
        "input_zero_points",
        "Sequence[Expr | int] | Expr",
        takes=_converter_of_sequence_to_tuple_expr(q.ZERO_POINT_CONVERTER),
    ),
    *q.quant_param_arguments(*q.OUTPUT_PARAMETER_NAMES),
)


def _infer_quantized_concatenate_type(a: ConcatenateAttrs, types: Types) -> Type:
    data, scales, zeros = (
        require_tensor_fields(ty, arg.name) for ty, arg in zip(types[:3], _CONCATENATE_ARGS, strict=False)
    )
    same = len(data) == len(scales) == len(zeros)
    require(
        "qnn.inputs",
        same,
        f"{len(data)} tensors need as many scales and zero points, got {len(scales)} and {len(zeros)}",
    )
    result = q.require_integer_type_up_to_bits(concat_split.concatenate.infer(a, types[:1]), max_bits=32)
    for ty, *pair in zip(data, scales, zeros, strict=True):
        q.check_quant_param_types(pair, ty, None, *q.INPUT_PARAMETER_NAMES)
    q.check_quant_param_types(types[3:], result, None, *q.OUTPUT_PARAMETER_NAMES)
    return result


def _requantize_array(x: Array, source_params: Sequence[Array], target_params: Sequence[Array]) -> Array:
    if x.dtype == np.int32:
        attributes = requantize.RequantizeAttrs(out_dtype="int32")
        return np.asarray(requantize.requantize.reference(attributes, x, *source_params, *target_params))
    # in float64, products of 8-bit integers and scales are exact, and quotients near ties stay
    # distinct from ties
    work = np.float64 if DType.from_numpy(x).bits == 8 else np.float32
    wide = q.dequantize_array(x, source_params[0], source_params[1], None, work)
    return q.quantize_array(wide, target_params[0].astype(work), target_params[1], DType.from_numpy(x))


def _quantized_concatenate_reference(
    a: ConcatenateAttrs, data: Sequence[Array], scales: Sequence[Array], zeros: Sequence[Array], *onto: Array
) -> Array:
    parts = (_requantize_array(x, pair, onto) for x, *pair in zip(data, scales, zeros, strict=True))
    return np.concatenate(list(parts), a.axis)


def _requantize_tensor_to_concatenate(x: Expr, source_params: Sequence[Expr], target_params: Sequence[Expr]) -> Expr:
    values, dtype = lookup_table.constant_values_of_exprs_or_none(*source_params, *target_params), q.tensor_dtype_of(x)
    q.check_quant_params_if_constant(
        dtype, (*q.INPUT_PARAMETER_NAMES, *q.OUTPUT_PARAMETER_NAMES), *source_params, *target_params
    )
    if source_params[0] is target_params[0] and source_params[1] is target_params[1]:
        return x
    if values is not None and all(np.array_equal(np.ravel(values[k]), np.ravel(values[k + 2])) for k in (0, 1)):
        return x
    if values is not None and dtype.bits == 8:
        zeros = (int(np.ravel(values[k])[0]) for k in (1, 3))
        return lookup_table.map_by_requantize_or_table(
            x, lambda every: _requantize_array(every, values[:2], values[2:]), *zeros
        )
    if dtype.bits == 32:
        return requantize.requantize(x, *source_params, *target_params, out_dtype=str(dtype))
    return requantize.quantize(requantize.dequantize(x, *source_params), *target_params, out_dtype=str(dtype))


def _expand_quantized_concatenate(a: ConcatenateAttrs, data: Expr, scales: Expr, zeros: Expr, *onto: Expr) -> Expr:
    count = len(require_tensor_fields(data.checked_type or _infer_quantized_concatenate_type(a, ())))
    items = ([tuple_item(values, k) for values in (data, scales, zeros)] for k in range(count))
    return concat_split.concatenate(
        [_requantize_tensor_to_concatenate(x, pair, onto) for x, *pair in items], axis=a.axis
    )


def _quantized_concatenate_test_samples() -> Samples:
    for dtype in ("int8", "uint8", "int16", "int32"):
        data = tuple(random_array(shape, dtype, k) for k, shape in enumerate(((2, 3), (2, 5), (2, 1))))
        scales = tuple(map(requantize.float32_scale_array, (0.1, 0.25, 0.013)))
        zeros = tuple(map(requantize.int32_zero_point_array, (0, 3, 17)))
        a, onto = ConcatenateAttrs(axis=1), (requantize.float32_scale_array(0.25), requantize.int32_zero_point_array(3))
        yield q.exact_sample_with_constants(a, data, scales, zeros, *onto)
        if dtype != "int32":
            yield q.exact_sample_with_constants(a, data, scales, zeros, *onto, variable_argument_count=5)


concatenate = OpDef(
    name="qnn.concatenate",
    attrs=ConcatenateAttrs,
    args=_CONCATENATE_ARGS,
    infer=_infer_quantized_concatenate_type,
    reference=_quantized_concatenate_reference,
    axes=axis_map_excluding_axis_attribute,
    expand=_expand_quantized_concatenate,
    samples=_quantized_concatenate_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.INJECTIVE),
)
