# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of quantized tensors: qnn.tanh, qnn.sigmoid, qnn.leaky_relu and others.

quantize(f((x - zero_point) * scale), output_scale, output_zero_point), with the dtype of x

For 8-bit inputs with constant scales, the function is a lookup table of its 256 results, which are
computed in float64 and rounded once. Wider integers, and scales known only at run time, are
computed in float32.

    sigmoid(x, 0.1, 3, 1 / 256, -128)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import NO_ATTRS, AotcError, Attrs, AxisMap, DType, NoAttrs, OpPattern, Type, Types, declare_arguments
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import cast_clip_prelu, elementwise_unary, gather
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array, require_tensor_type
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import requantize

LOOKUP_PARAMETER_NAMES: Final = ("scale", "zero_point", *q.OUTPUT_PARAMETER_NAMES)
LOOKUP_ARGS: Final = (*declare_arguments("x"), *q.quant_param_arguments(*LOOKUP_PARAMETER_NAMES))


class LeakyReluAttrs(Attrs):
    """Leaky ReLU of quantized numbers: x where x > 0, else alpha * x."""

    alpha: float = 0.25


def infer_quantized_elementwise_type(_: Any, types: Types) -> Type:
    """Type rule of an elementwise function: the result has the type of the data, with another
    scale.
    """
    data = q.require_integer_type_up_to_bits(types[0], "x")
    q.check_quant_param_types(types[1:], data, None, *LOOKUP_PARAMETER_NAMES)
    return data


