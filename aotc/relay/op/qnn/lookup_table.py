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

from aotc.ir import NO_ATTRS, AotcError, Attrs, AxisMap, DType, NoAttrs, OpPattern, Type, Types, args
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import casts, elementwise_unary, gather
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array, tensor
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import requantize

NAMES: Final = ("scale", "zero_point", *q.ONTO)
ARGS: Final = (*args("x"), *q.scales(*NAMES))


class LeakyReluAttrs(Attrs):
    """Leaky ReLU of quantized numbers: x where x > 0, else alpha * x."""

    alpha: float = 0.25


def infer_one(_: Any, types: Types) -> Type:
    """Type rule of an elementwise function: the result has the type of the data, with another
    scale.
    """
    data = q.quantized_type(types[0], "x")
    q.check_pairs(types[1:], data, None, *NAMES)
    return data


def elementwise_axes(_: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise function, which maps every axis of the data and none of
    the scales.
    """
    return AxisMap((tuple(range(tensor(types[0]).rank)),))


def looked_up(x: Expr, function: Callable[[Array], Array]) -> Expr:
    """Return an 8-bit to 8-bit function of x as a lookup table, indexed by the bits of x as uint8."""
    dtype = q.dtype_of(x)
    every = np.arange(256).astype(np.uint8).view(dtype.numpy)
    return q.made(gather.take, Constant(function(every)), q.converted(x, "uint8"), axis=0)


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
    values = all_known(in_scale, in_zero_point, out_scale, out_zero_point)
    if values is None or any(v.size != 1 for v in values):
        raise AotcError(
            "qnn.scale", "a lookup table needs one constant scale and zero point for the input and one for the output"
        )
    if DType(in_dtype).bits != 8:
        raise AotcError("dtype", f"a lookup table needs an 8-bit integer input, not {in_dtype}")

    def results(every: Array) -> Array:
        real = np.asarray(floating_point_func(q.dequantized(every.view(DType(in_dtype).numpy), values[0], values[1])))
        return q.quantized(real, values[2].astype(np.float32), values[3], DType(out_dtype))

    return looked_up(input_arg, results)


def moved(x: Expr, function: Callable[[Array], Array], zero: int, onto: int) -> Expr:
    """Return x mapped by an 8-bit function that is affine except for rounding.

    If one factor between the zero points `zero` and `onto` reproduces all 256 results, the result
    is a requantization, which can be vectorized; otherwise it is a table lookup.
    """
    dtype = q.dtype_of(x)
    every = np.arange(256).astype(np.uint8).view(dtype.numpy)
    table = function(every)
    steps, offsets = table - float(onto), every - float(zero)
    inside = (offsets != 0) & (table != table.min()) & (table != table.max())
    if not inside.any():
        return looked_up(x, lambda _: table)
    # the middle of the interval of factors for which every element rounds to its result
    bounds = np.sort([(steps + half)[inside] / offsets[inside] for half in (-0.5, 0.5)], axis=0)
    factor = np.float32((bounds[0].max() + bounds[1].min()) / 2)
    made: Any = {"rounding": "FLOAT_EVEN", "out_dtype": str(DType.of(table))}
    numbers = [np.array(v, t) for v, t in ((factor, "float32"), (zero, "int32"), (1, "float32"), (onto, "int32"))]
    found = requantize.requantize.reference(requantize.RequantizeAttrs(**made), every, *numbers)
    if factor <= 0 or not np.array_equal(found, table):
        return looked_up(x, lambda _: table)
    return requantize.requantize(x, *map(Constant, numbers), **made)


def all_known(*values: Expr) -> tuple[Array, ...] | None:
    """Return the values of the expressions if all of them are constant, else None."""
    found = [q.known(v) for v in values]
    return tuple(v for v in found if v is not None) if all(v is not None for v in found) else None


def _expand(function: Callable[..., Any], real: Callable[..., Expr], a: Any, x: Expr, *pairs: Expr) -> Expr:
    q.checked(q.dtype_of(x), NAMES, *pairs)
    values, dtype = all_known(*pairs), q.dtype_of(x)
    if values is not None and dtype.bits == 8:
        return looked_up(x, lambda every: _reference(function, a, every, *values))
    wide = requantize.dequantize(x, pairs[0], pairs[1])
    return requantize.quantize(real(a, wide), pairs[2], pairs[3], out_dtype=str(dtype))


def _reference(function: Callable[..., Any], a: Any, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    work = np.float64 if DType.of(x).bits == 8 else np.float32
    with np.errstate(all="ignore"):
        real = np.asarray(function(a, q.dequantized(x, s, z, None, work)))
        return q.quantized(real, so.astype(work), zo, DType.of(x))


def _samples(attributes: type[Attrs]) -> Samples:
    every = np.arange(256).astype(np.uint8)
    onto = (requantize.scale_array(0.02), requantize.zero_array(7))
    for x, z in ((every, 0), (every.view(np.int8).reshape(4, 64), -128)):
        yield q.with_constants(attributes(), x, requantize.scale_array(0.013), requantize.zero_array(z), *onto)
    yield exact(
        attributes(),
        random_array((2, 3), "uint8") + np.uint8(1),
        requantize.scale_array(0.0371),
        requantize.zero_array(0),
        *onto,
    )


def _row(
    name: str, function: Callable[..., Any], real: Callable[..., Expr], attributes: type[Attrs] = NoAttrs, **facets: Any
) -> OpDef:
    return OpDef(
        name=f"qnn.{name}",
        attrs=attributes,
        doc="" if attributes is not NoAttrs else f"`{name}` of the numbers that integers stand for, of each element.",
        **{"args": ARGS, **facets},
        infer=infer_one,
        reference=partial(_reference, function),
        axes=elementwise_axes,
        expand=partial(_expand, function, real),
        samples=partial(_samples, attributes),
        **q.facets(OpPattern.ELEMWISE),
    )


def _plain(op: OpDef) -> OpDef:
    """Return the quantized version of an elementwise operator on real numbers."""
    return _row(op.name.rpartition(".")[2], lambda _, x: op.reference(NO_ATTRS, x), lambda _, x: q.made(op, x))


def _hard_swish_expr(_: Any, x: Expr) -> Expr:
    three, six = (q.constant(v, "float32") for v in (3, 6))
    gate = q.made(casts.clip, q.add(x, three), a_min=0.0, a_max=6.0)
    return q.div(q.mul(x, gate), six)


def _hard_swish(_: Any, x: Array) -> Array:
    return np.asarray(x * np.clip(x + np.float32(3), 0, 6) / np.float32(6))


def _leaky(a: LeakyReluAttrs, x: Array) -> Array:
    return np.where(x > 0, x, x * np.float32(a.alpha))


def _leaky_expr(a: LeakyReluAttrs, x: Expr) -> Expr:
    return q.made(casts.leaky_relu, x, alpha=a.alpha)


# abs: Relay's name, wanted as an attribute of this module
tanh, sigmoid, exp, sqrt, rsqrt, erf, log, abs = map(
    _plain,
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
hardswish = _row("hardswish", _hard_swish, _hard_swish_expr)
leaky_relu = _row("leaky_relu", _leaky, _leaky_expr, LeakyReluAttrs, args=(*args("x"), *q.scales(*q.FROM, *q.ONTO)))
