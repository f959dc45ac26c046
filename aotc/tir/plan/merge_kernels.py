# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in numbers alone as one kernel that is told these numbers.

In: kernels.  Out: which of them one kernel can stand for, what it is told for each.

    y[i * 64 + j] = x[i * 32 + j] ...     # for one layer
    y[i * 16 + j] = x[i * 48 + j] ...     # for another: n0 is 64 or 16, n1 is 32 or 48

Sizes, strides, scales and zero points may differ; what is divided by, shifts and arrays on the stack may not:
compilers make other code of them.  Kernels are shared where that takes less code by an estimate
(`aotc.tir.plan.memory_footprint`).
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen, merge_spans
from aotc.tir import INSTRUCTIONS, Interval, Kernel, Stmt, drop_dead, rebuilt, to_text, without_kinds
from aotc.tir.expr import INDEX, Binary, Call, Const, Expr, Var, operands, with_operands
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


def shared_kernels(kernels: Iterable[Kernel]) -> list[Shared]:
    """The kernels to be made in place of several; those that stand alone are not among them."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.source is None and not kernel.team and not kernel.shared:
            groups.setdefault(_skeleton(kernel), []).append(kernel)
    found = (_shared(group) for group in groups.values() if len(group) > 1)
    return [one for one in found if one is not None]


def _skeleton(kernel: Kernel) -> str:
    """The text of a kernel without the numbers that may differ."""
    plain = replace(kernel, name="", macs=0, span=None, overlaps=(), inplace=())
    text = to_text(_with(plain, lambda const: Var(const.dtype, const.dtype)))
    return without_kinds(_SIZES.sub(r"\1", text))


def _shared(group: Sequence[Kernel]) -> Shared | None:
    """One kernel for a group with a common skeleton; None where that is no gain."""
    rows = [_constants(kernel) for kernel in group]
    columns = list(zip(*rows, strict=True))
    numbers: dict[tuple[Const, ...], Var] = {}
    for column in columns:
        if any(value != column[0] for value in column):
            numbers.setdefault(column, Var(f"n{len(numbers)}", column[0].dtype))
    if len(numbers) > MOST:
        return None
    places = iter(columns)
    made = _with(group[0], lambda const: numbers.get(next(places), const))
    # pointers that meet in one of the calls may meet
    overlaps = {pair for kernel in group for pair in kernel.overlaps}
    span = merge_spans(kernel.span for kernel in group)
    made = replace(made, overlaps=tuple(sorted(overlaps)), span=span)
    alone = sum(code_bytes([kernel]) for kernel in group)
    if alone <= GROWTH * code_bytes([made]) + NUMBER * len(numbers) * len(group):
        return None
    values = zip(*numbers, strict=True) if numbers else iter([()] * len(group))
    return Shared(made, tuple(numbers.values()), tuple(zip(group, values, strict=True)))


def _constants(kernel: Kernel) -> list[Const]:
    """The constants of a kernel that may be numbers, in the order in which `_with` meets them."""
    found: list[Const] = []

    def note(const: Const) -> Expr:
        found.append(const)
        return const

    _with(kernel, note)
    return found


def _with(kernel: Kernel, choose: _Choose) -> Kernel:
    """The kernel with other values in the place of constants that may be numbers."""

    def value(expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return choose(expr) if _is_number(expr) else expr
        fixed = _fixed(expr)
        fresh = tuple(o if k in fixed else value(o) for k, o in enumerate(operands(expr)))
        # as it stands: what is folded may have other operands first
        return Binary(expr.op, *fresh) if isinstance(expr, Binary) else with_operands(expr, fresh)

    def statement(stmt: Stmt) -> Stmt:
        return rebuilt(stmt, statement, value)

    return replace(kernel, body=statement(drop_dead(kernel.body)))


def _fixed(expr: Expr) -> Container[int]:
    """Operands that stay: literals of instructions, which may take no others, and of operations that they make fast."""
    literal = [k for k, o in enumerate(operands(expr)) if isinstance(o, Const)]
    if isinstance(expr, Call):
        return literal if INSTRUCTIONS[expr.name].texts else ()
    return [k for k in literal if k == 1] if isinstance(expr, Binary) and expr.op in _FIXED else ()


def _is_number(const: Const) -> bool:
    """Whether a kernel can be told a constant: one value that fits a register of 32 bits."""
    dtype = const.dtype
    if const.lanes > 1 or not (dtype in _WORDS or dtype == INDEX):
        return False
    return math.isfinite(const.value) if dtype.is_float else abs(const.value) < 1 << 31
