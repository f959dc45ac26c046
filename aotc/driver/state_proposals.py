# SPDX-License-Identifier: Apache-2.0
"""Propose state pairs of a model from the names and types of its inputs and outputs.

propose_state_pairs(module)     # [("past_key_values.0.key", "present.0.key"), ("h0", "hn")]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from aotc.driver.state_pairs import typed_interface
from aotc.ir import TensorType
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
