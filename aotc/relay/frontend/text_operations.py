# SPDX-License-Identifier: Apache-2.0
"""Compose operators on the characters of strings: change of case, and matching of regular expressions.

Arguments called `x` are tensors of strings in slots (`aotc.relay.frontend.string_slots`).

    changed_case(x, case_mapping("upper"))   # slots of up to one and a half times the size
    matches_expression(x, "[a-z]+")          # bool, without the dimension of bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from aotc.ir import Array
from aotc.ir.string_slots import STRING_PADDING
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.automata import automaton_of_expression, full_match_table
from aotc.relay.frontend.regular_expression_parser import parse_regular_expression
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import slot_size, with_slot_size
from aotc.relay.frontend.wide_integers import low_bits, shifted_right

#: The first byte of the UTF-8 text of a character, by the number of its bytes, less the bits of the character.
_FIRST_BYTES: Final = (0x00, 0xC0, 0xE0, 0xF0)
_CONTINUATION_BITS: Final = 6
#: Number of characters in a page of a table of characters, as a power of two.
_PAGE_BITS: Final = 6


def smallest_index_dtype(count: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest data type that holds 0 to `count` - 1."""
    return np.min_scalar_type(max(count - 1, 0))


def states_of_automaton(symbols: Expr, table: Array, *, reverse: bool = False) -> Expr:
    """Return the state after each symbol of each row; see the operator `run_automaton`."""
    small = table.astype(smallest_index_dtype(len(table)))
    return g.call_op("run_automaton", symbols, g.constant(small), reverse=reverse)


def matches_expression(x: Expr, pattern: str) -> Expr:
    """Return whether each string as a whole matches a regular expression in the syntax of RE2. Raises AotcError
    (code "graph-regex") for one that is not supported.
    """
    automaton = automaton_of_expression(parse_regular_expression(pattern), pattern)
    table, matched = full_match_table(automaton)
    size = slot_size(x)
    # at least one byte of padding tells where each text ends
    classes = automaton.classes.astype(smallest_index_dtype(table.shape[1]))
    symbols = gather_slices(g.constant(classes), with_slot_size(x, size + 1), 0)
    axis = g.rank(x) - 1
    last = g.squeeze(g.strided_slice(states_of_automaton(symbols, table), [size], [size + 1], [axis]), [axis])
    return g.equal(g.cast(last, "int32"), matched)


# --- characters


def _bytes_ahead(x: Expr, count: int) -> Expr:
    """Return the byte `count` places behind each byte of a slot, as int32; padding behind the last one."""
    size, axis = slot_size(x), g.rank(x) - 1
    if count >= size:
        return g.broadcast_to(g.constant(STRING_PADDING, "int32"), g.dims(x))
    rest = g.strided_slice(x, [count], [size], [axis])
    return g.cast(g.pad(rest, [(0, 0)] * axis + [(0, count)], STRING_PADDING), "int32")


def is_first_byte(x: Expr) -> Expr:
    """Return whether a character begins at each byte of a slot."""
    first = g.cast(x, "int32")
    is_continuation = g.equal(g.call_binary_op("bitwise_and", first, 0xC0), 0x80)
    is_text = g.not_equal(first, STRING_PADDING)
    return g.logical_and(is_text, g.logical_not(is_continuation))


def code_points(x: Expr) -> Expr:
    """Return the code point of the character that begins at each byte of a slot, as int32; any number for
    other bytes.
    """
    first = g.cast(x, "int32")
    result, point = first, first
    for k, least in enumerate(_FIRST_BYTES[1:], 1):
        # the bits of a character that the first byte of k + 1 has, and six of each byte behind it
        point = low_bits(first, _CONTINUATION_BITS - k)
        for ahead in range(1, k + 1):
            bits = low_bits(_bytes_ahead(x, ahead), _CONTINUATION_BITS)
            point = g.add(g.mul(point, 1 << _CONTINUATION_BITS), bits)
        result = g.where(g.less(first, least), result, point)
    return result


def _utf8_bytes(points: Expr) -> tuple[Expr, list[Expr]]:
    """Return the number of bytes of the UTF-8 text of each code point, int32, and its bytes from the first
    to the fourth, uint8; any number where there are fewer.
    """
    count: Expr = g.constant(1, "int32")
    for limit in (0x80, 0x800, 0x10000):
        count = g.add(count, g.cast(g.greater_equal(points, limit), "int32"))
    parts: list[Expr] = []
    for place in range(4):
        part: Expr = g.constant(0, "int32")
        for size in range(place + 1, 5):
            rest = shifted_right(points, _CONTINUATION_BITS * (size - 1 - place))
            low, mark = (rest, _FIRST_BYTES[size - 1]) if place == 0 else (low_bits(rest, _CONTINUATION_BITS), 0x80)
            byte = g.add(low, mark)
            part = g.where(g.equal(count, size), byte, part)
        parts.append(g.cast(part, "uint8"))
    return count, parts


def _mapped(points: Expr, mapping: Mapping[int, int]) -> Expr:
    """Return code points with those of a mapping in place of others: a table of differences in pages, of which
    equal ones are stored once.
    """
    size = 1 << _PAGE_BITS
    differences = np.zeros(-(-(max(mapping) + 2) // size) * size, np.int32)
    for old, new in mapping.items():
        differences[old] = new - old
    pages, numbers = np.unique(differences.reshape(-1, size), axis=0, return_inverse=True)
    numbers = numbers.reshape(-1).astype(smallest_index_dtype(len(pages)))
    clipped = g.minimum(points, len(differences) - 1)
    page = g.cast(gather_slices(g.constant(numbers), shifted_right(clipped, _PAGE_BITS), 0), "int32")
    place = g.add(g.mul(page, size), low_bits(clipped, _PAGE_BITS))
    # the last page has an element that does not change, for code points behind it
    return g.add(points, gather_slices(g.constant(pages.reshape(-1)), place, 0))


def changed_case(x: Expr, mapping: Mapping[int, int]) -> Expr:
    """Return strings in which each character that is in `mapping` became another one.

    mapping    the new code points by the old ones
    """
    size, axis = slot_size(x), g.rank(x) - 1
    points = _mapped(code_points(x), mapping)
    counts, parts = _utf8_bytes(points)
    counts = g.where(is_first_byte(x), counts, 0)
    ends = g.call_op("cumsum", counts, axis=axis, dtype="int32")
    begins = g.sub(ends, counts)
    longest = max(_size_after(size, old, new) for old, new in mapping.items())
    # bytes that a character does not have go to one more place, which is then cut off
    places = [g.where(g.greater(counts, k), g.add(begins, k), longest) for k in range(len(parts))]
    empty = g.full(STRING_PADDING, (*g.shape(x)[:-1], longest + 1), "uint8")
    bytes_ = [g.where(g.greater(counts, k), part, STRING_PADDING) for k, part in enumerate(parts)]
    moved = g.call_op(
        "scatter_elements", empty, g.concat(places, axis), g.concat(bytes_, axis), axis=axis, reduction="update"
    )
    return with_slot_size(moved, longest)


def _size_after(size: int, old: int, new: int) -> int:
    """Return the largest size of a text of `size` bytes in which a character becomes another one."""
    before, after = (len(chr(point).encode("utf-8")) for point in (old, new))
    return size + size // before * max(after - before, 0)
