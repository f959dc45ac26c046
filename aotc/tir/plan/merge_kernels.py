# SPDX-License-Identifier: Apache-2.0
"""Merge kernels that differ only in constants into one kernel that takes the constants as
arguments.

Input: kernels. Output: groups that one kernel can replace, with the arguments for each member.

    y[i * 64 + j] = x[i * 32 + j] ...     # for one layer
    y[i * 16 + j] = x[i * 48 + j] ...     # for another: n0 is 64 or 16, n1 is 32 or 48

Scales and zero points may differ, as scalar literals and as vectors with equal lanes. With `sizes`,
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
from aotc.tir import INSTRUCTIONS, Interval, Kernel, Stmt, drop_dead, rebuilt, to_text, without_kinds
from aotc.tir.expr import INDEX, Binary, Broadcast, Call, Const, Expr, Var, operands, with_operands
from aotc.tir.plan.memory_footprint import NUMBER, code_bytes

#: Largest number of arguments of a merged kernel; more would displace its own values from
#: registers.
MOST: Final = 24
#: Estimated factor by which code grows because constants become arguments that it must load.
GROWTH: Final = 1.15
#: Types of arguments, in addition to the index type.
_WORDS: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "float32"})
#: Operations whose right operand is not replaced by an argument.
_FIXED: Final = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "div", "shl", "shr"})
#: Pattern of the parameter sizes in the text of a kernel, which do not occur in the code.
_SIZES: Final = re.compile(r"^(  (?:input|output|workspace) [^\[\n]*)\[\d+\]", re.MULTILINE)
_Choose = Callable[[Const], Expr]


@frozen(eq=False)
class Shared:
    """Kernel that replaces several kernels.

    kernel    body that refers to the variables `numbers`, which become its arguments
    numbers   integer and float parameters
    members   replaced kernels, each with the values of `numbers`
    """

    kernel: Kernel
    numbers: tuple[Var, ...]
    members: tuple[tuple[Kernel, tuple[Const, ...]], ...]

    def ranges(self) -> dict[Var, Interval]:
        """Return the least and the greatest value of each constant that became an argument of the
        merged kernel.
        """
        columns = zip(*(row for _, row in self.members), strict=True)
        values = ([const.value for const in column] for column in columns)
        return {number: (min(found), max(found)) for number, found in zip(self.numbers, values, strict=True)}


def shared_kernels(kernels: Iterable[Kernel], *, sizes: bool = True) -> list[Shared]:
    """Return the merged kernels; kernels that are merged with no other kernel are not included.

    sizes   True if kernels may also differ in sizes and strides, provided that the estimate says
            that code gets smaller; False if they may differ only in values they compute with, which
            costs no run time
    """
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.source is None and not kernel.shared and not (sizes and kernel.team):
            groups.setdefault(_skeleton(kernel, sizes), []).append(kernel)
    found = (_shared(group, sizes) for group in groups.values() if len(group) > 1)
    return [one for one in found if one is not None]


def _skeleton(kernel: Kernel, sizes: bool) -> str:
    """Return the text of a kernel without the constants that may differ between merged kernels."""
    plain = replace(kernel, name="", macs=0, span=None, overlaps=(), inplace=())
    text = to_text(_with(plain, lambda const: Var(const.dtype, const.dtype), sizes))
    return without_kinds(_SIZES.sub(r"\1", text))


def _shared(group: Sequence[Kernel], sizes: bool) -> Shared | None:
    """Return the merged kernel for a group with a common skeleton; None if merging does not pay
    off.
    """
    rows = [_constants(kernel, sizes) for kernel in group]
    columns = list(zip(*rows, strict=True))
    numbers: dict[tuple[Const, ...], Var] = {}
    for column in columns:
        if any(value != column[0] for value in column):
            numbers.setdefault(column, Var(f"n{len(numbers)}", column[0].dtype))
    if len(numbers) > MOST:
        return None
    places = iter(columns)
    made = _with(group[0], lambda const: numbers.get(next(places), const), sizes)
    # parameters that may alias in one of the calls may alias in the merged kernel
    overlaps = {pair for kernel in group for pair in kernel.overlaps}
    span = merge_spans(kernel.span for kernel in group)
    made = replace(made, overlaps=tuple(sorted(overlaps)), span=span)
    if sizes and not _is_smaller(made, len(numbers), group):
        return None
    values = zip(*numbers, strict=True) if numbers else iter([()] * len(group))
    return Shared(made, tuple(numbers.values()), tuple(zip(group, values, strict=True)))


def _is_smaller(made: Kernel, numbers: int, group: Sequence[Kernel]) -> bool:
    """Return True if the merged kernel and the calls with arguments are estimated to be smaller
    than the original kernels.
    """
    alone = sum(code_bytes([kernel]) for kernel in group)
    return alone > GROWTH * code_bytes([made]) + NUMBER * numbers * len(group)


def _constants(kernel: Kernel, sizes: bool) -> list[Const]:
    """Return the constants of a kernel that may become arguments, in the order in which `_with`
    visits them.
    """
    found: list[Const] = []

    def note(const: Const) -> Expr:
        found.append(const)
        return const

    _with(kernel, note, sizes)
    return found


def _with(kernel: Kernel, choose: _Choose, sizes: bool = True) -> Kernel:
    """Return the kernel with each constant that may become an argument replaced by the result of
    `choose`.

    Vector constants with equal lanes are passed to `choose` as scalars.
    """

    def value(expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return _chosen(expr, choose) if _is_number(expr, sizes) else expr
        fixed = _fixed(expr, sizes)
        fresh = tuple(o if k in fixed else value(o) for k, o in enumerate(operands(expr)))
        # Binary is constructed directly: constant folding could reorder the operands
        return Binary(expr.op, *fresh) if isinstance(expr, Binary) else with_operands(expr, fresh)

    def statement(stmt: Stmt) -> Stmt:
        return rebuilt(stmt, statement, value)

    return replace(kernel, body=statement(drop_dead(kernel.body)))


def _chosen(const: Const, choose: _Choose) -> Expr:
    """Return the replacement of a constant; for a vector constant, the replacement scalar is
    broadcast to all lanes.
    """
    if const.lanes == 1:
        return choose(const)
    fresh = choose(replace(const, lanes=1))
    return replace(fresh, lanes=const.lanes) if isinstance(fresh, Const) else Broadcast(fresh, const.lanes)


def _fixed(expr: Expr, sizes: bool) -> Container[int]:
    """Return the positions of operands that must stay constants: immediate operands of
    instructions, and divisors, shifts.

    Vector operands are no immediates. If run time has priority, a float divisor may become an
    argument unless it is a power of two, for which compilers multiply by the inverse.
    """
    literal = {k: o for k, o in enumerate(operands(expr)) if isinstance(o, Const)}
    if isinstance(expr, Call):
        own = [k for k, o in literal.items() if sizes or o.lanes == 1]
        return own if INSTRUCTIONS[expr.name].texts else ()
    if not isinstance(expr, Binary) or expr.op not in _FIXED or 1 not in literal:
        return ()
    return () if not sizes and expr.op == "div" and abs(math.frexp(literal[1].value)[0]) != 0.5 else (1,)


def _is_number(const: Const, sizes: bool) -> bool:
    """Return True if a constant can be an argument: a single value that fits a 32-bit register."""
    dtype = const.dtype
    if (sizes and const.lanes > 1) or not (dtype in _WORDS or (sizes and dtype == INDEX)):
        return False
    return math.isfinite(const.value) if dtype.is_float else abs(const.value) < 1 << 31
