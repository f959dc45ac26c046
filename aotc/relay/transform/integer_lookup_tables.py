# SPDX-License-Identifier: Apache-2.0
"""Lookup tables of 256 entries for functions of one 8-bit value, evaluated at compile time.

tabled(region, call, wanted)       # quantize(f(dequantize(%x))) => take(table, %x)
tabulated(qnn.mul(%x, qnn.sigmoid(%x)))            # take(table, %x)
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotc.ir import DType, OpPattern
from aotc.relay.graph_api import Call, Constant, Expr, call, evaluate_call, op_of, tensor_type_of
from aotc.relay.op.qnn.lookup_table import looked_up, moved
from aotc.relay.op.qnn.quant_params import dequantized, known, quantized
from aotc.relay.transform.affine_quantization import (
    NARROW,
    Array,
    Integers,
    Refused,
    Region,
    TensorAffineType,
    pair,
    qnn,
)
from aotc.relay.transform.pass_base import op_call, uniform_value

#: Largest number of operators that one table replaces.
_MOST: Final = 64


def every_byte(dtype: str) -> Constant:
    """Return a constant with all 256 values of an 8-bit type, in the order of their bit patterns."""
    return Constant(np.arange(256, dtype=np.uint8).view(DType(dtype).numpy))


def _members(root: Call, leaves: set[Expr]) -> list[Call]:
    """Return the nodes between `root` and the leaves; raise Refused unless they are an elementwise
    function of the leaves.
    """
    found: dict[Call, None] = {}
    stack: list[Expr] = [root]
    while stack:
        node = stack.pop()
        inner = op_call(node)
        if inner in found or node in leaves or isinstance(node, Constant):
            continue
        if inner is None or op_of(inner).pattern > OpPattern.BROADCAST or len(found) >= _MOST:
            raise Refused("it is no function of one byte", root)
        found[inner] = None
        stack += inner.args
    order = list(found)
    shape = tensor_type_of(root).shape
    for node in order:
        wide = [a for a in node.args if not isinstance(a, Constant)]
        if tensor_type_of(node).shape != shape or any(tensor_type_of(a).shape != shape for a in wide):
            raise Refused("it is no function of one byte", root)
    return order


def _evaluated(root: Call, values: dict[Expr, Constant]) -> Constant:
    """Evaluate an elementwise expression at compile time for given constant values of its leaves."""
    members = _members(root, set(values))
    done: dict[Expr, Any] = dict(values)
    pending: list[Expr] = [root]
    while pending:
        node = pending[-1]
        assert isinstance(node, Call)
        missing = [a for a in node.args if a in members and a not in done]
        if missing:
            pending += missing
            continue
        pending.pop()
        args = [done[a] if a in done else _single(a, root) for a in node.args]
        value = evaluate_call(call(op_of(node), args, node.attrs))
        if not isinstance(value, Constant):
            raise Refused("it cannot be computed at compile time", root)
        done[node] = value
    result = done[root]
    assert isinstance(result, Constant)
    return result


def _single(expr: Expr, root: Call) -> Constant:
    value = uniform_value(expr)
    if value is None:
        raise Refused("a constant has a value for each element", root)
    return Constant(np.asarray(value))


def _leaf(region: Region, root: Call) -> tuple[set[Expr], Integers]:
    """Return the dequantized tensors from which `root` is computed, and the one 8-bit tensor of
    which they are made.

    Raise Refused if they come from several tensors, or from one that is not 8 bits wide with one
    scale.
    """
    leaves: dict[Expr, Integers] = {}
    seen: set[Expr] = set()
    stack: list[Expr] = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        inner = op_call(node)
        if inner is None or len(seen) > _MOST:
            if isinstance(node, Constant):
                continue
            raise Refused("it is no function of one byte", root)
        if str(inner.op) == "qnn.dequantize":
            leaves[inner] = region.exact(inner)
            continue
        stack += inner.args
    found = list(leaves.values())
    if not found or any(f.expr is not found[0].expr or f.type != found[0].type for f in found):
        raise Refused("it is computed from several tensors", root)
    if not found[0].is_narrow:
        raise Refused("its operand is no tensor of 8 bits with one scale", root)
    return set(leaves), found[0]


def tabled(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Return the quantized result of an elementwise function of one dequantized 8-bit tensor, as a
    table lookup.

    Each operator is evaluated in float32, as in the model: at a discontinuity, float64 could give
    another result. Raise Refused if no table applies.
    """
    if not wanted.is_single or wanted.dtype not in NARROW:
        raise Refused("its result is no tensor of 8 bits with one scale", node)
    leaves, x = _leaf(region, node)
    real = known(qnn("dequantize", every_byte(x.tensor.dtype), *pair(x.tensor)))
    assert real is not None
    values = _evaluated(node, dict.fromkeys(leaves, Constant(real)))
    return looked_up(x.expr, lambda _: _stored(values, wanted).data)


