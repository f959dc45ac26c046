# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a contraction's definition: one scalar accumulator, no tiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aotc.ir import Dim, frozen, interval_of_dim, is_never_negative
from aotc.tir import Buffer, Expr, Load, Var, all_of, cast, const, linear_form, select, te
from aotc.tir.stmt import Assign, Block, Declare, If, Stmt, loop_nest

StoreFn = Callable[[tuple[Expr, ...], Expr], Stmt]


@frozen
class ContractionNest:
    """The statements of a contraction, with the stack, workspace and shared-memory buffers that
    they need.
    """

    stmt: Stmt
    stack: tuple[Buffer, ...] = ()
    workspace: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()


def accumulate_all_products(contraction: te.Contraction, a: Buffer, b: Buffer, accumulator: Var) -> Stmt:
    """Return the reduction loops that add all products of one output element to the register
    `accumulator`.

    Products with indices out of range are skipped, or use `contraction.fill` as the data if that is
    not 0.
    """
    places = [
        *zip(contraction.a_index, contraction.a.shape, strict=True),
        *zip(contraction.b_index, contraction.b.shape, strict=True),
    ]
    inside = all_of(*(test for index, extent in places for test in (index >= 0, index < extent)))
    left = cast(Load(a, te.flat_index(contraction.a.shape, contraction.a_index)), contraction.dtype)
    right = cast(Load(b, te.flat_index(contraction.b.shape, contraction.b_index)), contraction.dtype)
    left = select(inside, left, contraction.fill) if contraction.fill else left
    update: Stmt = Assign(accumulator, accumulator + left * right)
    update = update if contraction.fill else If(inside, update)
    return loop_nest(contraction.reduce_axes, update, kind="reduction")


def contraction_as_reduction(contraction: te.Contraction) -> te.Reduce:
    """Return the sum of products that a contraction is, with its axes, as a reduction: for extents that
    are known at run time only.

    A row of accumulators along the contiguous axis of the weights is faster than one accumulator.
    """
    extents = dict(contraction.axes) | dict(contraction.reduce_axes)
    places = [
        *zip(contraction.a_index, contraction.a.shape, strict=True),
        *zip(contraction.b_index, contraction.b.shape, strict=True),
    ]
    tests = [test for index, extent in places for test in tests_of_index_range(index, extent, extents)]
    inside = all_of(*tests) if tests else None
    left = cast(contraction.a[contraction.a_index], contraction.dtype)
    if contraction.fill and inside is not None:
        left, inside = select(inside, left, contraction.fill), None
    return te.Reduce(
        name=contraction.name,
        shape=contraction.shape,
        dtype=contraction.dtype,
        axes=contraction.axes,
        reduce_axes=contraction.reduce_axes,
        combiner="sum",
        body=left * cast(contraction.b[contraction.b_index], contraction.dtype),
        guard=inside,
    )


def tests_of_index_range(index: Expr, extent: te.Extent, extents: Mapping[Var, te.Extent]) -> list[Expr]:
    """Return the conditions, of `index >= 0` and `index < extent`, that are not known to hold for all
    values of axes with these extents.
    """
    least, greatest = least_and_greatest_index(index, extents)
    tests: list[Expr] = [] if least is not None and interval_of_dim(least)[0] >= 0 else [index >= 0]
    is_below = greatest is not None and is_never_negative(extent - 1 - greatest)
    return tests if is_below else [*tests, index < extent]


def least_and_greatest_index(index: Expr, extents: Mapping[Var, te.Extent]) -> tuple[Dim, Dim] | tuple[None, None]:
    """Return the bounds of an index that is a linear form of axes with these extents, as dimensions;
    None for another index.
    """
    form = linear_form(index, {})
    least: Dim = form.const
    greatest: Dim = form.const
    for atom, factor in form.terms.items():
        if not isinstance(atom, Var) or atom not in extents:
            return None, None
        last = factor * (extents[atom] - 1)
        least, greatest = (least, greatest + last) if factor > 0 else (least + last, greatest)
    return least, greatest


def build_untiled_contraction(contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> ContractionNest:
    """Return the nest of loops over the output axes, with one scalar accumulator for each element."""
    acc = Var("acc", contraction.dtype)
    finish = store(tuple(var for var, _ in contraction.axes), acc)
    body = Block((Declare(acc, const(0, contraction.dtype)), accumulate_all_products(contraction, a, b, acc), finish))
    return ContractionNest(loop_nest(contraction.axes, body, "independent"))
