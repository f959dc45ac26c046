# SPDX-License-Identifier: Apache-2.0
"""Build deterministic finite automata that read UTF-8 texts byte by byte.

automaton = automaton_of_expression(parse_regular_expression("a+"), "a+")
automaton.next_states[state, automaton.classes[byte]]
automaton.accepts[state, automaton.classes[next_byte]]     # next_byte 0xFF: the end of the text
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aotc.ir import AotcError, Array
from aotc.ir.string_slots import STRING_PADDING
from aotc.relay.frontend.regular_expression_parser import (
    Assertion,
    Characters,
    Choice,
    Expression,
    Repetition,
    Sequenced,
)

#: Largest number of states of an automaton, deterministic or not.
MAX_STATES: Final = 10_000
#: Largest number of elements of a table of states.
MAX_TABLE_ELEMENTS: Final = 1 << 20
_LAST_POINTS: Final = (0x7F, 0x7FF, 0xD7FF, 0xFFFF, 0x10FFFF)
_SURROGATES: Final = (0xD800, 0xDFFF)
#: Kinds of bytes, and the ends of a text, that assertions distinguish.
_BEGIN, _END, _NEWLINE, _WORD, _OTHER = range(5)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic finite automaton over the bytes of UTF-8 texts.

    classes      (256,): the class of each byte; the last class is that of the end of a text, 0xFF
    next_states  (states, classes - 1): the state after a byte
    accepts      (states, classes): True if what was read matches, where the class of the next byte is given
    starts       the state before a text, and after a byte of each class: (classes,), by the class of the
                 byte before; the last one is that at the beginning of the text
    """

    classes: Array
    next_states: Array
    accepts: Array
    starts: Array


# --- nondeterministic automata


@dataclass
class _NondeterministicAutomaton:
    """A nondeterministic finite automaton over bytes, built from a regular expression (Thompson's construction).

    pattern        text of the expression, for messages
    epsilon_edges  for each state, edges that read nothing: a condition on the bytes around ("" for none), and the
                   next state
    byte_edges     for each state, edges that read a byte: the least and the greatest one, and the next state
    """

    pattern: str
    epsilon_edges: list[list[tuple[str, int]]] = field(default_factory=list)
    byte_edges: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def new_state(self) -> int:
        if len(self.epsilon_edges) >= MAX_STATES:
            raise _too_large(self.pattern)
        self.epsilon_edges.append([])
        self.byte_edges.append([])
        return len(self.epsilon_edges) - 1

    def add(self, expression: Expression, start: int) -> int:
        """Add states that match an expression from `start` on; return the state behind it."""
        match expression:
            case Characters(ranges):
                end = self.new_state()
                for low, high in ranges:
                    for sequence in utf8_byte_ranges(low, high):
                        self._add_bytes(sequence, start, end)
                return end
            case Assertion(kind):
                end = self.new_state()
                self.epsilon_edges[start].append((kind, end))
                return end
            case Sequenced(items):
                for item in items:
                    start = self.add(item, start)
                return start
            case Choice(items):
                end = self.new_state()
                for item in items:
                    begin = self.new_state()
                    self.epsilon_edges[start].append(("", begin))
                    self.epsilon_edges[self.add(item, begin)].append(("", end))
                return end
            case Repetition(item, least, most):
                return self._add_repetition(item, least, most, start)

    def _add_bytes(self, sequence: list[tuple[int, int]], start: int, end: int) -> None:
        for k, (low, high) in enumerate(sequence):
            following = end if k == len(sequence) - 1 else self.new_state()
            self.byte_edges[start].append((low, high, following))
            start = following

    def _add_repetition(self, item: Expression, least: int, most: int | None, start: int) -> int:
        for _ in range(least):
            start = self.add(item, start)
        end = self.new_state()
        if most is None:
            # a state of its own: the edge back to `start` could reach alternatives that begin there
            loop = self.new_state()
            self.epsilon_edges[start].append(("", loop))
            self.epsilon_edges[self.add(item, loop)].append(("", loop))
            self.epsilon_edges[loop].append(("", end))
            return end
        for _ in range(most - least):
            self.epsilon_edges[start].append(("", end))
            start = self.add(item, start)
        self.epsilon_edges[start].append(("", end))
        return end


def _too_large(pattern: str) -> AotcError:
    text = f"the regular expression {pattern[:80]!r} is not supported: its automaton is too large"
    return AotcError("graph-regex", text)


