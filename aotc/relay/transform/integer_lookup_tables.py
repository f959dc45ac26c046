# SPDX-License-Identifier: Apache-2.0
"""Lookup tables of 256 entries for functions of one 8-bit value, evaluated at compile time.

call_as_table_lookup(region, call, wanted)  # quantize(f(dequantize(%x))) => take(table, %x)
try_binary_call_as_table_lookup(qnn.mul(%x, qnn.sigmoid(%x)))  # take(table, %x)
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotc.ir import DType, OpPattern
from aotc.relay.graph_api import (
    Call,
    Constant,
    Expr,
    evaluate_constant_call,
    require_op_of_call,
    tensor_type_of,
    typed_op_call,
)
from aotc.relay.op.qnn.lookup_table import apply_by_lookup_table, map_by_requantize_or_table
from aotc.relay.op.qnn.quant_params import constant_value_or_none, dequantize_array, quantize_array
from aotc.relay.transform.pass_base import as_op_call, uniform_value_of_constant
from aotc.relay.transform.quantized_region_to_integers import (
    BYTE_DTYPES,
    Array,
    IntegerRegion,
    IntegerRuleRefused,
    QuantizedExpr,
    TensorAffineType,
    call_qnn_op,
    scale_and_zero_point,
)

#: Largest number of operators that one table replaces.
_MAX_TABLED_OPERATORS: Final = 64


def all_byte_values(dtype: str) -> Constant:
    """Return a constant with all 256 values of an 8-bit type, in the order of their bit patterns."""
    return Constant(np.arange(256, dtype=np.uint8).view(DType(dtype).numpy))


def _require_elementwise_nodes_above_leaves(root: Call, leaves: set[Expr]) -> list[Call]:
    """Return the nodes between `root` and the leaves; raise IntegerRuleRefused unless they are an
    elementwise function of the leaves.
    """
    nodes: dict[Call, None] = {}
    stack: list[Expr] = [root]
    while stack:
        node = stack.pop()
        inner = as_op_call(node)
        if inner in nodes or node in leaves or isinstance(node, Constant):
            continue
        if (
            inner is None
            or require_op_of_call(inner).pattern > OpPattern.BROADCAST
            or len(nodes) >= _MAX_TABLED_OPERATORS
        ):
            raise IntegerRuleRefused("it is no function of one byte", root)
        nodes[inner] = None
        stack += inner.args
    order = list(nodes)
    shape = tensor_type_of(root).shape
    for node in order:
        # scalars among the leaves are constants: `root` is a function of one tensor
        wide = [
            a for a in node.args if not isinstance(a, Constant) and not (a in leaves and tensor_type_of(a).numel == 1)
        ]
        if tensor_type_of(node).shape != shape or any(tensor_type_of(a).shape != shape for a in wide):
            raise IntegerRuleRefused("it is no function of one byte", root)
    return order


def _evaluate_elementwise(root: Call, values: dict[Expr, Constant]) -> Constant:
    """Evaluate an elementwise expression at compile time for given constant values of its leaves."""
    members = _require_elementwise_nodes_above_leaves(root, set(values))
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
        args = [done[a] if a in done else _require_uniform_value_as_scalar(a, root) for a in node.args]
        value = evaluate_constant_call(typed_op_call(require_op_of_call(node), args, node.attrs))
        if not isinstance(value, Constant):
            raise IntegerRuleRefused("it cannot be computed at compile time", root)
        done[node] = value
    result = done[root]
    assert isinstance(result, Constant)
    return result


def _require_uniform_value_as_scalar(expr: Expr, root: Call) -> Constant:
    value = uniform_value_of_constant(expr)
    if value is None:
        raise IntegerRuleRefused("a constant has a value for each element", root)
    return Constant(np.asarray(value))


def _byte_source_and_tabulated_leaf_values(region: IntegerRegion, root: Call) -> tuple[Expr, dict[Expr, Constant]]:
    """Return the one 8-bit tensor of which `root` is an elementwise function, and the value of each
    dequantized tensor in it for all 256 values of that tensor.

    Raise IntegerRuleRefused if `root` is a function of several tensors, or of one that is not 8
    bits wide with one scale.
    """
    leaves: dict[Expr, QuantizedExpr] = {}
    visited_nodes: set[Expr] = set()
    stack: list[Expr] = [root]
    while stack:
        node = stack.pop()
        if node in visited_nodes:
            continue
        visited_nodes.add(node)
        inner = as_op_call(node)
        if inner is None or len(visited_nodes) > _MAX_TABLED_OPERATORS:
            if isinstance(node, Constant):
                continue
            raise IntegerRuleRefused("it is no function of one byte", root)
        if str(inner.op) == "qnn.dequantize":
            leaves[inner] = region.require_exact_integers(inner)
            continue
        stack += inner.args
    if not all(leaf.is_per_tensor_byte for leaf in leaves.values()):
        raise IntegerRuleRefused("its operand is no tensor of 8 bits with one scale", root)
    constants = [leaf.expr for leaf in leaves.values() if isinstance(leaf.expr, Constant)]
    if not all(map(_is_uniform_constant, constants)):
        raise IntegerRuleRefused("a constant has a value for each element", root)
    sources = {_tensor_below_lookup_tables(leaf.expr) for leaf in leaves.values()}.difference(constants)
    source = next(iter(sources), root)
    if len(sources) != 1 or tensor_type_of(source).shape != tensor_type_of(root).shape:
        raise IntegerRuleRefused("it is computed from several tensors", root)
    every = all_byte_values(str(tensor_type_of(source).dtype))
    values = {}
    for node, leaf in leaves.items():
        stored = _substitute_all_byte_values(leaf.expr, source, every)
        real = constant_value_or_none(call_qnn_op("dequantize", stored, *scale_and_zero_point(leaf.affine_type)))
        assert real is not None
        values[node] = Constant(real)
    return source, values


def _tensor_below_lookup_tables(expr: Expr) -> Expr:
    """Return the 8-bit tensor of which an integer expression is a function by lookup tables; the
    expression itself if it is no lookup.
    """
    byte_tensors = (
        x for x in reversed(_tensor_and_elementwise_sources(expr)) if tensor_type_of(x).dtype in BYTE_DTYPES
    )
    return next(byte_tensors, expr)


def call_as_table_lookup(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Return the quantized result of an elementwise function of one dequantized 8-bit tensor, as a
    table lookup.

    Each operator is evaluated in float32, as in the model: at a discontinuity, float64 could give
    another result. Raise IntegerRuleRefused if no table applies.
    """
    if not target_type.is_per_tensor or target_type.dtype not in BYTE_DTYPES:
        raise IntegerRuleRefused("its result is no tensor of 8 bits with one scale", node)
    source, leaves = _byte_source_and_tabulated_leaf_values(region, node)
    values = _evaluate_elementwise(node, leaves)
    return apply_by_lookup_table(source, lambda _: _quantize_constant(values, target_type).data)


