# SPDX-License-Identifier: Apache-2.0
"""Attribute values of a wrong type in Relay text: hints show how right values are written."""

from __future__ import annotations

import dataclasses
import re

import pytest

from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.text.typed_attributes_of_parsed_call import make_typed_attrs


@pytest.mark.parametrize(
    ("operator", "name", "hint"),
    [
        ("nn.dense", "units", 'write a whole number or a dimension (n, ?, "2*n") or None'),
        ("sum", "axis", "write whole numbers in brackets ([1, 2]) or None"),
        ("nn.pad", "pad_width", "write pairs of whole numbers in brackets ([[0, 0], [1, 1]])"),
        ("clip", "a_min", "write a number"),
    ],
)
def test_hints_say_what_to_write(operator: str, name: str, hint: str) -> None:
    assert hint_of(operator, name) == hint


@pytest.mark.always
@pytest.mark.parametrize("operator", OPERATORS_BY_NAME)
def test_attributes_of_all_operators_have_words(operator: str) -> None:
    for field in dataclasses.fields(OPERATORS_BY_NAME[operator].attrs):
        assert not re.search(r"\b(int|float|str|bool|tuple)\b", hint_of(operator, field.name))


def hint_of(operator: str, name: str) -> str:
    """What is said of a value that no attribute takes."""
    op = OPERATORS_BY_NAME[operator]
    others = {f.name: None for f in dataclasses.fields(op.attrs) if f.name != name}
    with pytest.raises(AotcError, match=f"attribute `{name}` of {re.escape(operator)} must be") as caught:
        make_typed_attrs(op, {name: object(), **others})
    return caught.value.diagnostics[0].hint
