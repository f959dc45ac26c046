# SPDX-License-Identifier: Apache-2.0
"""Products of bytes on a device: four steps of the reduction are a number, whose products one instruction adds.

    xs[8 x 64] = x[4 * k] & 255 | (x[4 * k + 1] & 255) << 8 | ...      # one load, where these lie next to each other
    acc[i * 4 + j] = dp4a_uint8_int8(acc[i * 4 + j], a[i], b[j])

Tiles and slices are those of numbers (`by_blocks`, `by_slices`): their operands load such words.  All is modulo 2^32,
so that every order of a sum has its bits.
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
    """An operand of bytes, of which `place` counts four neighboring steps.

    near   whether these lie next to each other, from a multiple of four on
    """

    place: Var | None = None
    near: bool = False

    def load(self, names: Mapping[Var, Expr], dtype: DType, tests: Sequence[Expr] = ()) -> Expr:
        """Four bytes as a number of 32 bits; `fill` in each outside of the operand, zeros where a test says no."""
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
        """A sum and four products."""
        return call(f"dp4a_{self.buffer.dtype}_{other.buffer.dtype}", total, a, b)


def in_words(c: te.Contraction) -> tuple[Analysis, Var] | None:
    """A contraction of bytes by groups of four steps, and what counts in a group; None for another one."""
    if c.dtype != "int32" or not {c.a.dtype, c.b.dtype} <= set(BYTES) or c.group not in (0, GROUP):
        return None
    return in_groups(c)


def words(half: Half, of: Ranges, place: Var) -> Words:
    """An operand of bytes; `of` are the ranges of variables."""
    buffer, dims = half.buffer, half.dims
    form = linear(simplify(flat(dims).expr(), of), of)
    others = [*(n for atom, n in form.terms.items() if atom is not place), form.const]
    borders = (simplify(dim.index.expr(), of) for dim in dims if not dim.inside)
    near = form.coefficient(place) == 1
    near = near and buffer.align % GROUP == 0
    near = near and not any(n % GROUP for n in others)
    near = near and not any(place in mentioned(e) for e in borders)
    return Words(buffer, dims, half.axes, half.fill, place, near)
