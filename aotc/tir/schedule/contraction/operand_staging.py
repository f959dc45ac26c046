# SPDX-License-Identifier: Apache-2.0
"""Operand staging: copy an operand to scratch so that a tile can load it as vectors without bounds
checks.

Input: the dimensions of an operand. Output: a buffer, the statements that fill it, and the
operand's new address. Data with a border gets zeros around it; data read with stride 2 is split
into even and odd columns; weights that are contiguous along another axis are transposed into
panels:

    stage_operand_in_scratch(a, dims, inner=(ow, oh, ic, kh, kw), vector=ow, ...)  # scratch[ic][h + 2][w + 2]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Stmt,
    Var,
    as_expr,
    cast,
    fill_buffer_loop,
    new_private_scratch_buffer,
    substitute,
    te,
)
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    AddressedOperand,
    OperandDimension,
    row_major_address,
    variables_in,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.operand_packing import CopyShare, PackedOperand
from aotc.tir.simplify import LinearForm, Ranges, bounds
from aotc.tir.stmt import Block

NO_VECTOR_VAR: Final = Var("none")
#: Function that returns the copy statements, given the values of the operand's variables of outer
#: axes.
CopyFn: TypeAlias = Callable[[dict[Var, Expr]], Stmt]


@frozen
class _StagedDimension:
    """A dimension of an operand's scratch copy: position u holds the source element at `outer + low
    + step * u`.

    outer               terms of the source index that are constant during the copy
    inner               the other terms of the source index
    low, step, extent   first value, distance and number of the values of `inner`
    source              the dimension of the source
    phases              position u = q * phases + p is stored at index q of the p-th run (2 phases
                        for stride 2)
    """

    outer: LinearForm
    inner: LinearForm
    low: int
    step: int
    extent: int
    source: OperandDimension
    phases: int = 1

    @property
    def elements_per_phase(self) -> int:
        """Elements of one phase of the copy."""
        return -(-self.extent // self.phases)


@frozen
class StridedWalk:
    """Accesses to elements at a constant distance, before the next elements of the same cache lines are
    accessed.

    elements       number of accesses
    stride_bytes   distance of the elements
    """

    elements: int
    stride_bytes: int


@frozen(eq=False)
class StagedOperand:
    """The copy of an operand in scratch.

    operand   the copy, with its address
    zero      fills the scratch with the value outside of the operand, once, before all loops; None
              if every element is copied
    copy      returns the copy statements, given the values of the outer axes' variables
    needs     the variables of the outer axes
    phases    number of interleaved runs that the columns are split into
    effort    cycles per copied element
    walk      how the copy reads the source; None if its reads are adjacent
    """

    operand: AddressedOperand
    zero: CopyFn | None
    copy: CopyFn
    needs: frozenset[Var]
    phases: int
    effort: float
    walk: StridedWalk | None = None

    @property
    def scratch_elements(self) -> int:
        """Elements of the scratch buffer."""
        return self.operand.buffer.size


def _split_index_by_inner_vars(dim: OperandDimension, inner: set[Var]) -> tuple[LinearForm, LinearForm]:
    """Split an index into the terms without inner variables and those with them."""
    outer = {t: c for t, c in dim.index.terms.items() if not variables_in(t) & inner}
    moving = {t: c for t, c in dim.index.terms.items() if t not in outer}
    return LinearForm(outer, dim.index.const), LinearForm(moving)


def _can_copy_dimension(dim: OperandDimension, inner: set[Var], vector_var: Var, is_clipped: bool) -> bool:
    """Return True if a dimension of an operand can be copied to scratch: affine, not read backwards,
    and without a border that depends on outer axes.
    """
    outer, moving = _split_index_by_inner_vars(dim, inner)
    if not all(isinstance(t, Var) for t in moving.terms) or moving.terms.get(vector_var, 1) < 0:
        return False
    return dim.inside or (bool(moving.terms) and (not outer.terms or is_clipped))


def _staged_dimension_of_scratch_copy(
    dim: OperandDimension, inner: set[Var], vector_var: Var, ranges: Ranges
) -> _StagedDimension | None:
    """Return a dimension of an operand's scratch copy, None if it does not depend on inner axes."""
    outer, moving = _split_index_by_inner_vars(dim, inner)
    if not moving.terms:
        return None
    low, high = bounds(moving.to_expr(), ranges)
    step = math.gcd(*moving.terms.values())
    extent = (int(high) - int(low)) // step + 1
    phases = abs(moving.terms.get(vector_var, 0)) // step or 1
    return _StagedDimension(outer, moving, int(low), step, extent, dim, phases)


def stage_operand_in_scratch(
    name: str,
    buffer: Buffer,
    dims: Sequence[OperandDimension],
    *,
    inner: set[Var],
    ranges: Ranges,
    dtype: DType,
    vector: Var = NO_VECTOR_VAR,
    slack: int = 0,
    clipped: bool = False,
    fill: int = 0,
) -> StagedOperand | None:
    """Return a copy of the part of an operand that inner axes read; None if the operand cannot be
    copied.

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
    if not all(_can_copy_dimension(d, inner, vector, clipped) for d in dims):
        return None
    staged = [s for d in dims if (s := _staged_dimension_of_scratch_copy(d, inner, vector, ranges)) is not None]
    if not staged:  # one element at a time
        return None
    staged.sort(key=lambda s: vector in s.inner.terms)
    size = math.prod(s.elements_per_phase * s.phases for s in staged)
    scratch = new_private_scratch_buffer(name, dtype, size + slack)
    index = sum(map(_scratch_address_term, staged, _scratch_strides(staged), repeat(vector)), as_expr(0))
    fixed = sum((d.stride * _split_index_by_inner_vars(d, inner)[0].to_expr() for d in dims), as_expr(0))
    copy = partial(_copy_loops_by_phase, buffer, scratch, staged, fixed)
    needs = frozenset(v for d in dims for v in variables_in(*_split_index_by_inner_vars(d, inner)[0].terms))
    whole = (
        slack == 0 and all(d.inside for d in dims) and all(s.extent == s.elements_per_phase * s.phases for s in staged)
    )
    zero = None if whole else lambda _: fill_buffer_loop(scratch, fill)
    last = staged[-1]
    stride = last.source.stride * last.step * last.phases
    effort = 0.25 if stride == 1 else 1.0
    walk = None if stride == 1 else StridedWalk(_elements_between_neighbors(staged), stride * buffer.dtype.itemsize)
    return StagedOperand(AddressedOperand(scratch, index), zero, copy, needs, last.phases, effort, walk)


def _elements_between_neighbors(staged: Sequence[_StagedDimension]) -> int:
    """Return the number of elements that a copy reads between neighbors in the source: those of the
    dimensions inside of the contiguous one; those of the whole copy if it has no such dimension.
    """
    contiguous = next((k for k, s in enumerate(staged) if s.source.stride * s.step == 1), -1)
    return math.prod(s.extent for s in staged[contiguous + 1 :])


def pack_operand_in_axis_order(
    name: str, buffer: Buffer, dims: Sequence[OperandDimension], axes: Sequence[te.Axis], fill: int | None = None
) -> StagedOperand:
    """Return a copy of an operand with the elements of `axes` in row-major order, and `fill` (0)
    outside of the operand.

    fill   value outside of an operand that may be read out of range at both ends; None if at its
           end only
    """
    extents = [n for _, n in axes]
    share = CopyShare.whole_tile([var.name for var, _ in axes], extents)
    scratch = new_private_scratch_buffer(name, buffer.dtype, math.prod(extents))
    fixed, whole = row_major_address(dims).to_expr(), all(d.inside for d in dims)
    axis_values: dict[Var, Expr] = dict(zip((var for var, _ in axes), share.position, strict=True))

    def copy_loops(outer_values: dict[Var, Expr]) -> Stmt:
        values = {**outer_values, **axis_values}
        outer = [d for d in dims if not d.inside]
        indices = [substitute(d.index.to_expr(), values) for d in outer]
        tests = [index < d.extent for index, d in zip(indices, outer, strict=True)]
        tests += [index >= 0 for index in indices if fill is not None]
        value = Load(buffer, substitute(fixed, values))
        return PackedOperand(share, (value,), scratch, te.flat_index(extents, share.position), inside=tests).copy_nest()

    zero: CopyFn | None = None if whole else lambda _: fill_buffer_loop(scratch, fill or 0)
    needs = frozenset(variables_of_dimensions(dims)) - axis_values.keys()
    operand = AddressedOperand(scratch, te.flat_index(extents, [var for var, _ in axes]))
    return StagedOperand(operand, zero, copy_loops, needs, 1, 1.0)


def _scratch_strides(staged: Sequence[_StagedDimension]) -> list[int]:
    """Return the distance of neighbors in the scratch copy along each of its dimensions."""
    return [math.prod(s.elements_per_phase * s.phases for s in staged[k:]) for k in range(1, len(staged) + 1)]


def _scratch_address_term(dimension: _StagedDimension, stride: int, vector_var: Var) -> Expr:
    """Return the contribution of one dimension to an operand's address in its scratch copy."""
    terms = {t: c // dimension.step for t, c in dimension.inner.terms.items()}
    if dimension.phases == 1:
        shift = (dimension.inner.const - dimension.low) // dimension.step
        return LinearForm(terms, shift).to_expr() * stride
    taps = LinearForm(
        {t: c for t, c in terms.items() if t is not vector_var},
        (dimension.inner.const - dimension.low) // dimension.step,
    ).to_expr()
    return (vector_var + taps // dimension.phases) * stride + (taps % dimension.phases) * (
        dimension.elements_per_phase * stride
    )


def _copy_loops_by_phase(
    source: Buffer,
    scratch: Buffer,
    staged: Sequence[_StagedDimension],
    outer_address: Expr,
    outer_values: Mapping[Var, Expr],
) -> Stmt:
    """Return the loops that copy the elements of an operand inside its source, phase by phase.

    Guards keep indices in range; later simplification turns them into loop bounds.
    """
    stmts: list[Stmt] = []
    for phase in range(staged[-1].phases):
        index: Expr = as_expr(0)
        at: Expr = substitute(outer_address, outer_values)
        guards: list[Expr] = []
        shifts = [0] * (len(staged) - 1) + [phase]
        counts = [-(-(s.extent - shift) // s.phases) for s, shift in zip(staged, shifts, strict=True)]
        share = CopyShare.whole_tile(["s"] * len(staged), counts)
        for s, stride, var, shift in zip(staged, _scratch_strides(staged), share.position, shifts, strict=True):
            index = index + var * stride + shift * s.elements_per_phase
            place = s.low + s.step * (var * s.phases + shift)
            at = at + place * s.source.stride
            if not s.source.inside:
                place = substitute(s.outer.to_expr(), outer_values) + place
                guards += [place >= 0, place < s.source.extent]
        value = cast(Load(source, at), scratch.dtype)
        stmts.append(PackedOperand(share, (value,), scratch, index, inside=guards).copy_nest())
    return Block(stmts)
