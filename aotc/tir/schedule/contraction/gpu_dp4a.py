# SPDX-License-Identifier: Apache-2.0
"""int8 products on GPUs: four reduction steps are packed into one 32-bit word, which dp4a
multiplies and adds.

    xs[8 x 64] = x[4 * k] & 255 | (x[4 * k + 1] & 255) << 8 | ...      # one load, where these lie next to each other
    acc[i * 4 + j] = dp4a_uint8_int8(acc[i * 4 + j], a[i], b[j])

Tiles and slices are those of scalars (`by_blocks`, `by_slices`), with operands that load words.
Arithmetic is modulo 2^32, so the order of summation does not change the result.
"""

from collections.abc import Mapping, Sequence

from aotc.ir import DType, frozen
from aotc.tir import BYTES, GROUP, Expr, Load, Ranges, Var, linear, mentioned, te, word_of
from aotc.tir.expr import Select, all_of, binary, call, cast, const, substitute
from aotc.tir.schedule.contraction.gpu_split_reduction import Half
from aotc.tir.schedule.contraction.index_space import Analysis, flat, in_groups
from aotc.tir.simplify import simplify


@frozen(eq=False)
class Words(Half):
    """An int8 operand that is loaded in words of four reduction steps.

    place   variable that counts the bytes of a word
    near    True if the bytes of a word are adjacent in memory, and aligned
    """

    place: Var | None = None
    near: bool = False

    def load(self, names: Mapping[Var, Expr], dtype: DType, tests: Sequence[Expr] = ()) -> Expr:
        """Return four bytes as a 32-bit word: `fill` for bytes outside of the operand, zeros where
        one of `tests` is false.
        """
        assert self.place is not None
        if not self.near:
            word: Expr = const(0, dtype)
            for k in range(GROUP):
                byte = Half.load(self, {**names, self.place: const(k)}, self.buffer.dtype)
                bits = binary("and", cast(byte, dtype), const(255, dtype))
                word = binary("or", word, binary("shl", bits, const(8 * k, dtype))) if k else bits
            return Select(all_of(*tests), word, const(0, dtype)) if tests else word
        first = {**names, self.place: const(0)}
        place = substitute(flat(self.dims).expr(), first)
        word = call(f"word_{self.buffer.dtype}", Load(self.buffer, place, GROUP))
        inside: list[Expr] = []
        for dim in self.dims:
            index = substitute(dim.index.expr(), first)
            inside += [] if dim.inside else [index >= 0, index < dim.extent]
        outside = const(word_of(self.fill), dtype)
        word = Select(all_of(*inside), word, outside) if inside else word
        return Select(all_of(*tests), word, const(0, dtype)) if tests else word

    def multiplied(self, total: Expr, a: Expr, b: Expr, other: Half) -> Expr:
        """Return a dp4a call: `total` plus the four int8 products of two 32-bit words."""
        return call(f"dp4a_{self.buffer.dtype}_{other.buffer.dtype}", total, a, b)


def in_words(c: te.Contraction) -> tuple[Analysis, Var] | None:
    """Return an int8 contraction by groups of four steps, with the variable that counts in a group;
    None for other types.
    """
    if c.dtype != "int32" or not {c.a.dtype, c.b.dtype} <= set(BYTES) or c.group not in (0, GROUP):
        return None
    return in_groups(c)


def words(half: Half, of: Ranges, place: Var) -> Words:
    """Return an int8 operand loaded in words of four bytes; `of` are the ranges of variables."""
    buffer, dims = half.buffer, half.dims
    form = linear(simplify(flat(dims).expr(), of), of)
    others = [*(n for atom, n in form.terms.items() if atom is not place), form.const]
    borders = (simplify(dim.index.expr(), of) for dim in dims if not dim.inside)
    near = form.coefficient(place) == 1
    near = near and buffer.align % GROUP == 0
    near = near and not any(n % GROUP for n in others)
    near = near and not any(place in mentioned(e) for e in borders)
    return Words(buffer, dims, half.axes, half.fill, place, near)