def _stored(values: Expr, wanted: TensorAffineType) -> Constant:
    found = known(qnn("quantize", values, *pair(wanted), out_dtype=wanted.dtype))
    assert found is not None
    return Constant(found)


def mapped(x: Integers, wanted: TensorAffineType, function: Callable[[Array], Array] | None = None) -> Array:
    """Return a 256-entry table of a real function of a quantized 8-bit value, computed in float64
    and rounded once.

    function   the function of real numbers; None for a change of quantization alone
    """
    every = every_byte(x.tensor.dtype).data
    real = dequantized(every, x.tensor.scale.data, x.tensor.zero_point.data, None, np.float64)
    real = real if function is None else function(real)
    return quantized(real, wanted.scale.data.astype(np.float64), wanted.zero_point.data, DType(wanted.dtype))


def rescaled(region: Region, x: Integers, wanted: TensorAffineType) -> Expr:
    """Return integers converted to another quantization: unchanged if it is equal, else by
    qnn.requantize or a table.

    A table is used for 8-bit values if float64 rounding gives other results than qnn.requantize.
    """
    if not isinstance(x.type, TensorAffineType):
        raise Refused("a tuple is quantized", x.expr)
    if x.type == wanted:
        return x.expr
    if not wanted.is_single or wanted.zero_point.data.size != 1:
        raise Refused("its result has scales by channel", x.expr)

    def by_requantize(data: Expr) -> Call:
        more: Any = {"rounding": region.rounding, "axis": x.tensor.axis, "out_dtype": wanted.dtype}
        return qnn("requantize", data, *pair(x.tensor), *pair(wanted), **more)

    if not x.is_narrow or wanted.dtype not in NARROW or region.rounding != "FLOAT_EVEN":
        return by_requantize(x.expr)
    table = mapped(x, wanted)
    made = known(by_requantize(every_byte(x.tensor.dtype)))
    if made is not None and np.array_equal(made, table):
        return by_requantize(x.expr)
    return moved(x.expr, lambda _: table, x.tensor.zero, wanted.zero)


def tabulated(node: Call) -> Expr:
    """Return a binary quantized operator whose operands are functions of one 8-bit tensor as a
    table lookup.

    The call is returned unchanged if no table applies.
    """
    left, right = node.args[:2]
    shared = [x for x in _origins(left) if x in _origins(right) or _is_single(right)]
    shared += [x for x in _origins(right) if _is_single(left)]
    if not shared:
        return node
    x, ty = shared[-1], tensor_type_of(shared[-1])
    if ty.dtype not in NARROW or ty.shape != tensor_type_of(node).shape:
        return node
    every = every_byte(str(ty.dtype))
    operands = [_over(arg, x, every) for arg in (left, right)]
    value = known(call(op_of(node), [*operands, *node.args[2:]], node.attrs))
    return node if value is None else looked_up(x, lambda _: value)


def _is_single(expr: Expr) -> bool:
    return uniform_value(expr) is not None


def _origins(arg: Expr) -> list[Expr]:
    """Return a tensor, followed by the tensors of which it is an elementwise function."""
    if isinstance(arg, Constant):
        return []
    node = op_call(arg)
    if node is None:
        return [arg]
    name, (first, *rest) = op_of(node).name, node.args or (node,)
    if name == "cast":
        return [arg, first]
    if name == "take" and isinstance(first, Constant) and first.data.shape == (256,):
        return [arg, *_origins(rest[0])]
    unary = name.startswith("qnn.") and op_of(node).pattern <= OpPattern.BROADCAST
    return [arg, first] if unary and all(isinstance(a, Constant) for a in rest) else [arg]


def _over(arg: Expr, x: Expr, every: Constant) -> Expr:
    """Return an operand with the 8-bit tensor `x` replaced by the constant `every`, which holds all
    of its values.
    """
    if arg is x:
        return every
    if isinstance(arg, Constant):
        return Constant(np.asarray(uniform_value(arg))) if arg.data.shape != (256,) else arg
    node = op_call(arg)
    assert node is not None
    return call(op_of(node), [_over(a, x, every) for a in node.args], node.attrs)
