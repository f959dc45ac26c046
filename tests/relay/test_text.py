# SPDX-License-Identifier: Apache-2.0
"""The text form is exactly Relay's, and is parsed back to the same program."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.dtype import DTYPES, DType
from aotc.ir.span import Span, span_scope
from aotc.ir.transform import PassContext
from aotc.ir.types import FuncType, TensorType, TupleType
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    splat_constant,
    tensor_type_of,
    typed_op_call,
)
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, less, subtract
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import relu, tanh
from aotc.relay.op.softmax import softmax
from aotc.relay.structural_equality import are_bit_identical, assert_structural_equal, structural_equal
from aotc.relay.text.parser import parse, parse_expr
from aotc.relay.text.printer import astext, to_text
from aotc.relay.transform.fuse_ops import fuse_operators
from aotc.relay.transform.pipeline import optimize
from aotc.relay.type_inference import infer_expr
from aotc.tir.target import get_target
from relay.programs import MATRIX, chain, functions, if_chain, let_chain, matrix

GOLDEN = Path(__file__).parent / "golden"
NETWORKS = ("resnet18", "mobilenet", "mlp", "dcgan", "squeezenet")
HEADER = '#[version = "0.0.5"]\n'


def round_trip(expr: Expr) -> Expr:
    again = parse_expr(astext(expr))
    assert_structural_equal(expr, again)
    return again


def body_of(text: str) -> str:
    return text.split("{\n", 1)[1].rsplit("\n}", 1)[0]


# --- against Relay


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_print_as_relay_prints_them(name: str) -> None:
    module, _ = importlib.import_module(f"aotc.relay.testing.{name.removesuffix('18')}").get_workload()
    golden = (GOLDEN / f"{name}.relay").read_text(encoding="utf-8")
    assert module.astext(show_meta_data=False) == golden
    assert module.astext(show_meta_data=True) == golden
    assert HEADER + str(module) == golden


@pytest.mark.parametrize("name", NETWORKS)
def test_relay_text_reads_back(name: str) -> None:
    golden = (GOLDEN / f"{name}.relay").read_text(encoding="utf-8")
    module = parse(golden, "golden")
    printed = module.astext()
    assert re.sub(r" span=golden:\d+:\d+", "", printed) == golden
    assert_structural_equal(module, parse(printed))


def test_lines_follow_relay_order() -> None:
    """A node is written where its first user is reached, so parallel branches interleave."""
    x = Var("x", MATRIX)
    left, right = relu(tanh(x)), relu(tanh(x))
    text = re.sub(r" /\*.*?\*/", "", to_text(Function((x,), concatenate(Tuple((left, right)), axis=1))))
    assert body_of(text) == (
        "  %0 = tanh(%x);\n  %1 = tanh(%x);\n  %2 = nn.relu(%0);\n  %3 = nn.relu(%1);\n"
        "  %4 = (%2, %3);\n  concatenate(%4, axis=1)"
    )


def test_fused_functions_stand_before_their_calls() -> None:
    x = Var("x", MATRIX)
    text = re.sub(r" /\*.*?\*/", "", to_text(fuse_operators(Function((x,), softmax(softmax(x))))))
    ty = "Tensor[(4, 4), float32]"
    assert body_of(text) == (
        f"  %0 = fn (%p01: {ty}, Primitive=1) -> {ty} {{\n    nn.softmax(%p01)\n  }};\n"
        f"  %1 = %0(%x);\n"
        f"  %2 = fn (%p0: {ty}, Primitive=1) -> {ty} {{\n    nn.softmax(%p0)\n  }};\n"
        f"  %2(%1)"
    )


def test_fresh_names_and_counters_run_through_a_module() -> None:
    def double() -> Function:
        x = Var("x", MATRIX)
        return Function((x,), relu(relu(x)))

    text = str(IRModule({"b": double(), "a": double()}))
    assert re.findall(r"^def @\w+\(%\w+|^  %\d+", text, re.M) == ["def @a(%x", "  %0", "def @b(%x1", "  %1"]
    assert text.startswith("def @a(") and "\n}\n\ndef @b(" in text and text.endswith("}\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int32(1), "1"),
        (np.int64(-3), "-3i64"),
        (np.int16(7), "7i16"),
        (np.float32(2), "2f"),
        (np.float32(1e-5), "1e-05f"),
        (np.float32(1e6), "1e+06f"),
        (np.float32(-0.0), "-0f"),
        (np.float64(1.5), "1.5f64"),
        (np.float16(1.5), "1.5f16"),
        (np.float32(np.inf), "inff"),
        (np.float32(-np.inf), "-inff"),
        (np.float32(np.nan), "nanf"),
        (np.bool_(True), "True"),
        (np.float32(1 / 3), "0.33333334f"),
        (np.float64(0.1 + 0.2), "0.30000000000000004f64"),
        (np.float32(123456789), "1.2345679e+08f"),
        (np.int64(-(2**63)), "-9223372036854775808i64"),
    ],
)
def test_scalars(value: np.generic, text: str) -> None:
    constant = Constant(np.asarray(value))
    assert to_text(constant) == text
    typed = f"{text} /* ty={DType.from_numpy(constant.data)} */"
    assert typed in to_text(infer_expr(Function((), constant)))
    back = parse_expr(text)
    assert isinstance(back, Constant) and back.data.dtype == constant.data.dtype
    assert are_bit_identical(back.data, constant.data)


def test_omitted_metadata_is_said_so() -> None:
    f = Function((), relu(Constant(np.ones((2, 2), np.float32))))
    assert "nn.relu(meta[relay.Constant][0] /* ty=Tensor[(2, 2), float32] */)" in str(f)
    assert str(f).endswith("*/\n")
    without = astext(f, show_meta_data=False)
    assert without.endswith(
        "\n/* For debugging purposes the metadata section has been omitted.\n"
        " * If you would like to see the full metadata section you can set the \n"
        " * option to `True` when invoking `astext`. \n */\n"
    )
    with pytest.raises(AotcError, match="no metadata section"):
        parse_expr(without)
    assert "\n#[metadata]\n{" in astext(f)


def test_small_reprs() -> None:
    assert repr(Var("q", TensorType((1, 2)))) == "Var(q, ty=TensorType([1, 2], float32))"
    assert repr(Constant(np.float32(1))) == "Constant(1.0)"


# --- round trips


@settings(max_examples=150, deadline=None)
@given(functions())
def test_random_functions_read_back(function: Function) -> None:
    round_trip(function)
    fused = fuse_operators(function)
    assert_structural_equal(parse(astext(IRModule({"main": fused})))["main"], fused)


@pytest.mark.parametrize("name", ["mnist8", "kws_fp32", "vittrack"])
def test_trained_models_read_back_and_give_the_same_numbers(models: Path, name: str) -> None:
    if not (models / f"{name}.onnx").is_file():
        pytest.skip(f"no {name}.onnx")
    module = from_onnx(models / f"{name}.onnx")
    with PassContext(opt_level=3):
        optimized = optimize(module, get_target("x86-64-v3"))
    again = parse(astext(optimized))
    assert_structural_equal(again, optimized)
    assert_structural_equal(parse(astext(module)), module)
    rng = np.random.default_rng(0)
    data = [rng.uniform(size=tensor_type_of(p).static_shape).astype(np.float32) for p in module.main.params]
    expected, got = (evaluate(m, *data) for m in (module, again))
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (expected, got)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(np.abs(a).max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_of_every_type_read_back(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2, (2, 3)).astype(dtype.numpy)
    arrays = (array, array[:, ::-1], array[0, 0], np.zeros((0, 3), dtype.numpy))
    again = round_trip(Tuple(map(Constant, arrays)))
    assert isinstance(again, Tuple)
    for before, after in zip(arrays, again.fields, strict=True):
        assert isinstance(after, Constant) and after.data.dtype == before.dtype


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from([d for d in DTYPES if d.bits >= 8 and d.is_float]))
def test_scalars_keep_every_bit(bits: int, dtype: DType) -> None:
    raw = np.frombuffer(bits.to_bytes(8, "little")[: dtype.itemsize], dtype.numpy)[0]
    round_trip(Constant(np.asarray(raw)))


def test_splats_stay_small() -> None:
    constant = splat_constant(0.5, (1000, 1000, 1000), "float32")
    text = astext(constant)
    assert len(text) < 2000
    again = parse_expr(text)
    assert isinstance(again, Constant) and again.is_splat and again.data.shape == constant.data.shape


@pytest.mark.parametrize(
    "name",
    ["input.1", "/layer1/Conv_output_0", "a:0", "a b", 'say "hi"', "*/", "new\nline", "größe", "a.b", "a::b.c", "1x!"],
)
def test_any_name_reads_back(name: str) -> None:
    x = Var(name, MATRIX)
    again = parse(astext(IRModule({"main": Function((x,), relu(x)), name: Function((), relu(matrix(0)))})))
    assert again.main.params[0].name == name
    assert name in again


@pytest.mark.parametrize(
    ("name", "text"), [("x", "%x"), ("0", "%v0"), ("_a", "%v_a"), ("", "%v"), ("a::b.c", "%a::b.c")]
)
def test_plain_names_are_relay_s(name: str, text: str) -> None:
    assert f"({text}: float32" in str(Function((Var(name, TensorType(())),), Constant(np.float32(0))))


def test_types_read_back() -> None:
    dims = (SymDim("n"), SymDim("n", 16), SymDim(), SymDim("", 4), SymDim("2*n + 1"), 3)
    ty = FuncType((TensorType(dims, "int8"), TupleType(()), TupleType((TensorType(()),))), TensorType((5,), "bool"))
    f = Var("f", ty)
    again = round_trip(Function((f,), f))
    assert isinstance(again, Function) and again.params[0].annotation == ty
    assert 'Tensor[(n, n<=16, ?, ?<=4, "2*n+1", 3), int8], (), (float32,)' in str(Function((f,), f))


def test_attributes_read_back() -> None:
    x = Var("x", MATRIX)
    attrs = {
        "Primitive": 1,
        "name": 'a "b"\n',
        "ratio": 1 / 3,
        "none": None,
        "nested": ((1, 2), ()),
        "on": True,
        "a.b": -1,
    }
    round_trip(Function((x,), relu(x), attrs=attrs))
    module = IRModule({"main": Function((x,), x)}, {"output_names": ("a", "b/c:0"), "k": {"deep": (1.5,)}})
    assert structural_equal(parse(astext(module)), module)


def test_recursion_and_global_functions_read_back() -> None:
    scalar = TensorType((), "int32")
    n, f = Var("n", scalar), Var("f", FuncType((scalar,), scalar))
    one = Constant(np.int32(1))
    body = If(less(n, one), n, Call(f, (subtract(n, one),), checked_type=scalar))
    loop = Let(f, Function((n,), body, scalar), Call(f, (Constant(np.int32(9)),), checked_type=scalar))
    m = Var("m", scalar)
    helper = Function((m,), Call(GlobalVar("helper"), (m,)), scalar)
    module = IRModule({"main": Function((), loop, scalar), "helper": helper})
    assert_structural_equal(parse(astext(module)), module)


def test_nodes_shared_across_scopes_stay_shared() -> None:
    x, flag = Var("x", MATRIX), Var("flag", TensorType((), "bool"))
    shared = relu(x)
    branches = If(flag, tanh(shared), shared)
    round_trip(Function((x, flag), add(branches, shared)))
    inner = Function((), tanh(shared))
    round_trip(Function((x, flag), add(Call(inner, (), checked_type=MATRIX), shared)))


def test_lets_in_the_middle_read_back() -> None:
    x, a, b = Var("x", MATRIX), Var("a", MATRIX), Var("b", MATRIX)
    inner = Let(a, relu(x), add(a, a))
    round_trip(Function((x,), relu(inner)))
    round_trip(Function((x,), Let(b, inner, add(b, b))))
    shared = Let(a, relu(x), add(a, a))
    round_trip(Function((x,), add(shared, shared)))


def test_free_variables_are_declared() -> None:
    x, y = Var("x", MATRIX), Var("y", MATRIX)
    text = to_text(add(relu(x), y))
    assert text.splitlines()[0] == "free_var %x: Tensor[(4, 4), float32];"
    again = parse_expr(text)
    assert structural_equal(add(relu(x), y), again, map_free_vars=True)
    assert structural_equal(parse(astext(add(x, y))).main, Function((x, y), add(x, y)))


@pytest.mark.parametrize("make", [lambda: chain(10_000), lambda: let_chain(10_000), lambda: if_chain(400)])
def test_long_programs(make: object) -> None:
    round_trip(make())  # type: ignore[operator]


# --- what people write


def test_infix_operators_bind_as_in_relay() -> None:
    text = "fn (%a: float32, %b: float32) { %a + %b * %a - %b / %a < %a == (%b > %a) }"
    expanded = (
        "fn (%a: float32, %b: float32) { %0 = multiply(%b, %a); %1 = add(%a, %0); %2 = divide(%b, %a);"
        " %3 = subtract(%1, %2); %4 = less(%3, %a); %5 = greater(%b, %a); equal(%4, %5) }"
    )
    assert structural_equal(parse_expr(text), parse_expr(expanded))


def test_sequences_comments_and_projections() -> None:
    text = """fn (%x: (float32, (int8, bool))) { // two statements
        %x.0; /* nested /* comment */ */
        let %y = %x.1.0;
        (%y, %x.1.1,)
    }"""
    function = parse_expr(text)
    assert isinstance(function, Function) and isinstance(function.body, Let)
    inner = function.body.body
    assert isinstance(inner, Let) and isinstance(inner.body, Tuple)
    assert str(inner.body.checked_type) == "(int8, bool)"


def test_attributes_take_defaults_and_types() -> None:
    x, w = Var("x", TensorType((1, 3, 8, 8))), Var("w", TensorType((4, 3, 3, 3)))
    f = Function((x, w), conv2d(x, w, padding=(1, 1)))
    text = (
        "fn (%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32])"
        " { nn.conv2d(%x, %w, padding=[1, 1, 1, 1]) }"
    )
    assert structural_equal(parse_expr(text), f)
    clipped = parse_expr("fn (%x: float32) { clip(%x, a_min=0, a_max=6f) }")
    assert isinstance(clipped, Function) and isinstance(clipped.body, Call)
    assert dict(clipped.body.attrs.items()) == {"a_min": 0.0, "a_max": 6.0}


def test_nodes_know_their_place() -> None:
    function = parse_expr("fn (%x: float32) {\n  %0 = tanh(%x);\n  nn.relu(%0)\n}", "net.relay")
    assert isinstance(function, Function) and isinstance(function.body, Call)
    assert function.body.span == Span("net.relay", line=3, column=3)
    assert function.body.args[0].span == Span("net.relay", line=2, column=8)


def test_spans_are_printed_and_cannot_end_a_comment() -> None:
    x = Var("x", TensorType(()))
    with span_scope(Span("model.onnx", node="evil */ nn.fail() /* \n node")):
        f = Function((x,), relu(x))
    assert "/* ty=float32 span=evil *\\/ nn.fail() /\\* node:0:0 */" in str(f)
    round_trip(f)


# --- errors


def test_dimensions_that_are_not_known_are_attributes() -> None:
    k = SymDim("k")
    for units in (SymDim("n"), SymDim("n", 16), SymDim(), SymDim("", 4), SymDim("2*n+1"), SymDim("a b", 8), 4):
        x, w = Var("x", TensorType((2, k))), Var("w", TensorType((units, k)))
        again = round_trip(Function((x, w), dense(x, w, units=units)))
        assert isinstance(again, Function) and isinstance(again.body, Call)
        assert again.body.attrs["units"] == units


MAIN = HEADER + "def @main(%x: Tensor[(2, 2), float32]) {\n  "


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("def @main() { 1 }", "expected text format semantic version", 1, 1),
        ('#[version = "0.0.6"]\ndef @main() { 1 }', 'invalid semantic version "0.0.6"', 1, 13),
        (MAIN + "nn.foo(%x)\n}", "operator `nn.foo` not found", 3, 3),
        (MAIN + "nn.softmax(%x, axiss=1)\n}", "has no attribute `axiss`", 3, 3),
        (MAIN + "nn.softmax(%x, axis=1.5f)\n}", "must be int", 3, 3),
        (MAIN + "nn.dense(%x, %x, units=1.5f)\n}", "must be int | dimension | None, got 1.5", 3, 3),
        (HEADER + "def @f(%x: int8, Primitive=yes) { %x }", "expected an attribute value", 2, 28),
        (MAIN + "nn.softmax(%x, axis=1, axis=1)\n}", "given twice", 3, 26),
        (MAIN + "transpose(%x)\n}", "needs the attribute `axes`", 3, 3),
        (MAIN + "nn.relu(%x, %x)\n}", "expected 1 arguments, got 2", 3, 3),
        (MAIN + "nn.relu(%y)\n}", "variable %y is not defined", 3, 11),
        (MAIN + "nn.relu(%3)\n}", "local variable %3 has not yet been defined", 3, 11),
        (MAIN + "nn.relu(%x", "expected `,`, found end of text", 3, 13),
        (MAIN + "nn.relu(%x)", "expected `}`, found end of text", 3, 14),
        (MAIN + "nn.relu(%x) }\ndef @main() { 1 }", "defined twice", 4, 5),
        (MAIN + "add(%x, 1)\n}", "data types float32 and int32 do not match", 3, 3),
        (MAIN + "meta[relay.Constant][0]\n}", "no metadata section", 3, 3),
        (MAIN + "%x $ %x\n}", "unexpected character '$'", 3, 6),
        (MAIN + "/* never", "does not end", 3, 3),
        (MAIN + "300i8\n}", "300 does not fit int8", 3, 3),
        (MAIN + "1e60f\n}", "does not fit float32", 3, 3),
        (MAIN + "-1e400f64\n}", "1e400 does not fit any data type", 3, 4),
        (MAIN + "1" * 5000 + "\n}", "a number of 5000 characters", 3, 3),
        (MAIN + "(%x, %x)(%x)\n}", "cannot be called", 3, 3),
        (MAIN + "%x.0\n}", "has no field 0", 3, 5),
        (MAIN + "(%x, %x).2\n}", "has no field 2", 3, 11),
        (MAIN + "let + 1\n}", "expected a variable", 3, 7),
        (HEADER + "def @f(%x: Tensor[(2), float33]) { %x }", "unknown data type 'float33'", 2, 24),
        (HEADER + "def @f(%x: int8, %x: int8) { %x }", "named twice", 2, 18),
        (MAIN + "%0 = exp(%x); %0 = exp(%x); %0\n}", "%0 is defined twice", 3, 17),
        (MAIN + "%0 = exp(%x); %1 = fn (%y: int8) { %0 = %y; %0 }; %0\n}", "%0 is defined twice", 3, 38),
        (MAIN + "%0 = fn (%y: int8) { %1 = abs(%y); %1 }; (%0, %1)\n}", "%1 depends on %y", 3, 49),
        (MAIN + "%0 = fn (%y: int8) { %1 = abs(%y); %1 }; %1\n}", "%1 depends on %y", 3, 44),
        (MAIN + "(let %y = exp(%x); %0 = abs(%y); %0) + %0\n}", "%0 depends on %y", 3, 42),
        (HEADER + "def @f() { " + "(" * 40 + "1", "expected `,`", 2, 53),
        (HEADER + "def @f(%x: " + "(" * 5000 + ") { %x }", "nested more than", 2, 112),
    ],
)
def test_errors_point_at_the_text(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(AotcError) as caught:
        parse(text, "bad.relay")
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message
    assert diagnostic.span == Span("bad.relay", line=line, column=column)
    excerpt, caret = str(diagnostic).split("\n")[1:3]
    assert caret.strip() == "^" and len(caret) - 3 <= len(excerpt)


def test_temps_of_ended_blocks_may_be_used_and_named_anew() -> None:
    """As in text that Relay printed, where both branches use a node that only the first one defines."""
    text = "def @f(%c: bool, %x: float32) {{ if (%c) {{ %0 = exp(%x); %0 }} else {{ {} }} }}"
    shared, anew = (parse(HEADER + text.format(no)) for no in ("sqrt(%0)", "%0 = exp(%x); sqrt(%0)"))
    body = shared["f"].body
    assert isinstance(body, If) and isinstance(body.false_branch, Call)
    assert body.false_branch.args[0] is body.true_branch
    assert not structural_equal(shared, anew)


def test_deeply_nested_parentheses_are_no_problem() -> None:
    assert structural_equal(parse_expr("(" * 20_000 + "1" + ")" * 20_000), Constant(np.int32(1)))


@pytest.mark.parametrize("damage", ["{", "[]", '{"root": 1, "nodes": []}', "", "null"])
def test_damaged_metadata_is_refused(damage: str) -> None:
    text = astext(relu(Constant(np.ones(3, np.float32))))
    head = text.split("#[metadata]\n")[0]
    with pytest.raises(AotcError, match="metadata section cannot be read"):
        parse(head + "#[metadata]\n" + damage)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_gives_an_error_or_a_program(data: st.DataObject) -> None:
    """Whatever is cut out or put in, the parser either reads it or says what is wrong."""
    text = astext(data.draw(functions()), show_meta_data=False)
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 6)))
    patch = data.draw(st.text(st.sampled_from('%@()[]{},;:=<>*/+-.0123ef"\\ \nfnif'), max_size=4))
    try:
        parse(text[:start] + patch + text[end:])
    except AotcError as error:
        assert error.diagnostics[0].span is not None


def test_calls_without_types_read_back() -> None:
    x = Var("x")
    assert isinstance(round_trip(Function((x,), typed_op_call(relu(Var("y", MATRIX)).op, (x,)))), Function)  # type: ignore[arg-type]
    assert isinstance(TupleGetItem(x, 0).checked_type, type(None))
