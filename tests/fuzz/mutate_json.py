# SPDX-License-Identifier: Apache-2.0
"""Mutations of JSON documents as trees."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.fuzz.mutate_bytes import FLOATS, INTEGERS, STRINGS, changed_bytes, odds, pick

Generator = np.random.Generator
Place = tuple[Any, Any]
"""A container and a key or index in it."""


def _places(document: Any) -> list[Place]:
    found: list[Place] = []
    stack = [document]
    while stack:
        current = stack.pop()
        keys = list(current) if isinstance(current, dict) else range(len(current)) if isinstance(current, list) else ()
        for key in keys:
            found.append((current, key))
            stack.append(current[key])
    return found


def _other(rng: Generator, old: Any, places: list[Place]) -> Any:
    """A value of the same type, of another, or one from elsewhere in the document."""
    match int(rng.integers(7)):
        case 0:
            return pick(rng, (None, True, False, 0, "", [], {}, 1.5, "x", [[]], {"": None}))
        case 1 | 2:
            container, key = pick(rng, places)
            return json.loads(json.dumps(container[key]))
        case 3 if not isinstance(old, (dict, list)):
            nested: Any = old
            for _ in range(pick(rng, (1, 2, 500))):
                nested = pick(rng, ([nested], {"a": nested}))
            return nested
        case _:
            pass
    match old:
        case bool():
            return not old
        case int():
            return pick(rng, INTEGERS) if odds(rng, 0.6) else old + pick(rng, (-1, 1))
        case float():
            return pick(rng, FLOATS)
        case str():
            words = [c[k] for c, k in places if isinstance(c[k], str)]
            return pick(rng, STRINGS) if odds(rng, 0.4) else pick(rng, words)
        case list():
            return old + old[:1] if odds(rng, 0.5) else old[1:]
        case _:
            return pick(rng, (None, [], "x", 7))


def changed_json(rng: Generator, data: bytes) -> bytes:
    """A document with a value changed, a key gone or of another name; now and then with bytes changed."""
    if odds(rng, 0.1):
        return changed_bytes(rng, data)
    document = json.loads(data)
    places = _places(document)
    if not places:
        return data
    container, key = pick(rng, places)
    match int(rng.integers(6)):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[pick(rng, STRINGS)] = container.pop(key)
        case _:
            container[key] = _other(rng, container[key], places)
    return json.dumps(document).encode()
