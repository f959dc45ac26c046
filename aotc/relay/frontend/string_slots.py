# SPDX-License-Identifier: Apache-2.0
"""Compose operators on tensors of strings from operators on their bytes.

A tensor of strings is a tensor of slots (`aotc.ir.string_slots`): bytes with one more dimension. Arguments
called `x` are such tensors; results are expressions of ordinary operators, so that kernels, memory plans
and targets know nothing of strings.

    find_strings(x, ["cat", "dog"])      # int32: 0 for "cat", 1 for "dog", 2 for all others
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import AotcError, Array
from aotc.ir.string_slots import STRING_PADDING, longest_utf8_bytes, slots_of_strings
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import found_rows
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.op.type_rules import broadcast_two_shapes

#: Number of sets of multipliers that are tried for a hash without collisions.
_MAX_HASH_SEEDS: Final = 64
#: Largest number of strings whose hashes have 32 bits: for more, collisions are likely.
_MAX_STRINGS_OF_32_BIT_HASHES: Final = 20_000


def string_constant(strings: Array | Sequence[str]) -> Expr:
    """Return a constant tensor of strings, in slots as small as possible. Raise AotcError (code
    "graph-string") for a string that has no UTF-8 text.
    """
    array = np.asarray(strings, object)
    try:
        return g.constant(slots_of_strings(array, longest_utf8_bytes(array.reshape(-1).tolist())))
    except ValueError as error:
        raise AotcError("graph-string", f"a string of the model cannot be used: {error}") from error


def slot_size(x: Expr) -> int:
    """Return the number of bytes of each slot."""
    return g.dim(x, g.rank(x) - 1)


def with_slot_size(x: Expr, size: int) -> Expr:
    """Return strings in slots of `size` bytes: larger ones, or the beginnings of the slots."""
    given, axis = slot_size(x), g.rank(x) - 1
    if size <= given:
        return x if size == given else g.strided_slice(x, [0], [size], [axis])
    return g.pad(x, [(0, 0)] * axis + [(0, size - given)], STRING_PADDING)


def equal_strings(x: Expr, y: Expr) -> Expr:
    """Return whether strings are equal, with broadcasting."""
    size = max(slot_size(x), slot_size(y))
    same = g.equal(with_slot_size(x, size), with_slot_size(y, size))
    return g.call_reduction("all", same, (g.rank(same) - 1,), False)


def string_lengths(x: Expr) -> Expr:
    """Return the number of bytes of each string, as int32."""
    is_text = g.not_equal(x, STRING_PADDING)
    return g.count_of_flags(is_text)


def _hash_multipliers(seed: int, size: int, dtype: str) -> Array:
    """Return odd random multipliers, one for each byte of a slot."""
    kind = np.dtype(dtype)
    numbers: Array = np.random.default_rng([seed, size]).integers(
        0, np.iinfo(kind).max, size, dtype=kind, endpoint=True
    )
    odd: Array = numbers | kind.type(1)
    return odd


def _distinct_hashes(table: Array) -> tuple[Array, Array]:
    """Return multipliers that give each row of a table (strings, bytes) another hash, and these hashes."""
    dtype = "uint32" if len(table) <= _MAX_STRINGS_OF_32_BIT_HASHES else "uint64"
    for seed in range(_MAX_HASH_SEEDS):
        multipliers = _hash_multipliers(seed, table.shape[1], dtype)
        hashes = np.zeros(len(table), dtype)
        for column, multiplier in zip(table.T, multipliers, strict=True):
            hashes += column.astype(dtype) * multiplier
        if np.unique(hashes).size == len(hashes):
            return multipliers, hashes
    raise AotcError("graph-string", f"no hash without collisions was found for {len(table)} strings")


def find_strings(x: Expr, strings: Sequence[str]) -> Expr:
    """Return the position of each string of `x` among distinct `strings`, as int32; their number for those
    that are not among them.

    The hash of a string, a sum of products of its bytes and constants, is searched in the sorted hashes of
    the constant strings, which are distinct; then all bytes are compared.
    """
    count = len(strings)
    # one byte more than the longest string has: longer strings differ there
    size = min(slot_size(x), longest_utf8_bytes(strings) + 1)
    known = [k for k, text in enumerate(strings) if len(text.encode("utf-8")) <= size]
    missing = g.constant(count, "int32")
    shape = g.dims(x)[:-1]
    if not known:
        return g.broadcast_to(missing, shape)
    table = slots_of_strings([strings[k] for k in known], size)
    multipliers, hashes = _distinct_hashes(table)
    order = np.argsort(hashes)
    beginning = with_slot_size(x, size)
    terms = g.mul(g.cast(beginning, str(hashes.dtype)), g.constant(multipliers))
    searched = g.call_reduction("sum", terms, (g.rank(terms) - 1,), False)
    place = g.call_op("searchsorted", g.constant(hashes[order]), searched, right=False, dtype="int32")
    place = g.minimum(place, len(known) - 1)
    is_same = equal_strings(gather_slices(g.constant(table[order]), place, 0), beginning)
    return g.where(is_same, gather_slices(g.constant(np.array(known, np.int32)[order]), place, 0), missing)


def select_strings(strings: Array | Sequence[str], positions: Expr) -> Expr:
    """Return the strings at positions of a constant vector of strings."""
    return gather_slices(string_constant(strings), positions, 0)


def strings_of_found_number(x: Expr, count: Expr, axis: int) -> Expr:
    """Return the first strings along an axis, as many as the one element of `count` says: a size that a run finds."""
    if isinstance(count, Constant):
        return g.strided_slice(x, [0], [int(count.data.item())], [axis])
    order = [axis, *(k for k in range(g.rank(x)) if k != axis)]
    (found,) = found_rows(count, g.transpose(x, order))
    return g.transpose(found, [order.index(k) for k in range(g.rank(x))])


def scattered_where(places: Expr, flags: Expr, values: Expr, room: int, reduction: str, start: int) -> Expr:
    """Return a row (..., room) with `values` at `places` where `flags` are True, and `start` elsewhere."""
    axis = g.rank(flags) - 1
    # what is not flagged goes to one more place, which is then cut off
    where = g.where(flags, g.minimum(places, room), room)
    rows = g.full(start, (*g.shape(flags)[:-1], room + 1), "int32")
    shaped = g.broadcast_to(values, g.shape(flags))
    moved = g.call_op("scatter_elements", rows, where, shaped, axis=axis, reduction=reduction)
    return g.strided_slice(moved, [0], [room], [axis])


def chosen_strings(x: Expr, is_chosen: Expr) -> tuple[Expr, Expr]:
    """Return the strings of a vector that are chosen, with empty ones behind them, and their number, of shape (1,).

    is_chosen  a vector of truth values
    """
    count = g.dim(x, 0)
    numbers = g.running_count_of_flags(is_chosen)
    sources = scattered_where(g.sub(numbers, 1), is_chosen, g.iota(count, "int32"), count, "update", 0)
    moved = gather_slices(x, sources, 0)
    total = g.strided_slice(numbers, [count - 1], [count], [0])
    exists = g.less(g.iota(count, "int32"), total)
    return g.where(g.unsqueeze(exists, (1,)), moved, STRING_PADDING), total


def concatenate_texts(x: Expr, y: Expr) -> Expr:
    """Return each string of `x` followed by the string of `y`, with broadcasting."""
    size = slot_size(x) + slot_size(y)
    both = broadcast_two_shapes(g.dims(x)[:-1], g.dims(y)[:-1])
    first, second = (g.broadcast_to(z, (*both, slot_size(z))) for z in (x, y))
    lengths = g.unsqueeze(string_lengths(first), (len(both),))
    place = g.iota(size, "int32")
    # behind the text of `second`, the last byte is read, which is padding
    source = g.minimum(g.add(g.sub(place, lengths), slot_size(x)), size)
    source = g.where(g.less(place, lengths), place, source)
    joined = with_slot_size(g.concat([first, second], len(both)), size + 1)
    return g.call_op("gather", joined, source, axis=len(both))
