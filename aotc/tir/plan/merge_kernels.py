# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in numbers alone as one kernel that is told these numbers.

In: kernels.  Out: which of them one kernel can stand for, what it is told for each.

    y[i * 64 + j] = x[i * 32 + j] ...     # for one layer
    y[i * 16 + j] = x[i * 48 + j] ...     # for another: n0 is 64 or 16, n1 is 32 or 48

Scales and zero points may differ, as literals of one number and of vectors of one number; with `sizes`, where size of
code comes first, sizes and strides may, too, and kernels are shared where that takes less code by an estimate
(`aotc.tir.plan.memory_footprint`).  Divisors of integers, shifts and arrays on the stack may not differ: compilers make
other code of them.
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

#: Numbers that a kernel is told, at most: beyond, they crowd its own values out of registers.
MOST: Final = 24
#: How much larger code becomes by numbers that it must load.
GROWTH: Final = 1.15
#: Types of numbers, beside those of indices.
_WORDS: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "float32"})
#: Operations whose right side stays as it is.
_FIXED: Final = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "div", "shl", "shr"})
#: What the text of a kernel says of the sizes of its parameters, that does not show in code.
_SIZES: Final = re.compile(r"^(  (?:input|output|workspace) [^\[\n]*)\[\d+\]", re.MULTILINE)
_Choose = Callable[[Const], Expr]


@frozen(eq=False)
class Shared:
    """One kernel for several.

    kernel    computes with `numbers`, variables that nothing declares
    members   what it stands for, each with the values of these numbers
    """

    kernel: Kernel
    numbers: tuple[Var, ...]
    members: tuple[tuple[Kernel, tuple[Const, ...]], ...]

    def ranges(self) -> dict[Var, Interval]:
        """The least and the greatest value of each number."""
        columns = zip(*(row for _, row in self.members), strict=True)
        values = ([const.value for const in column] for column in columns)
        return {number: (min(found), max(found)) for number, found in zip(self.numbers, values, strict=True)}


def shared_kernels(kernels: Iterable[Kernel], *, sizes: bool = True) -> list[Shared]:
    """The kernels to be made in place of several; those that stand alone are not among them.

    sizes    whether kernels may differ in sizes and strides, too, where the estimate says that it is less code; else
             they differ in the values that they compute with, which takes no time
    """
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.source is None and not kernel.shared and not (sizes and kernel.team):
            groups.setdefault(_skeleton(kernel, sizes), []).append(kernel)
    found = (_shared(group, sizes) for group in groups.values() if len(group) > 1)
    return [one for one in found if one is not None]


def _skeleton(kernel: Kernel, sizes: bool) -> str:
    """The text of a kernel without the numbers that may differ."""
    plain = replace(kernel, name="", macs=0, span=None, overlaps=(), inplace=())
    text = to_text(_with(plain, lambda const: Var(const.dtype, const.dtype), sizes))
    return without_kinds(_SIZES.sub(r"\1", text))


def _shared(group: Sequence[Kernel], sizes: bool) -> Shared | None:
    """One kernel for a group with a common skeleton; None where that is no gain."""
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
    # pointers that meet in one of the calls may meet
    overlaps = {pair for kernel in group for pair in kernel.overlaps}
    span = merge_spans(kernel.span for kernel in group)
    made = replace(made, overlaps=tuple(sorted(overlaps)), span=span)
    if sizes and not _is_smaller(made, len(numbers), group):
        return None
    values = zip(*numbers, strict=True) if numbers else iter([()] * len(group))
    return Shared(made, tuple(numbers.values()), tuple(zip(group, values, strict=True)))


def _is_smaller(made: Kernel, numbers: int, group: Sequence[Kernel]) -> bool:
    """Whether one kernel, and calls with numbers, are less code than the kernels that it stands for."""
    alone = sum(code_bytes([kernel]) for kernel in group)
    return alone > GROWTH * code_bytes([made]) + NUMBER * numbers * len(group)


def _constants(kernel: Kernel, sizes: bool) -> list[Const]:
    """The constants of a kernel that may be numbers, in the order in which `_with` meets them."""
    found: list[Const] = []

    def note(const: Const) -> Expr:
        found.append(const)
        return const

    _with(kernel, note, sizes)
    return found


def _with(kernel: Kernel, choose: _Choose, sizes: bool = True) -> Kernel:
    """The kernel with other values in the place of constants that may be numbers; `choose` is given scalars."""

    def value(expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return _chosen(expr, choose) if _is_number(expr, sizes) else expr
        fixed = _fixed(expr, sizes)
        fresh = tuple(o if k in fixed else value(o) for k, o in enumerate(operands(expr)))
        # as it stands: what is folded may have other operands first
        return Binary(expr.op, *fresh) if isinstance(expr, Binary) else with_operands(expr, fresh)

    def statement(stmt: Stmt) -> Stmt:
        return rebuilt(stmt, statement, value)

    return replace(kernel, body=statement(drop_dead(kernel.body)))


def _chosen(const: Const, choose: _Choose) -> Expr:
    """What takes the place of a constant: a vector of one number has that number in all lanes."""
    if const.lanes == 1:
        return choose(const)
    fresh = choose(replace(const, lanes=1))
    return replace(fresh, lanes=const.lanes) if isinstance(fresh, Const) else Broadcast(fresh, const.lanes)


def _fixed(expr: Expr, sizes: bool) -> Container[int]:
    """Operands that stay: literals of instructions, which may take no others, and of operations that they make fast.

    Vectors are no literals of instructions, and where time comes first, divisions by floats are instructions unless the
    divisor is a power of two, which compilers multiply by the inverse of.
    """
    literal = {k: o for k, o in enumerate(operands(expr)) if isinstance(o, Const)}
    if isinstance(expr, Call):
        own = [k for k, o in literal.items() if sizes or o.lanes == 1]
        return own if INSTRUCTIONS[expr.name].texts else ()
    if not isinstance(expr, Binary) or expr.op not in _FIXED or 1 not in literal:
        return ()
    return () if not sizes and expr.op == "div" and abs(math.frexp(literal[1].value)[0]) != 0.5 else (1,)


def _is_number(const: Const, sizes: bool) -> bool:
    """Whether a kernel can be told a constant: one value that fits a register of 32 bits."""
    dtype = const.dtype
    if (sizes and const.lanes > 1) or not (dtype in _WORDS or (sizes and dtype == INDEX)):
        return False
    return math.isfinite(const.value) if dtype.is_float else abs(const.value) < 1 << 31