def data_only_axis_map(_: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise function, which maps every axis of the data and none of
    the scales.
    """
    return AxisMap((tuple(range(require_tensor_type(types[0]).rank)),))


def apply_by_lookup_table(x: Expr, function: Callable[[Array], Array]) -> Expr:
    """Return an 8-bit to 8-bit function of x as a lookup table, indexed by the bits of x as uint8."""
    dtype = q.tensor_dtype_of(x)
    every = np.arange(256).astype(np.uint8).view(dtype.numpy)
    return q.call_or_fold_constants(
        gather.take, Constant(function(every)), q.cast_unless_dtype_equal(x, "uint8"), axis=0
    )


def create_integer_lookup_op(
    input_arg: Expr,
    floating_point_func: Callable[[Array], Array],
    in_scale: Expr,
    in_zero_point: Expr,
    out_scale: Expr,
    out_zero_point: Expr,
    in_axis: int = -1,
    out_axis: int = -1,
    in_dtype: str = "uint8",
    out_dtype: str = "uint8",
) -> Expr:
    """Return a float32 function of 8-bit quantized numbers as an expression that looks up its 256
    results.

    input_arg            quantized input
    floating_point_func  function of a float32 array of real values, evaluated at compile time

    Raise AotcError for scales and zero points that are not constants or not scalars, and for
    integers wider than 8 bits.
    """
    values = constant_values_of_exprs_or_none(in_scale, in_zero_point, out_scale, out_zero_point)
    if values is None or any(v.size != 1 for v in values):
        raise AotcError(
            "qnn.scale", "a lookup table needs one constant scale and zero point for the input and one for the output"
        )
    if DType(in_dtype).bits != 8:
        raise AotcError("dtype", f"a lookup table needs an 8-bit integer input, not {in_dtype}")

    def quantized_table_of_function(inputs: Array) -> Array:
        real = np.asarray(
            floating_point_func(q.dequantize_array(inputs.view(DType(in_dtype).numpy), values[0], values[1]))
        )
        return q.quantize_array(real, values[2].astype(np.float32), values[3], DType(out_dtype))

    return apply_by_lookup_table(input_arg, quantized_table_of_function)


def map_by_requantize_or_table(
    x: Expr, function: Callable[[Array], Array], source_zero_point: int, target_zero_point: int
) -> Expr:
    """Return x mapped by an 8-bit function that is affine except for rounding.

    If one factor between the zero points `source_zero_point` and `target_zero_point` reproduces all
    256 results, the result is a requantization, which can be vectorized; otherwise it is a table
    lookup.
    """
    dtype = q.tensor_dtype_of(x)
    every = np.arange(256).astype(np.uint8).view(dtype.numpy)
    table = function(every)
    steps, offsets = table - float(target_zero_point), every - float(source_zero_point)
    inside = (offsets != 0) & (table != table.min()) & (table != table.max())
    if not inside.any():
        return apply_by_lookup_table(x, lambda _: table)
    # the middle of the interval of factors for which every element rounds to its result
    bounds = np.sort([(steps + half)[inside] / offsets[inside] for half in (-0.5, 0.5)], axis=0)
    factor = np.float32((bounds[0].max() + bounds[1].min()) / 2)
    attr_values: Any = {"rounding": "FLOAT_EVEN", "out_dtype": str(DType.from_numpy(table))}
    numbers = [
        np.array(v, t)
        for v, t in ((factor, "float32"), (source_zero_point, "int32"), (1, "float32"), (target_zero_point, "int32"))
    ]
    requantize_result = requantize.requantize.reference(requantize.RequantizeAttrs(**attr_values), every, *numbers)
    if factor <= 0 or not np.array_equal(requantize_result, table):
        return apply_by_lookup_table(x, lambda _: table)
    return requantize.requantize(x, *map(Constant, numbers), **attr_values)


def constant_values_of_exprs_or_none(*values: Expr) -> tuple[Array, ...] | None:
    """Return the values of the expressions if all of them are constant, else None."""
    constants = [q.constant_value_or_none(v) for v in values]
    return tuple(v for v in constants if v is not None) if all(v is not None for v in constants) else None


def _expand_quantized_elementwise(
    numpy_fn: Callable[..., Any], build_float_expr: Callable[..., Expr], attrs: Any, x: Expr, *quant_params: Expr
) -> Expr:
    q.check_quant_params_if_constant(q.tensor_dtype_of(x), LOOKUP_PARAMETER_NAMES, *quant_params)
    values, dtype = constant_values_of_exprs_or_none(*quant_params), q.tensor_dtype_of(x)
    if values is not None and dtype.bits == 8:
        return apply_by_lookup_table(x, lambda every: _quantized_elementwise_reference(numpy_fn, attrs, every, *values))
    wide = requantize.dequantize(x, quant_params[0], quant_params[1])
    return requantize.quantize(build_float_expr(attrs, wide), quant_params[2], quant_params[3], out_dtype=str(dtype))


def _quantized_elementwise_reference(
    numpy_fn: Callable[..., Any],
    attrs: Any,
    x: Array,
    scale: Array,
    zero_point: Array,
    output_scale: Array,
    output_zero_point: Array,
) -> Array:
    work = np.float64 if DType.from_numpy(x).bits == 8 else np.float32
    with np.errstate(all="ignore"):
        real = np.asarray(numpy_fn(attrs, q.dequantize_array(x, scale, zero_point, None, work)))
        return q.quantize_array(real, output_scale.astype(work), output_zero_point, DType.from_numpy(x))


def _quantized_elementwise_test_samples(attrs_class: type[Attrs]) -> Samples:
    every = np.arange(256).astype(np.uint8)
    onto = (requantize.float32_scale_array(0.02), requantize.int32_zero_point_array(7))
    for x, z in ((every, 0), (every.view(np.int8).reshape(4, 64), -128)):
        yield q.exact_sample_with_constants(
            attrs_class(), x, requantize.float32_scale_array(0.013), requantize.int32_zero_point_array(z), *onto
        )
    yield exact_sample(
        attrs_class(),
        random_array((2, 3), "uint8") + np.uint8(1),
        requantize.float32_scale_array(0.0371),
        requantize.int32_zero_point_array(0),
        *onto,
    )


def _quantized_elementwise_op(
    name: str,
    numpy_fn: Callable[..., Any],
    build_float_expr: Callable[..., Expr],
    attrs_class: type[Attrs] = NoAttrs,
    **facets: Any,
) -> OpDef:
    return OpDef(
        name=f"qnn.{name}",
        attrs=attrs_class,
        doc="" if attrs_class is not NoAttrs else f"`{name}` of the numbers that integers stand for, of each element.",
        **{"args": LOOKUP_ARGS, **facets},
        infer=infer_quantized_elementwise_type,
        reference=partial(_quantized_elementwise_reference, numpy_fn),
        axes=data_only_axis_map,
        expand=partial(_expand_quantized_elementwise, numpy_fn, build_float_expr),
        samples=partial(_quantized_elementwise_test_samples, attrs_class),
        **q.shared_fields_of_quantized_op_def(OpPattern.ELEMWISE),
    )


def _quantized_version_of_op(op: OpDef) -> OpDef:
    """Return the quantized version of an elementwise operator on real numbers."""
    return _quantized_elementwise_op(
        op.name.rpartition(".")[2], lambda _, x: op.reference(NO_ATTRS, x), lambda _, x: q.call_or_fold_constants(op, x)
    )


def _hard_swish_of_expr(_: Any, x: Expr) -> Expr:
    three, six = (q.constant_of_dtype(v, "float32") for v in (3, 6))
    gate = q.call_or_fold_constants(cast_clip_prelu.clip, q.add(x, three), a_min=0.0, a_max=6.0)
    return q.div(q.mul(x, gate), six)


def _hard_swish_of_array(_: Any, x: Array) -> Array:
    return np.asarray(x * np.clip(x + np.float32(3), 0, 6) / np.float32(6))


def _leaky_relu_of_array(a: LeakyReluAttrs, x: Array) -> Array:
    return np.where(x > 0, x, x * np.float32(a.alpha))


def _leaky_relu_of_expr(a: LeakyReluAttrs, x: Expr) -> Expr:
    return q.call_or_fold_constants(cast_clip_prelu.leaky_relu, x, alpha=a.alpha)


# abs: Relay's name, wanted as an attribute of this module
tanh, sigmoid, exp, sqrt, rsqrt, erf, log, abs = map(
    _quantized_version_of_op,
    (
        elementwise_unary.tanh,
        elementwise_unary.sigmoid,
        elementwise_unary.exp,
        elementwise_unary.sqrt,
        elementwise_unary.rsqrt,
        elementwise_unary.erf,
        elementwise_unary.log,
        elementwise_unary.abs,
    ),
)
hardswish = _quantized_elementwise_op("hardswish", _hard_swish_of_array, _hard_swish_of_expr)
leaky_relu = _quantized_elementwise_op(
    "leaky_relu",
    _leaky_relu_of_array,
    _leaky_relu_of_expr,
    LeakyReluAttrs,
    args=(*declare_arguments("x"), *q.quant_param_arguments(*q.INPUT_PARAMETER_NAMES, *q.OUTPUT_PARAMETER_NAMES)),
)