def utf8_byte_ranges(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Yield sequences of ranges of bytes that together are the UTF-8 texts of the code points `low` to `high`,
    surrogates excepted.
    """
    pending = [(low, high)]
    while pending:
        low, high = pending.pop()
        if low > high or (_SURROGATES[0] <= low and high <= _SURROGATES[1]):
            continue
        cut = _place_to_cut(low, high)
        if cut is None:
            first, last = (chr(point).encode("utf-8") for point in (low, high))
            yield list(zip(first, last, strict=True))
        else:
            pending += [(cut + 1, high), (low, cut)]


def _place_to_cut(low: int, high: int) -> int | None:
    """Return the last code point of the first part of a range whose texts are not one sequence of ranges of
    bytes; None for others.
    """
    for last in (*_LAST_POINTS, _SURROGATES[1]):
        if low <= last < high:
            return last
    # a byte that differs must be followed by all values of the bytes behind it
    for bits in (6, 12, 18):
        rest = (1 << bits) - 1
        if high > 0x7F and low & ~rest != high & ~rest:
            if low & rest:
                return low | rest
            if high & rest != rest:
                return (high & ~rest) - 1
    return None


# --- deterministic automata


def _epsilon_closure(
    nondeterministic: _NondeterministicAutomaton, states: frozenset[int], before: int, after: int
) -> frozenset[int]:
    """Return the states that are reached without reading a byte, between bytes of the kinds `before` and `after`."""
    found, pending = set(states), list(states)
    while pending:
        for condition, state in nondeterministic.epsilon_edges[pending.pop()]:
            if state not in found and (not condition or _holds(condition, before, after)):
                found.add(state)
                pending.append(state)
    return frozenset(found)


def _holds(condition: str, before: int, after: int) -> bool:
    match condition:
        case "begin text":
            return before == _BEGIN
        case "end text":
            return after == _END
        case "begin line":
            return before in (_BEGIN, _NEWLINE)
        case "end line":
            return after in (_END, _NEWLINE)
    return ((before == _WORD) != (after == _WORD)) == (condition == "word boundary")


def _kind_of_byte(byte: int) -> int:
    if byte == STRING_PADDING:
        return _END
    if byte == ord("\n"):
        return _NEWLINE
    return _WORD if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) == "_") else _OTHER


def _byte_classes(nondeterministic: _NondeterministicAutomaton, has_kinds: bool) -> tuple[Array, list[int]]:
    """Return the class of each byte, and a byte of each class: bytes that no edge and no assertion distinguishes
    have one class. The last class is that of the end of a text.
    """
    cuts = {end for edges in nondeterministic.byte_edges for low, high, _ in edges for end in (low, high + 1)}
    keys: dict[tuple[int, int], int] = {}
    part, classes, examples = 0, np.zeros(256, np.int32), list[int]()
    for byte in range(256):
        part += byte in cuts
        key = (part, _kind_of_byte(byte) if has_kinds else 0) if byte != STRING_PADDING else (-1, 0)
        if key not in keys:
            keys[key] = len(keys)
            examples.append(byte)
        classes[byte] = keys[key]
    return classes, examples


def automaton_of_expression(expression: Expression, pattern: str) -> Automaton:
    """Return the automaton of a regular expression (Rabin and Scott's construction of subsets). Raises AotcError
    (code "graph-regex") if it is too large.
    """
    nondeterministic = _NondeterministicAutomaton(pattern)
    start = nondeterministic.new_state()
    final = nondeterministic.add(expression, start)
    has_kinds = any(condition for edges in nondeterministic.epsilon_edges for condition, _ in edges)
    classes, examples = _byte_classes(nondeterministic, has_kinds)
    kinds = [_kind_of_byte(byte) if has_kinds else _OTHER for byte in examples]
    # a state is what was reached by the last byte, and the kind of this byte
    begin = (frozenset((start,)), _BEGIN if has_kinds else _OTHER)
    first_states = [(frozenset((start,)), kind) for kind in kinds[:-1]]
    numbers = {state: k for k, state in enumerate(dict.fromkeys((begin, *first_states)))}
    pending, rows, accepts = list(numbers), list[list[int]](), list[list[bool]]()
    for states, before in pending:
        row, accepted = list[int](), list[bool]()
        for byte, after in zip(examples, kinds, strict=True):
            closure = _epsilon_closure(nondeterministic, states, before, after if has_kinds else _OTHER)
            accepted.append(final in closure)
            if byte != STRING_PADDING:
                reached = frozenset(
                    t for s in closure for low, high, t in nondeterministic.byte_edges[s] if low <= byte <= high
                )
                # after a dead end, what the byte was does not matter
                following = (reached, after if reached else _OTHER)
                if following not in numbers:
                    numbers[following] = len(numbers)
                    pending.append(following)
                row.append(numbers[following])
        rows.append(row)
        accepts.append(accepted)
        if len(pending) * len(examples) > MAX_TABLE_ELEMENTS or len(pending) > MAX_STATES:
            raise _too_large(pattern)
    starts = [*(numbers[state] for state in first_states), numbers[begin]]
    return _merged(classes, np.array(rows, np.int32), np.array(accepts), np.array(starts, np.int32))


def _merged(classes: Array, next_states: Array, accepts: Array, starts: Array) -> Automaton:
    """Return an automaton with one state in place of those that no text distinguishes (Moore's algorithm)."""
    _, groups = np.unique(accepts, axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    while True:
        rows = np.column_stack([groups, groups[next_states]])
        _, firsts, finer = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        finer = finer.reshape(-1)
        if finer.max() == groups.max():
            return Automaton(classes, finer[next_states[firsts]], accepts[firsts], finer[starts])
        groups = finer


def full_match_table(automaton: Automaton) -> tuple[Array, int]:
    """Return the table of an automaton that reads whole texts and their end, (states, classes), and its state
    after texts that match; state 0 is the one before the text.
    """
    count = len(automaton.next_states)
    matched, failed = count, count + 1
    ends = np.where(automaton.accepts[:, -1:], matched, failed)
    body = np.concatenate([automaton.next_states, ends], 1)
    sinks = np.repeat([[matched], [failed]], body.shape[1], 1)
    table = np.concatenate([body, sinks])
    first = int(automaton.starts[-1])
    # exchange the numbers 0 and `first`
    order = np.arange(len(table))
    order[[0, first]] = first, 0
    return order[table[order]], matched
