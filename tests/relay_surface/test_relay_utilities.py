# SPDX-License-Identifier: Apache-2.0
"""Small utilities of Relay: spans, batch sizes, region tensors, padding, functions by name."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir import load_json, save_json
from aotc.relay import transform
from aotc.relay.analysis import get_calibration_data
from aotc.topi.nn.utils import get_pad_tuple, get_pad_tuple1d, get_pad_tuple3d
from aotc.topi.utils import nchw_pack_layout, nchw_xc_layout

X = np.arange(6, dtype="float32").reshape(2, 3)


def test_spans() -> None:
    span = relay.Span(relay.SourceName("net"), 1, 2, 3, 9)
    assert isinstance(span, relay.base.Span) and not isinstance(3, relay.base.Span)
    assert (span.source_name, span.line, span.end_line, span.column, span.end_column) == ("net", 1, 2, 3, 9)
    merged = aotc.ir.Span("", merged=(span,))
    assert load_json(save_json(merged)) == merged and merged.source_name is None
    with pytest.raises(aotc.AotcError, match="no JSON of a span"):
        load_json('{"kind": "span", "text": {"line": 3}}')
    x = relay.var("x", shape=(2,))
    assert "span=net:1:3" in relay.Call(relay.op.get("exp"), [x], span=span).astext()


def test_annotations_of_text() -> None:
    x = relay.var("x", shape=(2,))
    text = relay.exp(x).astext(annotate=lambda e: "here */" if isinstance(e, relay.Call) else "")
    assert "/* here *\\/ */" in text and "ty=" not in text.splitlines()[-1]


def test_batch_sizes() -> None:
    module, _ = relay.testing.synthetic.get_workload()
    (data, *_) = module["main"].params
    assert transform.ChangeBatch({data: 0}, batch_size=7)(module)["main"].ret_type == relay.TensorType((7, 10))
    with pytest.raises(aotc.AotcError, match="no axis 9"):
        transform.ChangeBatch({data: 9})(module)
    with pytest.raises(aotc.AotcError, match="a batch size must be an integer"):
        transform.ChangeBatch({data: 0}, batch_size=2.5)(module)  # type: ignore[arg-type]
    with pytest.raises(aotc.AotcError, match="not a parameter"):
        transform.ChangeBatch({relay.var("data"): 0})(module)


def test_tensors_of_regions() -> None:
    a, b, x = (relay.var(name, shape=(2, 3)) for name in "abx")
    module, inner = aotc.IRModule(), relay.GlobalVar("inner")
    both = relay.Tuple([relay.exp(a), relay.negative(b)])
    module[inner] = relay.Function([a, b], both).with_attr("Compiler", "mine")
    module["main"] = relay.Function([x], relay.TupleGetItem(inner(x, x + x), 1))
    data = get_calibration_data(module, {"x": X})
    assert list(data) == ["inner"] and data[inner] is data["inner"]
    inputs, outputs = ([t.numpy() for t in data[inner][side]] for side in ("inputs", "outputs"))
    np.testing.assert_allclose(inputs, [X, X + X])
    np.testing.assert_allclose(outputs, [np.exp(X), -X - X], rtol=1e-6)
    with pytest.raises(KeyError):
        data[3]
    with pytest.raises(aotc.AotcError, match="no input is called"):
        get_calibration_data(module, {"y": X})


def test_padding() -> None:
    assert get_pad_tuple("SAME", (3, 4)) == (1, 2, 1, 1) and get_pad_tuple("VALID", (3, 4)) == (0, 0, 0, 0)
    assert get_pad_tuple1d(2, 5) == (2, 2) and get_pad_tuple1d((0, 1), (5,)) == (0, 1)
    assert get_pad_tuple3d((1, 2, 3), (1, 1, 1)) == (1, 2, 3, 1, 2, 3)
    for bad in ((1, 2, 3), "FULL"):
        with pytest.raises(ValueError, match=r"padding|pad 2 axes"):
            get_pad_tuple(bad, (1, 1))
    assert nchw_pack_layout("NCHW4n8c") and not nchw_pack_layout("NCHW8c")
    assert nchw_xc_layout("NCHW8c") and not nchw_xc_layout("NCHW")


def test_functions_by_name() -> None:
    assert aotc.get_global_func("relay.ext.none", True) is None

    @aotc.register_func("tests.double")
    def double(x: int) -> int:
        return 2 * x

    assert aotc.get_global_func("tests.double")(3) == 6
    with pytest.raises(ValueError, match="registered already"):
        aotc.register_func("tests.double", double)
    assert aotc.register_func("tests.double", double, override=True) is double
    with pytest.raises(aotc.AotcError, match="did you mean"):
        aotc.get_global_func("tests.doubles")


def test_values_once_used_take_the_place_of_variables() -> None:
    text = """#[version = "0.0.5"]
def @main(%a: int32) {
  let %once = %a + %a;
  let %twice = %a * %a;
  let %outer = %a - %a;
  let %f = fn (%b: int32) -> int32 { let %inner = %b + %once; %inner - %outer };
  (%twice + %twice, %f(%a), %f(%a), %once)
}"""
    module = transform.DeadCodeElimination(inline_once=True)(relay.parse(text))
    names = [v.name for v in relay.analysis.bound_vars(module["main"])]
    assert "inner" not in names and {"once", "twice", "outer", "f"} <= set(names)
    value = relay.create_executor("debug", module).evaluate()(np.int32(3))
    assert [int(v.numpy()) for v in value] == [18, 9, 9, 6]


def test_constructors_as_functions() -> None:
    text = """#[version = "0.0.5"]
type Box[A] { Full(A), Empty }
def @main() -> fn (int32) -> Box[int32] { Full }"""
    module = transform.EtaExpand(expand_constructor=True)(relay.parse(text))
    assert isinstance(module["main"].body, relay.Function)
    assert transform.EtaExpand()(relay.parse(text))["main"].body is not module["main"].body
