# SPDX-License-Identifier: Apache-2.0
"""Propose state pairs of a model from the names and types of its inputs and outputs.

propose_state_pairs(module)                     # [("past_key_values.0.key", "present.0.key"), ("h0", "hn")]
propose_growing_state(typed_interface(module))  # [("past_*", "present_*:512")]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from aotc.driver.state_pairs import WILDCARD, ModelInterface, input_names_matching_state, typed_interface
from aotc.ir import SymDim, TensorType, same_dim
from aotc.relay.module import IRModule

#: Words of names that tell the old contents of a state from the new ones.
_ROLE_WORDS: Final = frozenset(
    [
        *("past", "present", "prev", "previous", "next", "new", "old", "in", "out", "input", "output"),
        *("cur", "current", "last", "updated", "init", "initial", "final", "n", "t", "i", "o"),
    ]
)
#: Role words that only state has.
_STATE_ROLE_WORDS: Final = frozenset(["past", "present", "prev", "previous", "next", "updated"])
#: Words of names of state.
_STATE_WORDS: Final = frozenset(
    ["state", "states", "cache", "caches", "hidden", "cell", "memory", "mem", "buffer", "history", "h", "c", "hx", "cx"]
)
#: Words of names of caches of attention, which are not in the names of their outputs.
_CACHE_SUFFIX_WORDS: Final = ("key", "values")
_WORD_PATTERN: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
#: Names of the first and of the new contents of recurrent layers.
_RECURRENT_NAMES: Final = {"h0": "h", "hn": "h", "c0": "c", "cn": "c"}

#: Capacity of state that grows where nothing bounds its length.
EXAMPLE_CAPACITY: Final = 512

#: Words of a name without those for its role.
_Stem: TypeAlias = tuple[str, ...]


def propose_state_pairs(module: IRModule) -> list[tuple[str, str]]:
    """Return pairs of an input and an output whose names and types suggest that they are state.

    A pair has one type, and names that differ by words such as "past" and "present" only; one of
    the names has a word such as "cache", "state" or "past". Names that fit several ones are left out.
    """
    interface = typed_interface(module)
    outputs = _names_by_stem_and_type(interface.outputs)
    pairs = []
    for key, names in _names_by_stem_and_type(interface.inputs).items():
        fitting = outputs.get(key, [])
        if len(names) == len(fitting) == 1 and names != fitting and _suggests_state([*names, *fitting]):
            pairs.append((names[0], fitting[0]))
    return pairs


def propose_growing_state(interface: ModelInterface) -> list[tuple[str, str]]:
    """Return values of the option `state` for inputs and outputs whose names and types suggest that they are
    state that grows: names of inputs, and names of outputs with a capacity behind them, with a * for what names
    of several pairs share.

    The types of a pair differ in one axis, whose length is known at run time only. The capacity is the largest
    length of the output, or EXAMPLE_CAPACITY.
    """
    outputs = _names_by_stem(interface.outputs)
    pairs: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
    for stem, pasts in _names_by_stem(interface.inputs).items():
        presents = outputs.get(stem, [])
        if len(pasts) != 1 or len(presents) != 1 or not _suggests_state([*pasts, *presents]):
            continue
        past, present = pasts[0], presents[0]
        capacity = _capacity_of_growth(interface.inputs[past], interface.outputs[present])
        if capacity is not None:
            pairs.setdefault((*_pattern_of_pair(past, present), capacity), []).append((past, present))
    proposals = []
    for (past, present, capacity), named in pairs.items():
        matching = input_names_matching_state({past: present}, list(interface.inputs))
        is_pattern = len(named) > 1 and set(matching) == {name for name, _ in named}
        proposals += [(p, f"{q}:{capacity}") for p, q in ([(past, present)] if is_pattern else named)]
    return proposals


def _capacity_of_growth(before: TensorType, after: TensorType) -> int | None:
    """Return the capacity of a state with these types of the input and the output; None if it does not grow."""
    if before.dtype != after.dtype or before.rank != after.rank:
        return None
    grown = [(b, a) for b, a in zip(before.shape, after.shape, strict=True) if not same_dim(b, a)]
    if len(grown) != 1 or not isinstance(grown[0][0], SymDim):
        return None
    longer = grown[0][1]
    if not isinstance(longer, SymDim):
        return longer
    return EXAMPLE_CAPACITY if longer.upper is None else longer.upper


def _pattern_of_pair(past: str, present: str) -> tuple[str, str]:
    """Return both names with a * for their common end, up to a character between words."""
    size = 0
    while size < min(len(past), len(present)) and past[-1 - size] == present[-1 - size]:
        size += 1
    while size and past[-size].isalnum():
        size -= 1
    return (past, present) if size < 2 else (past[: 1 - size] + WILDCARD, present[: 1 - size] + WILDCARD)


def _names_by_stem(types: Mapping[str, TensorType]) -> dict[_Stem, list[str]]:
    groups: dict[_Stem, list[str]] = {}
    for name in types:
        stem = _name_words_without_role(name)
        if stem or _suggests_state([name]):
            groups.setdefault(stem, []).append(name)
    return groups


def _names_by_stem_and_type(types: Mapping[str, TensorType]) -> dict[tuple[_Stem, TensorType], list[str]]:
    groups: dict[tuple[_Stem, TensorType], list[str]] = {}
    for name, ty in types.items():
        stem = _name_words_without_role(name)
        # "input" and "output" have no other words
        if stem or _suggests_state([name]):
            groups.setdefault((stem, ty), []).append(name)
    return groups


def _lower_case_words_of_name(name: str) -> list[str]:
    """Return the words of a name in lower case: "past_key_values.0" and "stateN" have several."""
    words = [word.lower() for part in re.split(r"[^A-Za-z0-9]+", name) for word in _split_word(part)]
    # past_key_values.0.key and present.0.key
    return [w for k, w in enumerate(words) if (w, *words[k + 1 : k + 2]) != _CACHE_SUFFIX_WORDS and w != "values"]


def _split_word(part: str) -> Iterable[str]:
    return [_RECURRENT_NAMES[part.lower()]] if part.lower() in _RECURRENT_NAMES else _WORD_PATTERN.findall(part)


def _name_words_without_role(name: str) -> _Stem:
    return tuple(word for word in _lower_case_words_of_name(name) if word not in _ROLE_WORDS)


def _suggests_state(names: Iterable[str]) -> bool:
    words = {word for name in names for word in _lower_case_words_of_name(name)}
    return bool(words & (_STATE_WORDS | _STATE_ROLE_WORDS))
