# SPDX-License-Identifier: Apache-2.0
"""Programs that are no programs: each is an error that Relay's users catch, with its place in the text."""

from __future__ import annotations

import pytest

import aotc
from aotc import relay
from aotc.relay import transform

BOX = "type Box { Full(int32), Empty }\n"
#: Texts; where each is wrong, as line and column; a part of the message, and one of the hint.
TEXTS = {
    "no version": ("def @main() { 1 }", "1:1", "semantic version", "#[version"),
    "other version": ('#[version = "0.0.9"]\ndef @main() { 1 }', "1:13", '"0.0.9"', "0.0.5"),
    "character": ("def @main(%x: int32) { %x $ 1 }", "2:27", "'$'", ""),
    "no end": ("def @main(%x: int32) { add(%x, 1", "2:33", "found end of text", ""),
    "comment without end": ("/* to be\ndef @main() { 1 }", "2:1", "does not end", ""),
    "string without end": ('def @main() { "open }', "2:15", "does not end", ""),
    "no body": ("def @main(%x: int32)", "2:21", "expected `{`", ""),
    "no semicolon": ("def @main(%x: int32) {\n let %y = %x + 1\n %y }", "4:2", "expected `;`", ""),
    "no value": ("def @main(%x: int32) { let %y = ; %y }", "2:33", "expected an expression", ""),
    "operator": ("def @main(%x: int32) { ad(%x, 1) }", "2:24", "`ad` not found", "'add'"),
    "attribute": ("def @main(%x: float32) { nn.softmax(%x, axsi=0) }", "2:26", "`axsi`", "'axis'"),
    "attribute's value": ('def @main(%x: float32) { nn.softmax(%x, axis="one") }', "2:26", "must be int", ""),
    "arguments": ("def @main(%x: float32) { add(%x) }", "2:26", "expected 2 arguments, got 1", ""),
    "type": ("def @main(%x: Tensr[(2), float32]) { %x }", "2:15", "'Tensr'", "known: bool"),
    "element": ("def @main(%x: Tensor[(2), flot32]) { %x }", "2:27", "'flot32'", "known: bool"),
    "vector": ("def @main(%x: int8x4) { %x }", "2:15", "'int8x4'", "known: bool"),
    "dimension": ("def @main(%x: Tensor[(2, -1), int8]) { %x }", "2:26", "expected a dimension", ""),
    "integer": ("def @main() { 70000i16 }", "2:15", "does not fit int16", ""),
    "float": ("def @main() { 3.5e39f }", "2:15", "does not fit float32", ""),
    "metadata": ("def @main() { meta[relay.Constant][3] }", "2:15", "no metadata", "show_meta_data"),
    "variable": ("def @main(%image: int32) { %imge }", "2:28", "%imge is not defined", "'image'"),
    "temporary": ("def @main(%x: int32) { %1 }", "2:24", "%1 has not yet been defined", ""),
    "temporary twice": ("def @main(%x: int32) { %0 = %x + 1; %0 = %x; %0 }", "2:37", "%0 is defined twice", ""),
    "parameter twice": ("def @main(%x: int32, %x: int32) { %x }", "2:22", "%x is named twice", ""),
    "function twice": ("def @main() { 1 }\ndef @main() { 2 }", "3:5", "@main is defined twice", ""),
    "function": ("def @half() { 1 }\ndef @main() { @halve() }", "3:15", "no function @halve", "'half'"),
    "function's arguments": ("def @f() -> int32 { 1 }\ndef @main() { @f(1) }", "3:15", "takes 0 arguments, got 1", ""),
    "result": ("def @main(%x: int32) -> float32 { %x }", "2:5", "declared `float32`", ""),
    "condition": ("def @main(%x: int32) { if (%x) { 1 } else { 2 } }", "2:24", "must be a bool scalar", ""),
    "branches": ("def @main(%c: bool) { if (%c) { 1 } else { 2f } }", "2:23", "int32 and float32", ""),
    "field": ("def @main(%x: (int32, int32)) { %x.2 }", "2:35", "no field 2", ""),
    "field of a tensor": ("def @main(%x: int32) { %x.0 }", "2:26", "no field 0", ""),
    "call of a tensor": ("def @main(%x: int32) { %x(1) }", "2:24", "called as a function", ""),
    "shapes": ("def @main(%x: Tensor[(3), int8], %y: Tensor[(4), int8]) { %x + %y }", "2:62", "not broadcast", ""),
    "elements": ("def @main(%x: float32) { %x + 1 }", "2:29", "float32 and int32 do not match", ""),
    "axis": ("def @main(%x: Tensor[(2), float32]) { nn.softmax(%x, axis=3) }", "2:39", "outside rank 1", ""),
    "size": ("def @main(%x: Tensor[(6), int8]) { reshape(%x, newshape=[4]) }", "2:36", "cannot become (4)", ""),
    "let's type": ("def @main() { let %x: float32 = 1; %x }", "2:15", "declared as float32", ""),
    "reference": ("def @main(%x: int32) { ref_read(%x) }", "2:24", "is no reference", ""),
    "what is written": ("def @main() { let %r = ref(1); ref_write(%r, 2f) }", "2:32", "reference of type int32", ""),
    "constructor": (BOX + "def @main() { Ful(1) }", "3:15", "`Ful` not found", "'Full'"),
    "constructor's arguments": (BOX + "def @main() -> Box[] { Full(1, 2) }", "3:24", "takes 1 arguments, got 2", ""),
    "constructor twice": ("type Box { Full(int32), Full }", "2:25", "Full is defined twice", ""),
    "type twice": (BOX + "type Box { Other }", "3:6", "type Box is defined twice", ""),
    "no such type": ("def @main(%x: Box[int32]) { %x }", "2:15", "'Box'", "known: bool"),
    "type variable twice": ("type Box[A, A] { Full(A) }", "2:13", "A is named twice", ""),
    "cases": (BOX + "def @main(%b: Box[]) { match (%b) { Full(%x) => %x } }", "3:24", "not cover all values", ""),
    "pattern": (BOX + "def @main(%b: Box[]) { match? (%b) { Full(%x, %y) => %x } }", "3:24", "does not match", ""),
    "match of a tensor": (BOX + "def @main(%b: int32) { match? (%b) { Empty => 0 } }", "3:24", "does not match", ""),
    "type not known": ("def @main(%x) { %x }", "2:11", "cannot infer the type of %x", "annotate it"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    text, place, message, hint = TEXTS[name]
    if "version" not in name:
        text = f'#[version = "0.0.5"]\n{text}'
    with pytest.raises(aotc.TVMError) as caught:
        transform.InferType()(relay.parse(text, "program.rly"))
    assert isinstance(caught.value, aotc.error.DiagnosticError)
    first = caught.value.diagnostics[0]
    assert str(first.span) == f"program.rly:{place}" and message in first.message
    assert hint in first.hint and (hint or not first.hint)


def test_operators_pass_on_the_hints_of_their_types() -> None:
    with pytest.raises(aotc.TVMError) as caught:
        relay.cast(relay.var("x", shape=(2,)), "int31")
    first = caught.value.diagnostics[0]
    assert first.message == "cast: unknown data type 'int31'" and first.hint.startswith("known: bool")


def test_contexts_have_an_older_name() -> None:
    with relay.build_config(opt_level=1, disabled_pass=["FoldConstant"]) as context:
        assert isinstance(context, aotc.transform.PassContext) and context.opt_level == 1


def test_bound_variables_come_as_they_are_met() -> None:
    x, y, a = (relay.var(name, shape=()) for name in "xya")
    inner = relay.Function([y], relay.Let(a, y, relay.add(x, a)))
    assert relay.analysis.bound_vars(relay.Function([x], inner)) == [x, y, a]
