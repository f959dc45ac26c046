# SPDX-License-Identifier: Apache-2.0
"""int8 products on GPUs: four reduction steps are packed into one 32-bit word, which dp4a
multiplies and adds.

    xs[8 x 64] = x[4 * k] & 255 | (x[4 * k + 1] & 255) << 8 | ...      # one load, where these lie next to each other
    acc[i * 4 + j] = dp4a_uint8_int8(acc[i * 4 + j], a[i], b[j])

Tiles and split reductions are those of scalars (`schedule_gpu_block_tiles`,
`schedule_gpu_split_reduction`), with operands that load words.
Arithmetic is modulo 2^32, so the order of summation does not change the result.
"""

from collections.abc import Mapping, Sequence

from aotc.ir import DType, frozen
from aotc.tir import (
    BYTES_PER_DOT,
    INT8_DTYPES,
    Expr,
    Load,
    Ranges,
    Var,
    linear_form,
    repeat_byte_in_int32,
    te,
    vars_and_buffers_in,
)
from aotc.tir.expr import Select, all_of, binary, call, cast, const, substitute
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ContractionAnalysis,
    row_major_address,
    split_reduction_into_dot_groups,
)
from aotc.tir.schedule.contraction.contraction_operand import ContractionOperand
from aotc.tir.simplify import simplify


@frozen(eq=False)
class ByteWordOperand(ContractionOperand):
    """An int8 operand that is loaded in words of four reduction steps.

    place   variable that counts the bytes of a word
    near    True if the bytes of a word are adjacent in memory, and aligned
    """

    place: Var | None = None
    near: bool = False

    def load_element_or_fill(
        self, values_of_vars: Mapping[Var, Expr], dtype: DType, conditions: Sequence[Expr] = ()
    ) -> Expr:
        """Return four bytes as a 32-bit word: `fill` for bytes outside of the operand, zeros where
        one of `conditions` is false.
        """
        assert self.place is not None
        if not self.near:
            word: Expr = const(0, dtype)
            for k in range(BYTES_PER_DOT):
                byte = ContractionOperand.load_element_or_fill(
                    self, {**values_of_vars, self.place: const(k)}, self.buffer.dtype
                )
                bits = binary("and", cast(byte, dtype), const(255, dtype))
                word = binary("or", word, binary("shl", bits, const(8 * k, dtype))) if k else bits
            return Select(all_of(*conditions), word, const(0, dtype)) if conditions else word
        first = {**values_of_vars, self.place: const(0)}
        place = substitute(row_major_address(self.dims).to_expr(), first)
        word = call(f"word_{self.buffer.dtype}", Load(self.buffer, place, BYTES_PER_DOT))
        inside: list[Expr] = []
        for dim in self.dims:
            index = substitute(dim.index.to_expr(), first)
            inside += [] if dim.inside else [index >= 0, index < dim.extent]
        outside = const(repeat_byte_in_int32(self.fill), dtype)
        word = Select(all_of(*inside), word, outside) if inside else word
        return Select(all_of(*conditions), word, const(0, dtype)) if conditions else word

    def multiply_add(self, total: Expr, a: Expr, b: Expr, other_operand: ContractionOperand) -> Expr:
        """Return a dp4a call: `total` plus the four int8 products of two 32-bit words."""
        return call(f"dp4a_{self.buffer.dtype}_{other_operand.buffer.dtype}", total, a, b)


def needs_dp4a(contraction: te.Contraction) -> bool:
    """Return True if a contraction multiplies bytes, in groups of four if its weights are packed."""
    types = {contraction.a.dtype, contraction.b.dtype}
    return contraction.dtype == "int32" and types <= set(INT8_DTYPES) and contraction.group in (0, BYTES_PER_DOT)


def split_reduction_steps_by_4_for_dp4a(contraction: te.Contraction) -> tuple[ContractionAnalysis, Var] | None:
    """Return an int8 contraction by groups of four steps, with the variable that counts in a group;
    None for other types, and if no reduction axis can be divided.
    """
    return split_reduction_into_dot_groups(contraction) if needs_dp4a(contraction) else None


def operand_loaded_in_4_byte_words(operand: ContractionOperand, ranges: Ranges, byte_var: Var) -> ByteWordOperand:
    """Return an int8 operand loaded in words of four bytes; `ranges` are the ranges of variables."""
    buffer, dims = operand.buffer, operand.dims
    form = linear_form(simplify(row_major_address(dims).to_expr(), ranges), ranges)
    coefficients = [*(n for atom, n in form.terms.items() if atom is not byte_var), form.const]
    borders = (simplify(dim.index.to_expr(), ranges) for dim in dims if not dim.inside)
    near = form.coefficient(byte_var) == 1
    near = near and buffer.align % BYTES_PER_DOT == 0
    near = near and not any(n % BYTES_PER_DOT for n in coefficients)
    near = near and not any(byte_var in vars_and_buffers_in(e) for e in borders)
    return ByteWordOperand(buffer, dims, operand.axes, operand.fill, byte_var, near)