def _quantize_constant(values: Expr, target_type: TensorAffineType) -> Constant:
    integers = constant_value_or_none(
        call_qnn_op("quantize", values, *scale_and_zero_point(target_type), out_dtype=target_type.dtype)
    )
    assert integers is not None
    return Constant(integers)


def byte_function_table(
    x: QuantizedExpr, target_type: TensorAffineType, function: Callable[[Array], Array] | None = None
) -> Array:
    """Return a 256-entry table of a real function of a quantized 8-bit value, computed in float64
    and rounded once.

    function   the function of real numbers; None for a change of quantization alone
    """
    every = all_byte_values(x.affine_type.dtype).data
    real = dequantize_array(every, x.affine_type.scale.data, x.affine_type.zero_point.data, None, np.float64)
    real = real if function is None else function(real)
    return quantize_array(
        real, target_type.scale.data.astype(np.float64), target_type.zero_point.data, DType(target_type.dtype)
    )


def rescale_integers(region: IntegerRegion, x: QuantizedExpr, target_type: TensorAffineType) -> Expr:
    """Return integers converted to another quantization: unchanged if it is equal, else by
    qnn.requantize or a table.

    A table is used for 8-bit values if float64 rounding gives other results than qnn.requantize.
    """
    if not isinstance(x.type, TensorAffineType):
        raise IntegerRuleRefused("a tuple is quantized", x.expr)
    if x.type == target_type:
        return x.expr
    if not target_type.is_per_tensor or target_type.zero_point.data.size != 1:
        raise IntegerRuleRefused("its result has scales by channel", x.expr)

    def call_requantize(data: Expr) -> Call:
        attr_values: Any = {"rounding": region.rounding, "axis": x.affine_type.axis, "out_dtype": target_type.dtype}
        return call_qnn_op(
            "requantize", data, *scale_and_zero_point(x.affine_type), *scale_and_zero_point(target_type), **attr_values
        )

    if not x.is_per_tensor_byte or target_type.dtype not in BYTE_DTYPES or region.rounding != "FLOAT_EVEN":
        return call_requantize(x.expr)
    table = byte_function_table(x, target_type)
    requantize_table = constant_value_or_none(call_requantize(all_byte_values(x.affine_type.dtype)))
    if requantize_table is not None and np.array_equal(requantize_table, table):
        return call_requantize(x.expr)
    return map_by_requantize_or_table(
        x.expr, lambda _: table, x.affine_type.zero_point_value, target_type.zero_point_value
    )


