# SPDX-License-Identifier: Apache-2.0
"""Ill-formed programs: each is an error that Relay's users can catch, with its position in the text."""

from __future__ import annotations

import pytest

import aotc
from aotc import relay
from aotc.relay import transform
from aotc.relay.analysis import check_kind

BOX = "type Box { Full(int32), Empty }\n"
PAIR = "type Pair[A] { Both(A, A) }\n"
#: Texts; where each is wrong, as line and column; a part of the message, and one of the hint.
TEXTS = {
    "no version": ("def @main() { 1 }", "1:1", "semantic version", "#[version"),
    "other version": ('#[version = "0.0.9"]\ndef @main() { 1 }', "1:13", '"0.0.9"', "0.0.5"),
    "character": ("def @main(%x: int32) { %x $ 1 }", "2:27", "'$'", "remove it; operators"),
    "no end": ("def @main(%x: int32) { add(%x, 1", "2:33", "found end of text", "commas separate items;"),
    "comment without end": ("/* to be\ndef @main() { 1 }", "2:1", "does not end", "close it with `*/`, one"),
    "string without end": ('def @main() { "open }', "2:15", "does not end", 'close it with `"` on this'),
    "no body": ("def @main(%x: int32)", "2:21", "expected `{`", "bodies, branches and"),
    "no semicolon": (
        "def @main(%x: int32) {\n let %y = %x + 1\n %y }",
        "4:2",
        "expected `;`",
        "`let` and `%0 = ...` end",
    ),
    "no value": ("def @main(%x: int32) { let %y = ; %y }", "2:33", "expected an expression", "write %variable,"),
    "operator": ("def @main(%x: int32) { ad(%x, 1) }", "2:24", "`ad` not found", "'add'"),
    "attribute": ("def @main(%x: float32) { nn.softmax(%x, axsi=0) }", "2:26", "`axsi`", "'axis'"),
    "attribute's value": (
        'def @main(%x: float32) { nn.softmax(%x, axis="one") }',
        "2:26",
        "must be int",
        "write a whole number",
    ),
    "arguments": (
        "def @main(%x: float32) { add(%x) }",
        "2:26",
        "expected 2 arguments, got 1",
        "add(lhs, rhs): `add` of",
    ),
    "type": ("def @main(%x: Tensr[(2), float32]) { %x }", "2:15", "'Tensr'", "known: bool"),
    "element": ("def @main(%x: Tensor[(2), flot32]) { %x }", "2:27", "'flot32'", "known: bool"),
    "vector": ("def @main(%x: int8x4) { %x }", "2:15", "'int8x4'", "known: bool"),
    "dimension": (
        "def @main(%x: Tensor[(2, -1), int8]) { %x }",
        "2:26",
        "expected a dimension",
        "sizes are 0, 1, 2 and so",
    ),
    "integer": ("def @main() { 70000i16 }", "2:15", "does not fit int16", "it holds -32768 to 32767;"),
    "float": ("def @main() { 3.5e39f }", "2:15", "does not fit float32", "it holds up to"),
    "metadata": ("def @main() { meta[relay.Constant][3] }", "2:15", "no metadata", "show_meta_data"),
    "variable": ("def @main(%image: int32) { %imge }", "2:28", "%imge is not defined", "'image'"),
    "temporary": ("def @main(%x: int32) { %1 }", "2:24", "%1 has not yet been defined", "write `%1 = ...;` before"),
    "temporary twice": (
        "def @main(%x: int32) { %0 = %x + 1; %0 = %x; %0 }",
        "2:37",
        "%0 is defined twice",
        "give one of the two",
    ),
    "parameter twice": ("def @main(%x: int32, %x: int32) { %x }", "2:22", "%x is named twice", "give one of the two"),
    "function twice": ("def @main() { 1 }\ndef @main() { 2 }", "3:5", "@main is defined twice", "give one of the two"),
    "function": ("def @half() { 1 }\ndef @main() { @halve() }", "3:15", "no function @halve", "'half'"),
    "function's arguments": (
        "def @f() -> int32 { 1 }\ndef @main() { @f(1) }",
        "3:15",
        "takes 0 arguments, got 1",
        "its type is fn () -> int32",
    ),
    "result": ("def @main(%x: int32) -> float32 { %x }", "2:5", "declared `float32`", "cast(...,"),
    "condition": (
        "def @main(%x: int32) { if (%x) { 1 } else { 2 } }",
        "2:24",
        "must be a bool scalar",
        'cast(..., dtype="bool")',
    ),
    "branches": (
        "def @main(%c: bool) { if (%c) { 1 } else { 2f } }",
        "2:23",
        "int32 and float32",
        'cast(..., dtype="int32")',
    ),
    "field": ("def @main(%x: (int32, int32)) { %x.2 }", "2:35", "no field 2", "its fields are .0 to .1"),
    "field of a tensor": ("def @main(%x: int32) { %x.0 }", "2:26", "no field 0", "only tuples have fields:"),
    "call of a tensor": ("def @main(%x: int32) { %x(1) }", "2:24", "called as a function", "call an operator,"),
    "shapes": (
        "def @main(%x: Tensor[(3), int8], %y: Tensor[(4), int8]) { %x + %y }",
        "2:62",
        "not broadcast",
        "extents are equal or 1,",
    ),
    "elements": ("def @main(%x: float32) { %x + 1 }", "2:29", "float32 and int32 do not match", "cast one of them:"),
    "axis": (
        "def @main(%x: Tensor[(2), float32]) { nn.softmax(%x, axis=3) }",
        "2:39",
        "outside rank 1",
        "axes are -1 to 0",
    ),
    "size": (
        "def @main(%x: Tensor[(6), int8]) { reshape(%x, newshape=[4]) }",
        "2:36",
        "cannot become (4)",
        "the product of the",
    ),
    "let's type": ("def @main() { let %x: float32 = 1; %x }", "2:15", "declared as float32", "declare it as int32, or"),
    "reference": ("def @main(%x: int32) { ref_read(%x) }", "2:24", "is no reference", "make one of it: ref(value)"),
    "what is written": (
        "def @main() { let %r = ref(1); ref_write(%r, 2f) }",
        "2:32",
        "reference of type int32",
        'cast(..., dtype="int32")',
    ),
    "constructor": (BOX + "def @main() { Ful(1) }", "3:15", "`Ful` not found", "'Full'"),
    "constructor's arguments": (
        BOX + "def @main() -> Box[] { Full(1, 2) }",
        "3:24",
        "takes 1 arguments, got 2",
        "its type is fn (int32) ->",
    ),
    "constructor twice": ("type Box { Full(int32), Full }", "2:25", "Full is defined twice", "give one of the two"),
    "type twice": (BOX + "type Box { Other }", "3:6", "type Box is defined twice", "give one of the two"),
    "no such type": ("def @main(%x: Box[int32]) { %x }", "2:15", "'Box'", "known: bool"),
    "type variable twice": ("type Box[A, A] { Full(A) }", "2:13", "A is named twice", "give one of the two"),
    "cases": (
        BOX + "def @main(%b: Box[]) { match (%b) { Full(%x) => %x } }",
        "3:24",
        "not cover all values",
        "add a clause for Empty,",
    ),
    "pattern": (
        BOX + "def @main(%b: Box[]) { match? (%b) { Full(%x, %y) => %x } }",
        "3:24",
        "does not match",
        "write Full(_)",
    ),
    "match of a tensor": (
        BOX + "def @main(%b: int32) { match? (%b) { Empty => 0 } }",
        "3:24",
        "does not match",
        "write %name or _",
    ),
    "type not known": ("def @main(%x) { %x }", "2:11", "cannot infer the type of %x", "annotate it"),
    "data type's types": (
        PAIR + "def @main(%b: Pair[int32, int32]) { %b }",
        "3:11",
        "Pair takes 1 types, got 2",
        "write Pair[A], with a",
    ),
    "data type without its types": (
        PAIR + "def @main(%b: Pair) { %b }",
        "3:11",
        "Pair takes 1 types, got 0",
        "write Pair[A], with a",
    ),
    "result's types": (
        PAIR + "def @main(%x: int32) -> Pair[] { Both(%x, %x) }",
        "3:5",
        "Pair takes 1 types, got 0",
        "write Pair[A], with a",
    ),
    "constructor's types": (
        PAIR + "type Deep { Of(Pair[]) }\ndef @main() { 1 }",
        "3:13",
        "Pair takes 1 types, got 0",
        "write Pair[A], with a",
    ),
    "attribute twice": (
        "def @main(%x: float32) { nn.softmax(%x, axis=0, axis=1) }",
        "2:49",
        "attribute `axis` is given twice",
        "remove one of the two",
    ),
    "argument after attribute": (
        "def @main(%x: float32) { nn.softmax(axis=0, %x) }",
        "2:45",
        "an argument cannot follow an",
        "write all arguments first",
    ),
    "call of a tuple": (
        "def @main(%x: int32) { (%x, %x)(1) }",
        "2:24",
        "a tuple cannot be called",
        "call an operator,",
    ),
    "call of a number": ("def @main() { 1(2) }", "2:15", "a constant cannot be called", "call an operator,"),
    "attributes of a function": (
        "def @f(%x: int32) { %x }\ndef @main(%x: int32) { @f(%x, axis=1) }",
        "3:24",
        "only operators take attributes",
        "pass it as an argument",
    ),
    "reference of two": (
        "def @main(%x: int32) { ref(%x, %x) }",
        "2:24",
        "ref takes 1 arguments, got 2",
        "write ref(value),",
    ),
    "write of one": (
        "def @main(%x: int32) { ref_write(ref(%x)) }",
        "2:24",
        "ref_write takes 2 arguments, got 1",
        "write ref(value),",
    ),
    "sign of a variable": (
        "def @main(%x: int32) { -%x }",
        "2:24",
        "expected an expression, found `-`",
        "negative(%x) changes",
    ),
    "no else": (
        "def @main(%c: bool) { if (%c) { 1 } }",
        "2:37",
        "expected `else`, found `}`",
        "write both branches: if",
    ),
    "keyword": ("def @main(%x: int32) { %x + def }", "2:29", "expected an expression, found the", "write %variable,"),
    "no arrow": (
        BOX + "def @main(%b: Box[]) { match (%b) { Full(%x) %x, Empty => 0 } }",
        "3:46",
        "expected `=>`, found `x`",
        "a clause is written",
    ),
    "pattern's name": (
        BOX + "def @main(%b: Box[]) { match (%b) { Ful(%x) => %x, Empty => 0 } }",
        "3:37",
        "no constructor is called Ful",
        "did you mean 'Full'?",
    ),
    "pattern is a number": (
        BOX + "def @main(%b: Box[]) { match (%b) { 1 => 0 } }",
        "3:37",
        "expected a pattern, found `1`",
        "names have letters,",
    ),
    "clauses": (
        BOX + "def @main(%b: Box[]) { match (%b) { Full(%x) => %x, Empty => 2f } }",
        "3:24",
        "clauses have types int32 and",
        'cast(..., dtype="int32")',
    ),
    "pattern of a tuple": (
        "def @main(%p: (int32, int32)) { match? (%p) { (%a, %b, %c) => %a } }",
        "2:33",
        "a pattern does not match values",
        "write (_, _)",
    ),
    "pattern's type": (
        "def @main(%x: int32) { match (%x) { %y: float32 => 1 } }",
        "2:24",
        "a pattern does not match values",
        "annotate it as int32",
    ),
    "after the end": ("1 + 2 )", "2:7", "expected the end of the text,", "a module is made of `def"),
    "no function's name": ("def main() { 1 }", "2:5", "expected the name of a function,", "functions are written"),
    "word between functions": (
        "def @main() { 1 }\nlet",
        "3:1",
        "expected `def`, found `let`",
        "a module is made of `def",
    ),
    "parameter without sigil": (
        "def @main(x: int32) { 1 }",
        "2:12",
        "expected `=`, found `:`",
        "`=` stands before the",
    ),
    "let without a name": (
        "def @main() { let 1 = 2; 3 }",
        "2:19",
        "expected a variable, found `1`",
        "variables are written",
    ),
    "type's brackets": (
        "def @main(%x: Tensor[(2), float32) { %x }",
        "2:34",
        "expected `]`, found `)`",
        "write `]` after `float32`",
    ),
    "fraction": (
        "def @main(%x: Tensor[(2.5), float32]) { %x }",
        "2:23",
        'expected a size, found "2.5"',
        "sizes are 0, 1, 2 and so",
    ),
    "bound": (
        "def @main(%x: Tensor[(n<=m), float32]) { %x }",
        "2:26",
        "expected a size, found `m`",
        "write a number, such as 3",
    ),
    "attribute's word": (
        "def @main(%x: float32) { nn.softmax(%x, axis=one) }",
        "2:46",
        "expected an attribute value,",
        'write a number, "text",',
    ),
    "attribute's comma": (
        "def @main(%x: Tensor[(6), int8]) { reshape(%x, newshape=[2 3]) }",
        "2:60",
        "expected `,`, found `3`",
        "commas separate items;",
    ),
    "attribute's name": (
        "def @main(%x: Tensor[(6), int8]) { reshape(%x) }",
        "2:36",
        "operator reshape needs the",
        "add newshape=...",
    ),
    "wide number": ("def @main() { 1e999 }", "2:15", "1e999 does not fit any data type", "write inff for infinity"),
    "half number": ("def @main() { 1.5i32 }", "2:15", "malformed number `1.5i32`", "numbers are written 1,"),
    "temporary of a branch": (
        "def @main(%c: bool) { if (%c) { let %y = 1; %0 = %y + 1; %0 } else { 2 }; %0 }",
        "2:75",
        "%0 depends on %y, which is not",
        "use %0 inside, where %y",
    ),
    "call's argument": (
        "def @f(%x: int32) -> int32 { %x }\ndef @main(%y: float32) { @f(%y) }",
        "3:26",
        "argument 0 is float32, the",
        'cast(..., dtype="int32")',
    ),
    "call's tuple": (
        "def @f(%x: int32) -> int32 { %x }\ndef @main(%y: (float32, int32)) { @f(%y) }",
        "3:35",
        "argument 0 is (float32, int32),",
        "take the tuple's field",
    ),
    "call's rank": (
        "def @f(%x: Tensor[(2, 3), int32]) -> int32 { 1 }\ndef @main(%y: Tensor[(6), int32]) { @f(%y) }",
        "3:37",
        "argument 0 is Tensor[(6), int32],",
        "reshape, expand_dims,",
    ),
    "tuple is added": (
        "def @main(%x: (int32, int32)) { %x + 1 }",
        "2:36",
        "argument must be a tensor, got",
        "take one of its fields: .0",
    ),
    "tensor is joined": (
        "def @main(%x: Tensor[(2), int8]) { concatenate(%x) }",
        "2:36",
        "data must be a tuple of tensors,",
        "concatenate(data): Tensors",
    ),
    "joined shapes": (
        "def @main(%x: Tensor[(2, 3), int8], %y: Tensor[(2, 4), int8]) { concatenate((%x, %y)) }",
        "2:65",
        "dimensions 3, 4 should be equal",
        "concatenate(data): Tensors",
    ),
    "joined elements": (
        "def @main(%x: Tensor[(2), int8], %y: Tensor[(2), int16]) { concatenate((%x, %y)) }",
        "2:60",
        "data types int8 and int16 do not",
        "cast one of them:",
    ),
    "squeezed": (
        "def @main(%x: Tensor[(1, 4, 1), int8]) { squeeze(%x, axis=[1]) }",
        "2:42",
        "axis 1 of (1, 4, 1) is not 1",
        "squeeze(data): The data without",
    ),
    "dense": (
        "def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 5), float32]) { nn.dense(%x, %w, units=4) }",
        "2:71",
        "the summed dimensions differ: 3",
        "nn.dense(data, weight):",
    ),
    "matmul": (
        "def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 5), float32]) { nn.matmul(%x, %w, units=5) }",
        "2:71",
        "the summed dimensions differ: 3",
        "nn.matmul(tensor_a,",
    ),
    "bias": (
        "def @main(%x: Tensor[(2, 3), float32], %b: Tensor[(4), float32]) { nn.bias_add(%x, %b) }",
        "2:68",
        "bias (4) does not fit axis 1 of",
        "nn.bias_add(data, bias):",
    ),
    "bias of a scalar": (
        "def @main() { nn.bias_add(1, 2) }",
        "2:15",
        "axis 1 is outside rank 0",
        "a scalar has no axes:",
    ),
    "convolution's rank": (
        "def @main(%x: Tensor[(3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) { nn.conv2d(%x, %w) }",
        "2:80",
        "data must have rank 4, got",
        "nn.conv2d(data, weight):",
    ),
    "convolution's channels": (
        "def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 5, 3, 3), float32]) { nn.conv2d(%x, %w) }",
        "2:83",
        "3 input channels: with groups=1",
        "nn.conv2d(data, weight):",
    ),
    "transposed": (
        "def @main(%x: Tensor[(2, 3), float32]) { transpose(%x, axes=[0, 0]) }",
        "2:42",
        "axes (0, 0) are not a permutation",
        "transpose(data): The data with permuted axes",
    ),
    "split": (
        "def @main(%x: Tensor[(7), float32]) { split(%x, indices_or_sections=2) }",
        "2:39",
        "7 cannot be split into 2 equal parts",
        "split(data): A tuple of",
    ),
    "indices": (
        "def @main(%x: Tensor[(7), float32]) { take(%x, 1f) }",
        "2:39",
        "indices must be integers, got",
        "take(data, indices): Slices",
    ),
    "sequence lengths": (
        "def @main(%x: Tensor[(4, 4), int8], %n: Tensor[(5), int32]) { reverse_sequence(%x, %n, seq_axis=1) }",
        "2:63",
        "one integer length per batch",
        "reverse_sequence(data,",
    ),
    "condition's shape": (
        "def @main(%c: Tensor[(3), bool], %x: Tensor[(2), int8]) { where(%c, %x, %x) }",
        "2:59",
        "shapes (3) and (2) do not",
        "extents are equal or 1,",
    ),
    "logical": (
        "def @main(%x: float32) { logical_not(%x) }",
        "2:26",
        "data type float32 is not supported",
        "logical_not(data):",
    ),
    "root of integers": (
        "def @main(%x: int32) { sqrt(%x) }",
        "2:24",
        "data type int32 is not supported",
        "sqrt(data): `sqrt` of",
    ),
    "repeated": (
        "def @main(%x: Tensor[(2), int8]) { repeat(%x, repeats=2, axis=4) }",
        "2:36",
        "axis 4 is outside rank 1",
        "axes are -1 to 0",
    ),
    "stacked": (
        "def @main(%x: Tensor[(2), int8], %y: Tensor[(3), int8]) { stack((%x, %y), axis=0) }",
        "2:59",
        "dimensions 2, 3 should be equal",
        "stack(data): Tensors of",
    ),
    "broadcast_to": (
        "def @main(%x: Tensor[(3), int8]) { broadcast_to(%x, shape=[2, 4]) }",
        "2:36",
        "(3) does not broadcast to (2, 4)",
        "broadcast_to(data):",
    ),
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
    assert hint in first.hint and first.hint


X, K, Y = relay.var("x", shape=(2, 3)), relay.var("i", shape=(2, 3), dtype="int32"), relay.var("y", shape=(4,))
SHAPE = relay.TypeVar("s", relay.TypeKind.ShapeVar)
TYPE = relay.GlobalTypeVar("T", relay.TypeKind.Type)
#: Calls that Python makes, or types; what the message begins with, and a part of the hint.
BUILT = {
    "elements": (lambda: X + K, "add: data types", "cast one of them"),
    "shapes": (lambda: relay.multiply(X, Y), "multiply: shapes", "equal or 1"),
    "tuple": (lambda: relay.nn.relu(relay.Tuple([X, X])), "nn.relu: argument must be a tensor", "its fields"),
    "tensor": (lambda: relay.concatenate(X, 0), "concatenate: data must be a tuple", "Tensors concatenated"),
    "axis": (lambda: relay.nn.softmax(X, axis=5), "nn.softmax: axis 5", "axes are -2 to 1"),
    "size": (lambda: relay.reshape(X, [7]), "reshape: (2, 3) cannot become (7)", "-1 stands for"),
    "indices": (lambda: relay.take(X, X), "take: indices must be integers", "take(data, indices)"),
    "rank": (lambda: relay.nn.conv2d(X, X), "nn.conv2d: ", "nn.conv2d(data, weight)"),
    "dense": (lambda: relay.nn.dense(X, Y), "nn.dense: ", "nn.dense(data, weight)"),
    "squeeze": (lambda: relay.squeeze(X, axis=[0]), "squeeze: axis 0 of (2, 3) is not 1", "of extent 1"),
    "condition": (lambda: relay.where(X, X, X), "where: ", "where(condition, x, y)"),
    "scalar": (lambda: relay.nn.bias_add(relay.const(1), relay.const(2)), "nn.bias_add: axis 1", "expand_dims"),
    "kind of a field": (lambda: check_kind(relay.TupleType([SHAPE])), "a part of a TupleType", "kind Type"),
    "kind of a result": (lambda: check_kind(relay.FuncType([], SHAPE, [SHAPE])), "a part of a FuncType", "kind Type"),
    "kind of a reference": (lambda: check_kind(relay.RefType(SHAPE)), "a part of a RefType", "replace s by"),
    "kind of a callee": (lambda: check_kind(relay.TypeCall(TYPE, [])), "T is of kind Type", "AdtHandle"),
}


@pytest.mark.parametrize("name", BUILT)
def test_calls(name: str) -> None:
    make, message, hint = BUILT[name]
    with pytest.raises(aotc.TVMError) as caught:
        transform.InferType()(aotc.IRModule.from_expr(make()))
    first = caught.value.diagnostics[0]
    assert first.message.startswith(message) and hint in first.hint


def test_errors_of_calls_have_the_places_of_calls() -> None:
    span = relay.Span(relay.SourceName("made.py"), 3, 3, 7, 9)
    call = relay.Call(relay.op.get("add"), [X, K], span=span)
    with pytest.raises(aotc.TVMError, match=r"made\.py:3:7: add: data types") as caught:
        transform.InferType()(aotc.IRModule.from_expr(call))
    assert "cast one of them" in caught.value.diagnostics[0].hint


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
