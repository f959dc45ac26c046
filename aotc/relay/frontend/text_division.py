# SPDX-License-Identifier: Apache-2.0
"""Divide texts into parts: by separators, by spaces, or into what a regular expression matches.

Arguments called `x` are tensors of strings in slots (`aotc.relay.frontend.string_slots`), (..., bytes). Results are
`Parts`, with room for as many parts as a text can have.

    parts = parts_between(x, ",", None)
    parts.texts(x)                              # (..., room, bytes), empty strings behind the last part
    parts.counts                                # (...), int32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from aotc.ir import AotcError, Array
from aotc.ir.string_slots import STRING_PADDING
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.automata import MAX_TABLE_ELEMENTS, Automaton, automaton_of_expression
from aotc.relay.frontend.regular_expression_parser import Expression
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import scattered_where, slot_size, string_lengths, with_slot_size
from aotc.relay.frontend.text_operations import is_first_byte, smallest_index_dtype, states_of_automaton

_SPACE: Final = ord(" ")


@dataclass(frozen=True, eq=False)
class Parts:
    """Where the parts of texts begin and end.

    begins, ends  (..., room): places of bytes, int32; parts that a text does not have end before they begin
    counts        (...): number of parts, int32
    """

    begins: Expr
    ends: Expr
    counts: Expr

    @property
    def room(self) -> int:
        """The largest number of parts."""
        return g.dim(self.begins, g.rank(self.begins) - 1)

    def texts(self, x: Expr) -> Expr:
        """Return the parts as strings, (..., room, bytes)."""
        size, axis = slot_size(x), g.rank(x) - 1
        lead = g.shape(x)[:-1]
        begins, ends = (g.unsqueeze(place, (axis + 1,)) for place in (self.begins, self.ends))
        places = g.add(begins, g.iota(size, "int32"))
        flat = g.reshape(g.minimum(places, size - 1), (*lead, self.room * size))
        found = g.reshape(g.call_op("gather", x, flat, axis=axis), (*lead, self.room, size))
        return g.where(g.less(places, ends), found, STRING_PADDING)

    def longer_than(self, characters: int, x: Expr) -> Parts:
        """Return the parts that have more than a number of characters."""
        axis = g.rank(x) - 1
        before = g.concat([g.full(0, (*g.shape(x)[:-1], 1), "int32"), g.running_count_of_flags(is_first_byte(x))], axis)
        limits = (g.minimum(place, slot_size(x)) for place in (self.ends, self.begins))
        end, begin = (g.call_op("gather", before, limit, axis=axis) for limit in limits)
        kept = g.greater(g.sub(end, begin), characters)
        return _parts_at(kept, self.begins, kept, self.ends, self.room)


def _parts_at(begin_flags: Expr, begin_places: Expr, end_flags: Expr, end_places: Expr, room: int) -> Parts:
    """Return the parts that begin and end where flags are True; part k + 1 begins behind the end of part k. If there
    is room for fewer parts, the last one ends where the last of all does.
    """
    axis = g.rank(begin_flags) - 1
    numbers = g.running_count_of_flags(begin_flags)
    begins = scattered_where(g.sub(numbers, 1), begin_flags, begin_places, room, "update", 0)
    end_numbers = g.running_count_of_flags(end_flags)
    last = g.minimum(g.sub(end_numbers, 1), room - 1)
    ends = scattered_where(last, end_flags, end_places, room, "max", 0)
    size = g.dim(numbers, axis)
    counts = g.squeeze(g.strided_slice(numbers, [size - 1], [size], [axis]), [axis])
    return Parts(begins, ends, g.minimum(counts, room))


def _limited_room(largest: int, maxsplit: int | None) -> int:
    return max(1, largest if maxsplit is None else min(largest, maxsplit + 1))


def _shifted_row(x: Expr, count: int, fill: int) -> Expr:
    """Return rows moved by `count` places to the end (to the beginning if negative), with `fill` at free places."""
    size, axis = g.dim(x, g.rank(x) - 1), g.rank(x) - 1
    widths = (max(count, 0), max(-count, 0))
    kept = g.strided_slice(x, [max(-count, 0)], [size - max(count, 0)], [axis])
    return g.pad(kept, [(0, 0)] * axis + [widths], fill)


def parts_between_spaces(x: Expr, maxsplit: int | None) -> Parts:
    """Return the parts of texts between spaces; no part is empty. After `maxsplit` parts, the rest of a text
    without spaces at its end is one more.
    """
    size = slot_size(x)
    is_text = g.logical_and(g.not_equal(x, _SPACE), g.not_equal(x, STRING_PADDING))
    ones = g.cast(is_text, "int32")
    begins = g.greater(ones, _shifted_row(ones, 1, 0))
    ends = g.greater(ones, _shifted_row(ones, -1, 0))
    places = g.iota(size, "int32")
    return _parts_at(begins, places, ends, g.add(places, 1), _limited_room((size + 1) // 2, maxsplit))


def parts_between(x: Expr, separator: str, maxsplit: int | None) -> Parts:
    """Return the parts of texts before, between and behind a separator, as many as `maxsplit` and one more at
    most. An empty text has no parts.
    """
    text = separator.encode("utf-8")
    size, length = slot_size(x), len(text)
    table = _search_table(text)
    states = states_of_automaton(x, table)
    is_end = g.equal(g.cast(states, "int32"), length)
    lengths = string_lengths(x)
    axis = g.rank(x) - 1
    # one more place stands for the end of the text, where the last part ends
    room = _limited_room(size // length + 1, maxsplit)
    numbers = g.running_count_of_flags(is_end)
    is_end = g.logical_and(is_end, g.less(numbers, room))
    counts = g.add(g.count_of_flags(is_end), 1)
    places = g.add(g.iota(size, "int32"), 1)
    # where a text has fewer parts, they would begin behind its end
    behind = g.add(g.unsqueeze(lengths, (axis,)), length)
    firsts = scattered_where(numbers, is_end, places, room + 1, "update", -1)
    firsts = g.where(g.less(firsts, 0), behind, firsts)
    begins = g.where(g.equal(g.iota(room + 1, "int32"), 0), 0, firsts)
    ends = g.sub(g.strided_slice(begins, [1], [room + 1], [axis]), length)
    begins = g.strided_slice(begins, [0], [room], [axis])
    return Parts(begins, ends, g.where(g.equal(lengths, 0), 0, counts))


def _search_table(text: bytes) -> Array:
    """Return the table (states, 256) of an automaton that finds a text, without overlaps, from left to right (Knuth,
    Morris and Pratt): its state is the number of bytes that match, all of them at the end of each text found.
    """
    table = np.zeros((len(text) + 1, 256), np.int32)
    table[0, text[0]] = 1
    fallback = 0
    for state in range(1, len(text)):
        table[state] = table[fallback]
        table[state, text[state]] = state + 1
        fallback = int(table[fallback, text[state]])
    table[-1] = table[0]
    return table


# --- what a regular expression matches


@dataclass(frozen=True, eq=False)
class _Matcher:
    """Two automata that find the longest matches of a regular expression from left to right (a bimachine,
    Schützenberger 1961). The first one reads a text from its end: its state at a place tells from which states of the
    automaton of the expression a match ends there or behind. The second one reads pairs of this state behind a byte
    and the byte.

    backward   (states, classes), the table of the first automaton
    forward    (states, states of the first * classes), the table of the second one
    is_inside  by the state of the second one: True at the bytes of matches
    is_begin   True at the first byte of each match
    may_touch  True if a match may begin directly behind another one
    """

    backward: Array
    forward: Array
    is_inside: Array
    is_begin: Array
    may_touch: bool


def _backward_table(automaton: Automaton, pattern: str) -> tuple[Array, list[Array]]:
    """Return the table of the automaton that reads from the end, and for each of its states the states of the
    automaton of the expression from which a match ends there or behind.
    """
    count, classes = automaton.accepts.shape
    sets = [np.zeros(count, bool)]
    numbers = {sets[0].tobytes(): 0}
    rows: list[list[int]] = []
    for behind in sets:
        row: list[int] = []
        for symbol in range(classes):
            here = automaton.accepts[:, symbol] | _longer_matches(automaton, behind, symbol)
            key = here.tobytes()
            if key not in numbers:
                numbers[key] = len(sets)
                sets.append(here)
            row.append(numbers[key])
        rows.append(row)
        _require_small_table(len(sets) * classes, pattern)
    return np.array(rows, np.int32), sets


def _longer_matches(automaton: Automaton, behind: Array, symbol: int) -> Array:
    """Return for each state whether a match ends behind the next byte, which has a class, if `behind` tells it for
    the state that this byte leads to.
    """
    if symbol == automaton.accepts.shape[1] - 1:
        return np.zeros(len(behind), bool)
    found: Array = behind[automaton.next_states[:, symbol]]
    return found


def _require_small_table(elements: int, pattern: str) -> None:
    if elements > MAX_TABLE_ELEMENTS:
        text = f"the regular expression {pattern[:80]!r} is not supported: finding its matches needs a large table"
        raise AotcError("graph-regex", text)


def _matcher_of_automaton(automaton: Automaton, pattern: str) -> _Matcher:
    backward, sets = _backward_table(automaton, pattern)
    classes = backward.shape[1]
    # for each class of a byte and set behind it, whether a match goes on from each state
    goes_on = [[_longer_matches(automaton, behind, symbol) for symbol in range(classes)] for behind in sets]
    # a state: that of the match, or -1; the one in which a match would begin behind the byte; whether one begins there
    states = [(-1, int(automaton.starts[-1]), False)]
    numbers = {states[0]: 0}
    rows: list[list[int]] = []
    may_touch = False
    for inside, start, _ in states:
        row: list[int] = []
        for by_class in goes_on:
            for symbol, is_longer in enumerate(by_class):
                goes = inside >= 0 and bool(is_longer[inside])
                state = inside if goes else start
                following = (-1, int(automaton.starts[symbol]), False)
                if is_longer[state]:
                    begins = not goes
                    following = (int(automaton.next_states[state, symbol]), following[1], begins)
                    may_touch |= begins and inside >= 0
                if following not in numbers:
                    numbers[following] = len(states)
                    states.append(following)
                row.append(numbers[following])
        rows.append(row)
        _require_small_table(len(states) * len(sets) * classes, pattern)
    is_inside = np.array([inside >= 0 for inside, _, _ in states])
    return _Matcher(backward, np.array(rows, np.int32), is_inside, np.array([b for _, _, b in states]), may_touch)


def matches_in(x: Expr, expression: Expression, pattern: str) -> Parts:
    """Return the matches of a regular expression in texts from left to right, of those that begin at one place the
    longest; empty matches are none.

    pattern    text of the expression, for messages

    Raises AotcError (code "graph-regex") for an expression that needs large tables.
    """
    automaton = automaton_of_expression(expression, pattern)
    matcher = _matcher_of_automaton(automaton, pattern)
    size = slot_size(x)
    classes = matcher.backward.shape[1]
    # at least one byte of padding tells where each text ends
    byte_classes = automaton.classes.astype(smallest_index_dtype(classes))
    symbols = gather_slices(g.constant(byte_classes), with_slot_size(x, size + 1), 0)
    behind = _shifted_row(states_of_automaton(symbols, matcher.backward, reverse=True), -1, 0)
    pairs = g.add(g.mul(g.cast(behind, "int32"), classes), g.cast(symbols, "int32"))
    states = states_of_automaton(pairs, matcher.forward)
    inside, begins = (gather_slices(g.constant(flags), states, 0) for flags in (matcher.is_inside, matcher.is_begin))
    goes_on = g.cast(g.logical_and(inside, g.logical_not(begins)), "int32")
    ends = g.greater(g.cast(inside, "int32"), _shifted_row(goes_on, -1, 0))
    places = g.iota(size + 1, "int32")
    room = size if matcher.may_touch else (size + 1) // 2
    return _parts_at(begins, places, ends, g.add(places, 1), room)
