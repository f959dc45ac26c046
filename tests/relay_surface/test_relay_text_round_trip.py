# SPDX-License-Identifier: Apache-2.0
"""Programs as text and back: all operators, networks and trained models, any names, any depth, damaged text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import typed_op_call
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.testing import dcgan, mlp, mobilenet, resnet, squeezenet
from tests.call_counts import grows_linearly

DEEP = 10_000


def reads_back(module: aotc.IRModule) -> None:
    """The text gives the module again; without its metadata it gives it or says what is missing."""
    aotc.ir.assert_structural_equal(relay.fromtext(module.astext()), module)
    bare = module.astext(show_meta_data=False)
    if "meta[" in bare:
        with pytest.raises(AotcError, match="metadata"):
            relay.fromtext(bare)
    else:
        aotc.ir.assert_structural_equal(relay.fromtext(bare), module)


@pytest.mark.parametrize("name", sorted(OPERATORS_BY_NAME))
def test_attributes_of_every_operator(name: str) -> None:
    op = OPERATORS_BY_NAME[name]
    samples = list(op.samples())
    assert samples
    seen = {str(sample.attrs): sample for sample in samples}
    for sample in seen.values():
        values = [v if isinstance(v, (tuple, list)) else (v,) for v in sample.args]
        params = [
            [relay.var(f"p{i}_{j}", shape=v.shape, dtype=str(v.dtype)) for j, v in enumerate(vs)]
            for i, vs in enumerate(values)
        ]
        args = [
            relay.Tuple(ps) if isinstance(v, (tuple, list)) else ps[0]
            for ps, v in zip(params, sample.args, strict=True)
        ]
        body = typed_op_call(op, args, sample.attrs)
        reads_back(aotc.IRModule.from_expr(relay.Function([p for ps in params for p in ps], body)))


WORKLOADS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: mlp.get_workload(batch_size=1),
    "dcgan": lambda: dcgan.get_workload(batch_size=1, ngf=8),
    "squeezenet": squeezenet.get_workload,
    "mobilenet": mobilenet.get_workload,
    "resnet18": lambda: resnet.get_workload(num_layers=18),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_networks(name: str) -> None:
    module, params = WORKLOADS[name]()
    reads_back(module)
    reads_back(aotc.IRModule.from_expr(relay.bind_params_by_name(module["main"], params)))


def test_trained_models(models: Path) -> None:
    found, refused = 0, []
    for path in sorted(models.glob("*.onnx")):
        try:
            module, _ = relay.frontend.from_onnx(path)
        except AotcError:
            refused.append(path.name)
            continue
        reads_back(module)
        found += 1
    assert found > len(refused), f"not imported: {refused}"


def test_the_work_of_reading_grows_with_the_program() -> None:
    def prepare(layers: int) -> Callable[[], object]:
        x = body = relay.var("x", shape=(4,))
        for _ in range(layers):
            body = relay.tanh(body)
        text = aotc.IRModule.from_expr(relay.Function([x], body)).astext()
        return lambda: relay.fromtext(text)

    assert grows_linearly(prepare)
    module, _ = resnet.get_workload(num_layers=50)
    reads_back(module)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=3, max_size=3, unique=True))
@example(["", "v", "0"])
def test_any_names(names: list[str]) -> None:
    first, second, third = names
    assume(third != "main")
    x, y = relay.var(first, shape=(2,)), relay.var(second, shape=(2,))
    function = relay.Function([x, y], relay.Let(relay.var(third), relay.add(x, y), relay.exp(x)))
    module = aotc.IRModule({"main": function, third: relay.Function([], relay.const(1))})
    reads_back(module)
    again = relay.fromtext(module.astext())
    assert third in again
    (one, two), odd = again["main"].params, not first[:1].isalpha()  # Relay's printer puts a v before such names
    assert one.name_hint == first or odd
    assert two.name_hint == second or not second[:1].isalpha() or (odd and second[0] == "v")  # "" and "v": v and v1


@pytest.mark.parametrize(
    "name", ["fn", "let", "if", "else", "def", "true", "True", "float32", "meta", "type", "ref", "x y"]
)
def test_words_of_the_language_are_names(name: str) -> None:
    x = relay.var(name, shape=(2,))
    reads_back(aotc.IRModule({"main": relay.Function([x], relay.exp(x)), name: relay.Function([x], x)}))


INDENTED = 1_000
"""How deep blocks go: each line of them is indented, so that their text grows with the square of their depth."""


@pytest.mark.parametrize(
    ("depth", "wrap"),
    [
        pytest.param(DEEP, lambda e: relay.TupleGetItem(relay.Tuple((e,)), 0), id="field"),
        pytest.param(DEEP, lambda e: relay.Let(relay.var("t"), e, relay.const(0.0)), id="let value"),
        pytest.param(DEEP, lambda e: relay.Let(relay.var("t"), relay.const(0.0), e), id="let body"),
        pytest.param(INDENTED, lambda e: relay.If(relay.const(True), e, relay.const(0.0)), id="if"),
        pytest.param(INDENTED, lambda e: relay.Call(relay.Function([], e), ()), id="closure"),
        pytest.param(99, lambda e: relay.Tuple((e,)), id="tuple"),
        pytest.param(99, lambda e: relay.Function([], e), id="function"),
    ],
)
def test_any_depth(depth: int, wrap: Callable[[relay.Expr], relay.Expr]) -> None:
    body: relay.Expr = relay.const(1.0)
    for _ in range(depth):
        body = wrap(body)
    aotc.ir.assert_structural_equal(relay.parse_expr(str(body)), body)


@pytest.mark.parametrize("wrap", [lambda e: relay.Tuple((e,)), lambda e: relay.Function([], e)])
def test_types_of_any_depth_are_refused(wrap: Callable[[relay.Expr], relay.Expr]) -> None:
    body: relay.Expr = relay.const(1.0)
    with pytest.raises(AotcError, match="nested more than 100 deep"):
        for _ in range(DEEP):
            body = wrap(body)


TOKENS = [
    *(
        "def",
        "fn",
        "let",
        "if",
        "else",
        "@main",
        "%x",
        "%0",
        "%0 =",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ",",
        ";",
        ":",
    ),
    *(
        "->",
        "=",
        "+",
        "*",
        "/",
        ".",
        "0",
        "1f",
        "-1",
        "1e9",
        "1e999f",
        "nan",
        "inf",
        '"',
        '"s"',
        "\\",
        "/*",
        "*/",
        "#",
        "#[",
    ),
    *(
        "Tensor[(2), float32]",
        "Tensor[",
        "float32",
        "bool",
        "int4",
        "meta[relay.Constant][0]",
        "add",
        "nn.relu",
        "True",
    ),
    *("nn.conv2d", "strides=[1, 1]", "axis=", "None", "\n", "é", "\0", '%"', "#[metadata]", "as", "v", "?"),
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=24))
def test_any_sequence_of_tokens(tokens: list[str]) -> None:
    for text in (" ".join(tokens), "def @main(%x: Tensor[(2), float32]) { " + " ".join(tokens) + " }"):
        try:
            relay.fromtext('#[version = "0.0.5"]\n' + text)
        except AotcError as error:
            assert error.diagnostics[0].span is not None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    for program in (text, '#[version = "0.0.5"]\n' + text):
        try:
            relay.fromtext(program)
        except AotcError as error:
            assert error.diagnostics


@pytest.mark.parametrize("opening", ["(", "{", "[", "fn () {", "if (", "-", "(1, ", "add(", "let %x = ", "Tensor["])
def test_deep_openings_end_in_an_error(opening: str) -> None:
    with pytest.raises(AotcError):
        relay.parse_expr(opening * DEEP)


def test_strings_that_do_not_end() -> None:
    with pytest.raises(AotcError) as caught:
        relay.parse_expr('nn.conv2d(%x, %w, data_layout="NCHW)')
    assert "does not end" in str(caught.value) and "^" in str(caught.value)
