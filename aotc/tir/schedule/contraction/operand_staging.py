# SPDX-License-Identifier: Apache-2.0
"""Operand staging: copy an operand to scratch so that a tile can load it as vectors without bounds
checks.

Input: the dimensions of an operand. Output: a buffer, the statements that fill it, and the
operand's new address. Data with a border gets zeros around it; data read with stride 2 is split
into even and odd columns; weights that are contiguous along another axis are transposed into
panels:

    stage(a, dims, inner=(ow, oh, ic, kh, kw), vector=ow, ...)     # scratch[ic][h + 2][w + 2]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, Stmt, Store, Var, all_of, as_expr, cast, filled, private_buffer, substitute, te
from aotc.tir.schedule.contraction.index_space import Dimension, Irregular, Operand, flat, used, variables
from aotc.tir.simplify import Linear, Ranges, bounds
from aotc.tir.stmt import Block, If, loops

NONE: Final = Var("none")
#: Function that returns the copy statements, given the values of the operand's variables of outer
#: axes.
CopyFn: TypeAlias = Callable[[dict[Var, Expr]], Stmt]


@frozen
class _Staged:
    """A dimension of an operand's scratch copy: position u holds the source element at `outer + low
    + step * u`.

    outer               terms of the source index that are constant during the copy
    inner               the other terms of the source index
    low, step, extent   first value, distance and number of the values of `inner`
    source              the dimension of the source
    phases              position u = q * phases + p is stored at index q of the p-th run (2 phases
                        for stride 2)
    """

    outer: Linear
    inner: Linear
    low: int
    step: int
    extent: int
    source: Dimension
    phases: int = 1

    @property
    def runs(self) -> int:
        """Elements of one phase of the copy."""
        return -(-self.extent // self.phases)


@frozen(eq=False)
class Staging:
    """The copy of an operand in scratch.

    operand   the copy, with its address
    zero      fills the scratch with the value outside of the operand, once, before all loops; None
              if every element is copied
    copy      returns the copy statements, given the values of the outer axes' variables
    needs     the variables of the outer axes
    phases    number of interleaved runs that the columns are split into
    effort    cycles per copied element
    """

    operand: Operand
    zero: CopyFn | None
    copy: CopyFn
    needs: frozenset[Var]
    phases: int
    effort: float

    @property
    def elements(self) -> int:
        """Elements of the scratch buffer."""
        return self.operand.buffer.size


def _outer_part(dim: Dimension, inner: set[Var]) -> tuple[Linear, Linear]:
    """Split an index into the terms without inner variables and those with them; raise Irregular if
    these are not affine.
    """
    outer = {t: c for t, c in dim.index.terms.items() if not variables(t) & inner}
    moving = {t: c for t, c in dim.index.terms.items() if t not in outer}
    if any(not isinstance(t, Var) for t in moving):
        raise Irregular("an index that is not affine")
    return Linear(outer, dim.index.const), Linear(moving)


def _staged(dim: Dimension, inner: set[Var], vector: Var, ranges: Ranges, clipped: bool) -> _Staged | None:
    """Return a dimension of an operand's scratch copy, None if it does not depend on inner axes.

    Raise Irregular if the operand cannot be copied.
    """
    outer, moving = _outer_part(dim, inner)
    if not moving.terms:
        if not dim.inside:
            raise Irregular("a border across an outer axis")
        return None
    if outer.terms and not dim.inside and not clipped:
        raise Irregular("a border that moves with an outer axis")
    low, high = bounds(moving.expr(), ranges)
    step = math.gcd(*moving.terms.values())
    extent = (int(high) - int(low)) // step + 1
    phases = abs(moving.terms.get(vector, 0)) // step or 1
    if moving.terms.get(vector, 1) < 0:
        raise Irregular("data read backwards")
    return _Staged(outer, moving, int(low), step, extent, dim, phases)


def stage(
    name: str,
    buffer: Buffer,
    dims: Sequence[Dimension],
    *,
    inner: set[Var],
    ranges: Ranges,
    dtype: DType,
    vector: Var = NONE,
    slack: int = 0,
    clipped: bool = False,
    fill: int = 0,
) -> Staging:
    """Return a copy of the part of an operand that inner axes read; raise Irregular if the operand
    cannot be copied.

    name           name of the scratch buffer
    buffer, dims   the operand
    inner          variables of the axes that the copy covers
    ranges         ranges of variables
    dtype          element type of the scratch buffer
    vector         the axis that becomes contiguous, if there is one
    slack          elements beyond the end that vectors may read
    clipped        elements left from a previous copy do no harm (lanes that are never stored)
    fill           value outside of the source
    """
    staged = [s for d in dims if (s := _staged(d, inner, vector, ranges, clipped)) is not None]
    if not staged:
        raise Irregular("nothing but one element at a time")
    staged.sort(key=lambda s: vector in s.inner.terms)
    size = math.prod(s.runs * s.phases for s in staged)
    scratch = private_buffer(name, dtype, size + slack)
    index = sum(map(_place, staged, _strides(staged), repeat(vector)), as_expr(0))
    fixed = sum((d.stride * _outer_part(d, inner)[0].expr() for d in dims), as_expr(0))
    copy = partial(_copy, buffer, scratch, staged, fixed)
    needs = frozenset(v for d in dims for v in variables(*_outer_part(d, inner)[0].terms))
    whole = slack == 0 and all(d.inside for d in dims) and all(s.extent == s.runs * s.phases for s in staged)
    zero = None if whole else lambda _: filled(scratch, fill)
    last = staged[-1]
    effort = 0.25 if last.source.stride * last.step * last.phases == 1 else 1.0
    return Staging(Operand(scratch, index), zero, copy, needs, last.phases, effort)


def packed(
    name: str, buffer: Buffer, dims: Sequence[Dimension], axes: Sequence[te.Axis], fill: int | None = None
) -> Staging:
    """Return a copy of an operand with the elements of `axes` in row-major order, and `fill` (0)
    outside of the operand.

    fill   value outside of an operand that may be read out of range at both ends; None if at its
           end only
    """
    place, extents = [Var(var.name) for var, _ in axes], [n for _, n in axes]
    scratch = private_buffer(name, buffer.dtype, math.prod(extents))
    fixed, whole = flat(dims).expr(), all(d.inside for d in dims)
    own: dict[Var, Expr] = dict(zip((var for var, _ in axes), place, strict=True))

    def copy(names: dict[Var, Expr]) -> Stmt:
        values = {**names, **own}
        outer = [d for d in dims if not d.inside]
        indices = [substitute(d.index.expr(), values) for d in outer]
        tests = [index < d.extent for index, d in zip(indices, outer, strict=True)]
        tests += [index >= 0 for index in indices if fill is not None]
        value = Load(buffer, substitute(fixed, values))
        body: Stmt = Store(scratch, te.flat_index(extents, place), value)
        body = body if whole else If(all_of(*tests), body)
        return loops(zip(place, extents, strict=True), body, "independent")

    zero: CopyFn | None = None if whole else lambda _: filled(scratch, fill or 0)
    needs = frozenset(used(dims)) - own.keys()
    operand = Operand(scratch, te.flat_index(extents, [var for var, _ in axes]))
    return Staging(operand, zero, copy, needs, 1, 1.0)


def _strides(staged: Sequence[_Staged]) -> list[int]:
    """Return the distance of neighbors in the scratch copy along each of its dimensions."""
    return [math.prod(s.runs * s.phases for s in staged[k:]) for k in range(1, len(staged) + 1)]


def _place(s: _Staged, stride: int, vector: Var) -> Expr:
    """Return the contribution of one dimension to an operand's address in its scratch copy."""
    terms = {t: c // s.step for t, c in s.inner.terms.items()}
    if s.phases == 1:
        shift = (s.inner.const - s.low) // s.step
        return Linear(terms, shift).expr() * stride
    taps = Linear({t: c for t, c in terms.items() if t is not vector}, (s.inner.const - s.low) // s.step).expr()
    return (vector + taps // s.phases) * stride + (taps % s.phases) * (s.runs * stride)


def _copy(source: Buffer, scratch: Buffer, staged: Sequence[_Staged], fixed: Expr, names: Mapping[Var, Expr]) -> Stmt:
    """Return the loops that copy the elements of an operand inside its source, phase by phase.

    Guards keep indices in range; later simplification turns them into loop bounds.
    """
    axes = [Var("s") for _ in staged]
    stmts: list[Stmt] = []
    for phase in range(staged[-1].phases):
        index: Expr = as_expr(0)
        at: Expr = substitute(fixed, names)
        guards: list[Expr] = []
        shifts = [0] * (len(staged) - 1) + [phase]
        for s, stride, var, shift in zip(staged, _strides(staged), axes, shifts, strict=True):
            index = index + var * stride + shift * s.runs
            place = s.low + s.step * (var * s.phases + shift)
            at = at + place * s.source.stride
            if not s.source.inside:
                place = substitute(s.outer.expr(), names) + place
                guards += [place >= 0, place < s.source.extent]
        body: Stmt = Store(scratch, index, cast(Load(source, at), scratch.dtype))
        body = If(all_of(*guards), body) if guards else body
        counts = (-(-(s.extent - shift) // s.phases) for s, shift in zip(staged, shifts, strict=True))
        stmts.append(loops(zip(axes, counts, strict=True), body, "independent"))
    return Block(stmts)
