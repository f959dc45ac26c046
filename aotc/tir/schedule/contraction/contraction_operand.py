# SPDX-License-Identifier: Apache-2.0
"""One operand of a contraction for GPU schedules: its elements, or a fill value outside of it.

operand.load_element_or_fill({y: row}, "float32")      # row >= 0 and row < 5 ? x[9 * row + k] : 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, Select, Var, all_of, cast, const, substitute, te
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    OperandDimension,
    iteration_space_point_count,
    row_major_address,
)


@frozen(eq=False)
class ContractionOperand:
    """One operand of a contraction, with the output axes that only it depends on.

    buffer, dims   the operand
    axes           the output axes
    fill           value outside of the operand
    """

    buffer: Buffer
    dims: Sequence[OperandDimension]
    axes: Sequence[te.Axis]
    fill: int = 0

    @property
    def exclusive_output_point_count(self) -> int:
        """Number of points of the output axes that only this operand depends on."""
        return iteration_space_point_count(self.axes)

    def in_bounds_condition_if_needed(self, element_number: Expr, tile_size: int) -> list[Expr]:
        """Return the condition that an element exists; none if `tile_size`, the size of a tile,
        divides the number of elements.
        """
        return (
            [element_number < self.exclusive_output_point_count]
            if self.exclusive_output_point_count % tile_size
            else []
        )

    def load_element_or_fill(
        self, values_of_vars: Mapping[Var, Expr], dtype: DType, conditions: Sequence[Expr] = ()
    ) -> Expr:
        """Return an element of the operand for given values of variables.

        It is `fill` outside of the operand, and where one of `conditions` is false.
        """
        value = cast(Load(self.buffer, substitute(row_major_address(self.dims).to_expr(), values_of_vars)), dtype)
        places = ((substitute(dim.index.to_expr(), values_of_vars), dim.extent) for dim in self.dims if not dim.inside)
        conditions = [*conditions, *(test for index, end in places for test in (index >= 0, index < end))]
        return Select(all_of(*conditions), value, const(self.fill, dtype)) if conditions else value

    def multiply_add(self, total: Expr, a: Expr, b: Expr, other_operand: ContractionOperand) -> Expr:
        """Return `total + a * b`, where `a` is an element of this operand and `b` is one of
        `other_operand`.
        """
        return total + a * b
