# SPDX-License-Identifier: Apache-2.0
"""Attributes and methods of nodes, types, attributes and modules that Relay programs use."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.relay.expr import Constant


def test_fields_of_calls_whose_types_are_not_known_yet() -> None:
    x = relay.var("x", shape=(1, 3, 4, 4))
    normed = relay.nn.batch_norm(x, *map(relay.var, ("gamma", "beta", "mean", "var")))
    assert normed.checked_type is None
    typed = relay.testing.run_infer_type(relay.nn.relu(normed[0]))
    assert str(typed.checked_type) == "Tensor[(1, 3, 4, 4), float32]"
    assert [str(v.checked_type) for v in relay.analysis.free_vars(typed)[1:]] == ["Tensor[(3), float32]"] * 4
    with pytest.raises(AotcError, match="field 7 is outside the tuple"):
        relay.testing.run_infer_type(normed[7])
    for wrong in (lambda: normed[-1], lambda: list(normed)):
        with pytest.raises(AotcTypeError, match="a type that is not known yet"):
            wrong()


def test_relays_words() -> None:
    x = relay.var("x", shape=(2, 3))
    assert x.type_annotation is x.annotation is not None
    assert relay.TensorType((2, 3)).concrete_shape == (2, 3)
    conv = relay.nn.conv2d(relay.var("y", shape=(1, 3, 4, 4)), relay.var("w"), channels=4, kernel_size=(3, 3))
    assert conv.attrs["channels"] == 4 and dict(conv.attrs)["kernel_size"] == (3, 3)
    assert conv.attrs.keys()[:2] == ["strides", "padding"]
    with pytest.raises(KeyError):
        conv.attrs["stride"]


def test_attributes_of_functions() -> None:
    x = relay.var("x", shape=(2,))
    plain = relay.Function([x], relay.exp(x))
    named = plain.with_attr("Compiler", "mine").with_attr({"global_symbol": "f", "Primitive": 1})
    assert dict(named.attrs) == {"Compiler": "mine", "global_symbol": "f", "Primitive": 1} and not plain.attrs
    assert named.body is plain.body and named.checked_type == plain.checked_type


def test_modules_that_are_put_together() -> None:
    """As a module pass that adds a function does."""
    x, y = relay.var("x", shape=(10,)), relay.var("y", shape=(10,))
    given = aotc.IRModule.from_expr(relay.Function([x], relay.exp(x)))

    @aotc.transform.module_pass(opt_level=2)
    def add_abs(mod: aotc.IRModule, ctx: aotc.transform.PassContext) -> aotc.IRModule:
        made = aotc.IRModule({relay.GlobalVar("abs"): relay.Function([y], relay.abs(y))})
        made.update(mod)
        return made

    made = add_abs(given)
    assert [v.name_hint for v in made.get_global_vars()] == ["abs", "main"] and "abs" not in given
    made.update_func(made.get_global_var("main"), made["abs"])
    assert made[made.get_global_var("main")] is made["abs"]
    with pytest.raises(AotcError, match=r"no function @mein.*\n.*did you mean 'main'"):
        made.get_global_var("mein")


def test_passes_on_expressions() -> None:
    fold = relay.transform.FoldConstant()
    folded = relay.testing.run_opt_pass(relay.add(relay.const(1), relay.const(2)), fold)
    assert isinstance(folded, Constant) and folded.data == 3
    x = relay.var("x", shape=(2,))
    assert isinstance(relay.testing.run_opt_pass(relay.Function([x], x), fold), relay.Function)


def test_ranges_of_constants() -> None:
    found = relay.create_executor("debug").evaluate(
        relay.arange(relay.const(1), relay.const(np.int64(9)), relay.const(2.0), "int32")
    )
    np.testing.assert_array_equal(found.numpy(), np.arange(1, 9, 2, "int32"))
    assert relay.arange(np.float32(3)).checked_type == relay.TensorType((3,), "float32")
    with pytest.raises(AotcError, match="not Var"):
        relay.arange(relay.var("n", "int32"))
