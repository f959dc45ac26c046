# SPDX-License-Identifier: Apache-2.0
"""Merge kernels that differ only in constants into one kernel that takes the constants as
arguments.

Input: kernels. Output: groups that one kernel can replace, with the arguments for each member.

    y[i * 64 + j] = x[i * 32 + j] ...     # for one layer
    y[i * 16 + j] = x[i * 48 + j] ...     # for another: n0 is 64 or 16, n1 is 32 or 48

Scales and zero points may differ, as scalar literals and as vectors with equal lanes. With
`may_differ_in_sizes`,
for which code size has priority, sizes and strides may differ too, and kernels are merged only if
an estimate (`aotc.tir.plan.memory_footprint`) says that this saves code. Integer divisors, shift
amounts and sizes of stack arrays must be equal, as compilers generate different code for them.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen, merge_spans
from aotc.tir import (
    INSTRUCTIONS,
    CodeSize,
    Kernel,
    Stmt,
    rebuild_stmt,
    remove_dead_registers,
    strip_loop_kinds,
    to_text,
)
from aotc.tir.expr import INDEX, Binary, Broadcast, Call, Const, Expr, Var, operands, with_operands
from aotc.tir.plan.memory_footprint import estimated_code_bytes
from aotc.tir.stmt import Execute, Number

#: Types of arguments, in addition to the index type.
_ARGUMENT_DTYPES: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "float32"})
#: Operations whose right operand is not replaced by an argument.
_OPS_WITH_CONSTANT_RIGHT_OPERAND: Final = frozenset(
    {"floordiv", "floormod", "truncdiv", "truncmod", "div", "shl", "shr"}
)
#: Pattern of the parameter sizes in the text of a kernel, which do not occur in the code.
_PARAM_SIZE_PATTERN: Final = re.compile(r"^(  (?:input|output|workspace) [^\[\n]*)\[\d+\]", re.MULTILINE)
_ReplaceConstant = Callable[[Const], Expr]


@frozen(eq=False)
class MergedKernel:
    """Kernel that replaces several kernels.

    kernel    kernel with a number for each constant that differs, after the numbers of the replaced kernels
    members   replaced kernels, each with the values of these added numbers
    """

    kernel: Kernel
    members: tuple[tuple[Kernel, tuple[Const, ...]], ...]


def merge_similar_kernels(
    kernels: Iterable[Kernel], costs: CodeSize, *, may_differ_in_sizes: bool = True
) -> list[MergedKernel]:
    """Return the merged kernels; kernels that are merged with no other kernel are not included.

    costs                  figures of the target by which sizes of code are estimated
    may_differ_in_sizes    True if kernels may also differ in sizes and strides, provided that the estimate
                           says that code gets smaller; False if they may differ only in values they compute
                           with, which costs no run time
    """
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.source is None and not kernel.shared and not (may_differ_in_sizes and kernel.team):
            groups.setdefault(_kernel_text_without_constants(kernel, may_differ_in_sizes), []).append(kernel)
    candidates = (_merge_kernel_group(group, costs, may_differ_in_sizes) for group in groups.values() if len(group) > 1)
    return [candidate for candidate in candidates if candidate is not None]


def _kernel_text_without_constants(kernel: Kernel, may_differ_in_sizes: bool) -> str:
    """Return the text of a kernel without the constants that may differ between merged kernels."""
    plain = replace(kernel, name="", macs=0, span=None, overlaps=(), inplace=())
    text = to_text(_replace_constants(plain, lambda const: Var(const.dtype, const.dtype), may_differ_in_sizes))
    return strip_loop_kinds(_PARAM_SIZE_PATTERN.sub(r"\1", text))


def _merge_kernel_group(group: Sequence[Kernel], costs: CodeSize, may_differ_in_sizes: bool) -> MergedKernel | None:
    """Return the merged kernel for a group with a common skeleton; None if merging does not pay
    off.
    """
    rows = [_replaceable_constants(kernel, may_differ_in_sizes) for kernel in group]
    columns = list(zip(*rows, strict=True))
    numbers: dict[tuple[Const, ...], Var] = {}
    for column in columns:
        if any(value != column[0] for value in column):
            numbers.setdefault(column, Var(f"n{len(numbers)}", column[0].dtype))
    if len(numbers) > costs.merged_arguments:
        return None
    places = iter(columns)
    merged_kernel = _replace_constants(group[0], lambda const: numbers.get(next(places), const), may_differ_in_sizes)
    # parameters that may alias in one of the calls may alias in the merged kernel
    overlaps = {pair for kernel in group for pair in kernel.overlaps}
    span = merge_spans(kernel.span for kernel in group)
    added = [_number_of_constants(var, column) for column, var in numbers.items()]
    merged_kernel = replace(
        merged_kernel, overlaps=tuple(sorted(overlaps)), span=span, numbers=(*group[0].numbers, *added)
    )
    if may_differ_in_sizes and not _is_merged_code_smaller(merged_kernel, len(numbers), group, costs):
        return None
    values = zip(*numbers, strict=True) if numbers else iter([()] * len(group))
    return MergedKernel(merged_kernel, tuple(zip(group, values, strict=True)))


def _number_of_constants(var: Var, constants: Sequence[Const]) -> Number:
    """Return the number that stands for one of several constants."""
    values = [const.value for const in constants]
    return Number(var, min(values), max(values))


def _is_merged_code_smaller(merged: Kernel, argument_count: int, group: Sequence[Kernel], costs: CodeSize) -> bool:
    """Return True if the merged kernel and the calls with arguments are estimated to be smaller
    than the original kernels.
    """
    alone = sum(estimated_code_bytes([kernel], costs) for kernel in group)
    together = costs.merged_growth * estimated_code_bytes([merged], costs)
    return alone > together + costs.argument_bytes * argument_count * len(group)


def _replaceable_constants(kernel: Kernel, may_differ_in_sizes: bool) -> list[Const]:
    """Return the constants of a kernel that may become arguments, in the order in which
    `_replace_constants` visits them.
    """
    constants: list[Const] = []

    def record_constant_and_return_it(const: Const) -> Expr:
        constants.append(const)
        return const

    _replace_constants(kernel, record_constant_and_return_it, may_differ_in_sizes)
    return constants


def _replace_constants(kernel: Kernel, replacement: _ReplaceConstant, may_differ_in_sizes: bool = True) -> Kernel:
    """Return the kernel with each constant that may become an argument replaced by the result of
    `replacement`.

    Vector constants with equal lanes are passed to `replacement` as scalars.
    """

    def replace_constants_in_expr(expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return (
                _replace_constant_lanewise(expr, replacement)
                if _is_constant_replaceable_by_argument(expr, may_differ_in_sizes)
                else expr
            )
        fixed = _operand_positions_kept_constant(expr, may_differ_in_sizes)
        fresh = tuple(o if k in fixed else replace_constants_in_expr(o) for k, o in enumerate(operands(expr)))
        # Binary is constructed directly: constant folding could reorder the operands
        return Binary(expr.op, *fresh) if isinstance(expr, Binary) else with_operands(expr, fresh)

    def replace_constants_in_operand(expr: Expr) -> Expr:
        return expr if isinstance(expr, Const) else replace_constants_in_expr(expr)

    def replace_constants_in_stmt(stmt: Stmt) -> Stmt:
        # literal operands of an instruction tell what it accesses
        replace_in_expr = replace_constants_in_operand if isinstance(stmt, Execute) else replace_constants_in_expr
        return rebuild_stmt(stmt, replace_constants_in_stmt, replace_in_expr)

    return replace(kernel, body=replace_constants_in_stmt(remove_dead_registers(kernel.body)))


def _replace_constant_lanewise(const: Const, replacement: _ReplaceConstant) -> Expr:
    """Return the replacement of a constant; for a vector constant, the replacement scalar is
    broadcast to all lanes.
    """
    if const.lanes == 1:
        return replacement(const)
    fresh = replacement(replace(const, lanes=1))
    return replace(fresh, lanes=const.lanes) if isinstance(fresh, Const) else Broadcast(fresh, const.lanes)


def _operand_positions_kept_constant(expr: Expr, may_differ_in_sizes: bool) -> Container[int]:
    """Return the positions of operands that must stay constants: immediate operands of
    instructions, and divisors, shifts.

    Vector operands are no immediates. If run time has priority, a float divisor may become an
    argument unless it is a power of two, for which compilers multiply by the inverse.
    """
    literal = {k: o for k, o in enumerate(operands(expr)) if isinstance(o, Const)}
    if isinstance(expr, Call):
        positions = [k for k, o in literal.items() if may_differ_in_sizes or o.lanes == 1]
        return positions if INSTRUCTIONS[expr.name].texts else ()
    if not isinstance(expr, Binary) or expr.op not in _OPS_WITH_CONSTANT_RIGHT_OPERAND or 1 not in literal:
        return ()
    return () if not may_differ_in_sizes and expr.op == "div" and abs(math.frexp(literal[1].value)[0]) != 0.5 else (1,)


def _is_constant_replaceable_by_argument(const: Const, may_differ_in_sizes: bool) -> bool:
    """Return True if a constant can be an argument: a single value that fits a 32-bit register."""
    dtype = const.dtype
    if (may_differ_in_sizes and const.lanes > 1) or not (
        dtype in _ARGUMENT_DTYPES or (may_differ_in_sizes and dtype == INDEX)
    ):
        return False
    return math.isfinite(const.value) if dtype.is_float else abs(const.value) < 1 << 31
