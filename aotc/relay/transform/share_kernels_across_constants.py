# SPDX-License-Identifier: Apache-2.0
"""ShareKernels: turn the scalars in which fused functions differ into parameters, so that functions
that are equal otherwise become one kernel.

%1 = fn (%p0, Primitive=1) { multiply(%p0, 0.3f) }(%x);
%2 = fn (%p0, Primitive=1) { multiply(%p0, 0.7f) }(%1)
=>
%1 = fn (%p0, %s0: float32, Primitive=1) { multiply(%p0, %s0) }(%x, 0.3f);
%2 = fn (%p0, %s0: float32, Primitive=1) { multiply(%p0, %s0) }(%1, 0.7f)

Input: typed functions, after FuseOps. Output: equivalent functions. Layers of quantized networks
often differ in nothing but scales and zero points, and every kernel takes time to schedule, to
print and to compile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import DType, Op, TensorType
from aotc.relay.expr import Call, Constant, Expr, Function, Var, require_function
from aotc.relay.graph_api import post_order, rewrite_bottom_up, structural_equal, structural_hash
from aotc.relay.transform.pass_base import FunctionPass, is_not_primitive_function
from aotc.tir import C, Target

#: Elementwise operators that compute as fast with a loaded scalar as with a literal; of `divide`,
#: only the one on floats, since compilers turn integer divisions by a literal into multiplications.
_OPS_WITH_SCALAR_PARAMETERS: Final = frozenset(
    {
        "add", "subtract", "multiply", "divide",
        "qnn.product", "qnn.multiply_add", "qnn.nearest_int8", "qnn.nearest_uint8",
    }
)  # fmt: skip
_SCALAR_DTYPES: Final = frozenset({"int32", "float32"})

#: A constant operand in a function: the call that reads it, and its position among the operands.
_ScalarOperand: TypeAlias = "tuple[Call, int]"


@dataclass(frozen=True, repr=False)
class ShareKernels(FunctionPass):
    """Pass that turns scalar constants in which fused functions differ into parameters, so that
    these functions become one; each call passes its constants as arguments, of which it has at most
    `target.code_size.merged_arguments`.
    """

    opt_level = 3

    target: Target = C

    def rewrite_function_body(self, function: Function) -> Function:
        called = (n.op for n in post_order(function, is_not_primitive_function) if isinstance(n, Call))
        primitive = dict.fromkeys(op for op in called if isinstance(op, Function) and op.is_primitive)
        shared: dict[Expr, _SharedFunction] = {}
        for group in _groups_equal_up_to_scalars(primitive):
            shared.update(_shared_function_of_each_member(group, self.target.code_size.merged_arguments))

        def append_scalar_arguments_to_call(_: Expr, new: Expr) -> Expr:
            if not isinstance(new, Call) or new.op not in shared:
                return new
            replacement = shared[new.op]
            args = (*new.args, *replacement.scalars)
            return Call(replacement.function, args, span=new.span, checked_type=new.checked_type)

        return (
            require_function(rewrite_bottom_up(function, append_scalar_arguments_to_call, is_not_primitive_function))
            if shared
            else function
        )


@dataclass(frozen=True)
class _SharedFunction:
    """Function with scalar parameters that replaces a fused function, and the arguments for these
    parameters.
    """

    function: Function
    scalars: Sequence[Constant]


def _groups_equal_up_to_scalars(functions: Iterable[Function]) -> list[list[Function]]:
    """Return the groups of at least two functions that are equal apart from scalar operands."""
    by_hash: dict[int, list[tuple[Function, list[Function]]]] = {}
    for function in functions:
        operands = _replaceable_scalar_operands(function)
        placeholders = {operand: _placeholder_constant_like_operand(operand) for operand in operands}
        skeleton = _replace_operands(function, placeholders) if placeholders else function
        groups = by_hash.setdefault(structural_hash(skeleton), [])
        equal = next((group for other, group in groups if structural_equal(other, skeleton, exact=True)), None)
        if equal is None:
            groups.append((skeleton, [function]))
        else:
            equal.append(function)
    return [group for groups in by_hash.values() for _, group in groups if len(group) > 1]


def _replaceable_scalar_operands(function: Function) -> list[_ScalarOperand]:
    """Return the constant operands in a function that may become parameters, in evaluation order."""
    return [
        (node, position)
        for node in post_order(function.body)
        if isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in _OPS_WITH_SCALAR_PARAMETERS
        for position, arg in enumerate(node.args)
        if _is_replaceable_scalar(arg, is_divisor=node.op.name == "divide" and position == 1)
    ]


def _is_replaceable_scalar(operand: Expr, is_divisor: bool) -> bool:
    """Return True for a scalar constant that a kernel reads from a parameter as fast as from a
    literal.

    Operations with the literals 0, 1 and -1 are simplified; float divisions by powers of two and
    all integer divisions by literals become multiplications.
    """
    if not isinstance(operand, Constant) or operand.data.ndim or DType.from_numpy(operand.data) not in _SCALAR_DTYPES:
        return False
    value = operand.data.item()
    if not math.isfinite(value) or value in (0, 1, -1):
        return False
    return not is_divisor or (isinstance(value, float) and abs(math.frexp(value)[0]) != 0.5)


def _constant_operand(operand: _ScalarOperand) -> Constant:
    call, position = operand
    constant = call.args[position]
    assert isinstance(constant, Constant)
    return constant


def _placeholder_constant_like_operand(operand: _ScalarOperand) -> Constant:
    """Return a constant of the operand's dtype that replaces it where functions are compared."""
    return Constant(np.full_like(_constant_operand(operand).data, 7))


def _shared_function_of_each_member(group: Sequence[Function], max_params: int) -> dict[Expr, _SharedFunction]:
    """Return the replacement of each function of a group, whose functions are equal apart from
    scalar operands; {} if the scalars are equal as well, or more than `max_params` of
    them differ.
    """
    rows = [[_constant_operand(o).data.item() for o in _replaceable_scalar_operands(f)] for f in group]
    operands = _replaceable_scalar_operands(group[0])
    # operands whose values are equal within every function become one parameter
    positions: dict[tuple[Any, ...], list[_ScalarOperand]] = {}
    for operand, column in zip(operands, zip(*rows, strict=True), strict=True):
        if any(value != column[0] for value in column):
            positions.setdefault((str(_constant_operand(operand).data.dtype), *column), []).append(operand)
    if not 0 < len(positions) <= max_params:
        return {}
    params = [Var(f"s{k}", TensorType((), dtype)) for k, (dtype, *_) in enumerate(positions)]
    replacements = {use: param for param, uses in zip(params, positions.values(), strict=True) for use in uses}
    function = _replace_operands(group[0], replacements, params)
    return {
        member: _SharedFunction(function, [Constant(np.asarray(values[k], dtype)) for dtype, *values in positions])
        for k, member in enumerate(group)
    }


def _replace_operands(
    function: Function, replacements: Mapping[_ScalarOperand, Expr], params: Sequence[Var] = ()
) -> Function:
    """Return a function with operands of calls replaced, and with `params` added to its parameters."""
    calls = {call for call, _ in replacements}

    def replace_in_call(old: Expr, new: Expr) -> Expr:
        if not isinstance(old, Call) or not isinstance(new, Call) or old not in calls:
            return new
        args = [replacements.get((old, k), arg) for k, arg in enumerate(new.args)]
        return Call(new.op, args, new.attrs, None, new.span, new.checked_type)

    body = rewrite_bottom_up(function.body, replace_in_call)
    return Function((*function.params, *params), body, function.ret_type, None, function.attrs, function.span)