def try_binary_call_as_table_lookup(node: Call) -> Expr:
    """Return a binary quantized operator whose operands are functions of one 8-bit tensor as a
    table lookup.

    The call is returned unchanged if no table applies.
    """
    left, right = node.args[:2]
    shared = [
        x
        for x in _tensor_and_elementwise_sources(left)
        if x in _tensor_and_elementwise_sources(right) or _is_uniform_constant(right)
    ]
    shared += [x for x in _tensor_and_elementwise_sources(right) if _is_uniform_constant(left)]
    shape = tensor_type_of(node).shape
    shared = [x for x in shared if tensor_type_of(x).dtype in BYTE_DTYPES and tensor_type_of(x).shape == shape]
    if not shared:
        return node
    x = shared[-1]
    every = all_byte_values(str(tensor_type_of(x).dtype))
    operands = [_substitute_all_byte_values(arg, x, every) for arg in (left, right)]
    value = constant_value_or_none(typed_op_call(require_op_of_call(node), [*operands, *node.args[2:]], node.attrs))
    return node if value is None else apply_by_lookup_table(x, lambda _: value)


def _is_uniform_constant(expr: Expr) -> bool:
    return uniform_value_of_constant(expr) is not None


def _tensor_and_elementwise_sources(arg: Expr) -> list[Expr]:
    """Return a tensor, followed by the tensors of which it is an elementwise function, the nearest
    first.
    """
    found: list[Expr] = []
    source: Expr | None = arg
    while source is not None and not isinstance(source, Constant) and len(found) < _MAX_TABLED_OPERATORS:
        found.append(source)
        source = _only_varying_operand(source)
    return found


def _only_varying_operand(expr: Expr) -> Expr | None:
    """Return the operand of which a call is an elementwise function, if its other operands are
    known at compile time; else None.
    """
    node = as_op_call(expr)
    if node is None or not node.args:
        return None
    op, (first, *rest) = require_op_of_call(node), node.args
    if op.name == "take" and isinstance(first, Constant) and first.data.shape == (256,):
        return rest[0]
    is_unary = op.name == "cast" or (op.name.startswith("qnn.") and op.pattern <= OpPattern.BROADCAST)
    return first if is_unary and all(map(_is_uniform_constant, rest)) else None


def _substitute_all_byte_values(arg: Expr, x: Expr, all_values: Constant) -> Expr:
    """Return an operand with the 8-bit tensor `x` replaced by the constant `all_values`, which
    holds all of its values.
    """
    if arg is x:
        return all_values
    if isinstance(arg, Constant):
        return Constant(np.asarray(uniform_value_of_constant(arg))) if arg.data.shape != (256,) else arg
    node = as_op_call(arg)
    assert node is not None
    return typed_op_call(
        require_op_of_call(node), [_substitute_all_byte_values(a, x, all_values) for a in node.args], node.attrs
    )
