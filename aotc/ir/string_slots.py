# SPDX-License-Identifier: Apache-2.0
"""Store strings in slots of bytes: the UTF-8 text of a string, then bytes 0xFF up to the size of a slot.

A tensor of strings of shape S is a tensor of bytes (uint8) of shape (*S, size). The byte 0xFF occurs in no
UTF-8 text, so a slot needs no length, may hold NUL characters, and two strings are equal exactly if their
slots are.

    slots = slots_of_strings(np.array(["a", "bcd"], object), 4)   # [[97, 255, 255, 255], [98, 99, 100, 255]]
    strings_of_slots(slots)                                       # array(["a", "bcd"], dtype=object)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir.ndarray import Array

#: Names of the module attributes that list the inputs and the outputs that are strings.
STRING_INPUTS_ATTRIBUTE: Final = "string_inputs"
STRING_OUTPUTS_ATTRIBUTE: Final = "string_outputs"
#: Byte that fills a slot behind the text of a string.
STRING_PADDING: Final = 0xFF
_PADDING: Final = bytes([STRING_PADDING])
#: Number of characters of a string that a message quotes.
_MAX_QUOTED_CHARACTERS: Final = 40


def utf8_of_string(value: Any) -> bytes:
    """Return the UTF-8 text of a string. Raise ValueError for values that are no strings or have no UTF-8
    text, as lone surrogates.
    """
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} in place of a string")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the string {value[:_MAX_QUOTED_CHARACTERS]!r} has no UTF-8 text: {error.reason}") from error


def _utf8_of_strings(values: Sequence[Any]) -> list[bytes]:
    if {*map(type, values)} <= {str}:
        try:
            return [value.encode() for value in values]
        except UnicodeEncodeError:
            # below, the error names the string
            pass
    return [utf8_of_string(value) for value in values]


def slots_of_strings(strings: Array | Sequence[str], size: int) -> Array:
    """Return the slots of strings, (*shape, size), as bytes.

    strings    str values of any shape

    Raise ValueError for values that are no strings, have no UTF-8 text, or need more than `size` bytes.
    """
    array = np.asarray(strings, object)
    values = array.reshape(-1).tolist()
    texts = _utf8_of_strings(values)
    joined = b"".join([text.ljust(size, _PADDING) for text in texts])
    if len(joined) > len(texts) * size:
        text = next(text for text in texts if len(text) > size)
        quoted = text.decode("utf-8")[:_MAX_QUOTED_CHARACTERS]
        raise ValueError(f"the string {quoted!r} has {len(text)} bytes in UTF-8; at most {size} are allowed")
    slots: Array = np.frombuffer(joined, np.uint8).reshape(*array.shape, size).copy()
    return slots


def strings_of_slots(slots: Array) -> Array:
    """Return the strings in slots (*shape, size) as an array of str objects.

    Bytes that are no UTF-8 text become replacement characters.
    """
    size = slots.shape[-1]
    data = np.ascontiguousarray(slots).tobytes()
    texts = [data[k : k + size].partition(_PADDING)[0] for k in range(0, len(data), size)]
    strings = np.empty(len(texts), object)
    strings[:] = [text.decode("utf-8", "replace") for text in texts]
    shaped: Array = strings.reshape(slots.shape[:-1])
    return shaped


def longest_utf8_bytes(strings: Sequence[str]) -> int:
    """Return the largest number of bytes of a string in UTF-8; 1 if there are only empty strings or none."""
    return max((len(utf8_of_string(text)) for text in strings), default=0) or 1
