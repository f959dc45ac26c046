# SPDX-License-Identifier: Apache-2.0
"""Staging: an operand copied into scratch so that a tile can load it as vectors without looking at borders.

The dimensions of an operand in, a buffer, the copying statements and the operand's new form out.  Data with a
border gets zeros around it; data read with stride 2 is split into even and odd columns; weights that lie the
wrong way become panels:

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
#: A copying statement, from the operands' names of the axes outside.
CopyFn: TypeAlias = Callable[[dict[Var, Expr]], Stmt]


@frozen
class _Staged:
    """A dimension of the copy: position u holds the source's `outer + low + step * u`.

    inner    the source index without its outer part
    phases   u = q * phases + p is kept at place q of the p-th run
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
        """Elements of one phase."""
        return -(-self.extent // self.phases)


@frozen(eq=False)
class Staging:
    """The operand in scratch.

    zero     fills the scratch with what is outside of the operand, once, before everything; None if all is copied
    copy     the copying statement, given what the outer axes are called
    needs    the variables of the outer axes
    phases   runs that the columns are split into
    effort   cycles of copying one element
    """

    operand: Operand
    zero: CopyFn | None
    copy: CopyFn
    needs: frozenset[Var]
    phases: int
    effort: float

    @property
    def elements(self) -> int:
        return self.operand.buffer.size


def _outer_part(dim: Dimension, inner: set[Var]) -> tuple[Linear, Linear]:
    """The terms without inner variables, and those with them."""
    outer = {t: c for t, c in dim.index.terms.items() if not variables(t) & inner}
    moving = {t: c for t, c in dim.index.terms.items() if t not in outer}
    if any(not isinstance(t, Var) for t in moving):
        raise Irregular("an index that is not affine")
    return Linear(outer, dim.index.const), Linear(moving)


def _staged(dim: Dimension, inner: set[Var], vector: Var, ranges: Ranges, clipped: bool) -> _Staged | None:
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
    """Copy what the inner axes read of an operand.

    vector    the axis that becomes contiguous, if there is one
    slack     elements after the end that vectors may read
    dtype     the element type of the scratch
    fill      what stands around the source
    clipped   what is left of a previous copy does no harm (lanes that are never stored)
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
    """A copy of an operand with the elements of these axes in their order, and zeros outside of the operand.

    fill   what stands outside of an operand that may end on both sides
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
    return [math.prod(s.runs * s.phases for s in staged[k:]) for k in range(1, len(staged) + 1)]


def _place(s: _Staged, stride: int, vector: Var) -> Expr:
    """Where the operand finds its element, as an expression of the inner axes."""
    terms = {t: c // s.step for t, c in s.inner.terms.items()}
    if s.phases == 1:
        shift = (s.inner.const - s.low) // s.step
        return Linear(terms, shift).expr() * stride
    taps = Linear({t: c for t, c in terms.items() if t is not vector}, (s.inner.const - s.low) // s.step).expr()
    return (vector + taps // s.phases) * stride + (taps % s.phases) * (s.runs * stride)


def _copy(source: Buffer, scratch: Buffer, staged: Sequence[_Staged], fixed: Expr, names: Mapping[Var, Expr]) -> Stmt:
    """The nest that copies what is inside the source, one phase after the other; its loops get bounds of the guards."""
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
