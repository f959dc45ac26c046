# SPDX-License-Identifier: Apache-2.0
"""Functions that build operator calls: parameters, defaults, conversion of arguments, error messages."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from aotc import relay, te
from aotc.ir.attrs import REQUIRED, Attrs, attribute_field
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.op import Arg, declare_arguments
from aotc.ir.types import TensorType
from aotc.relay.expr import Call, Var
from aotc.relay.op import OPERATORS_BY_NAME, builders
from aotc.relay.op.builder_signature import builder_function_of, builder_signature_of
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.type_rules import infer_type_of_first_argument
from tests.ops.builders_stub import STUBS, render

X = Var("x", TensorType((2, 3), "float32"))


class SampleAttrs(Attrs):
    axes: tuple[int, ...]
    size: tuple[int, ...] | None = None
    keep: bool = False
    dtype: str = ""
    last: int = attribute_field(default=0, parameter_default=REQUIRED)
    twice: int = attribute_field(default=2, convert=lambda value, given: value * 2 + given["last"])


def made(**facets: Any) -> OpDef:
    return OpDef(
        name="nn.sample",
        doc="One sentence.",
        attrs=SampleAttrs,
        infer=infer_type_of_first_argument,
        reference=lambda _, x: x,
        compute=lambda _, x: x,
        samples=list,
        **facets,
    )


def attributes(call: Call) -> dict[str, Any]:
    return dict(call.attrs.items())


def test_the_signature_comes_from_arguments_and_attributes() -> None:
    expected = (
        "(data: 'Expr', axes: 'int | Sequence[int]', size: 'int | Sequence[int] | None' = None, keep: 'bool' = False, "
        "dtype: 'str' = '', *, last: 'int', twice: 'int' = 2) -> 'Call'"
    )
    function = builder_function_of(made())
    assert str(inspect.signature(function)) == expected
    assert (function.__name__, function.__doc__) == ("sample", "One sentence.")


def test_order_says_what_is_a_parameter() -> None:
    op = made(
        args=declare_arguments("data", Arg("extra", "Expr | int", given=0, takes=lambda value, _: value or X)),
        order="axes data",
    )
    assert str(builder_signature_of(op)) == "(axes: 'int | Sequence[int]', data: 'Expr') -> 'Call'"
    assert op(1, X).args == (X, X)


def test_values_become_attributes() -> None:
    made_of = attributes(made()(X, [1, 2], 5, keep=1, dtype=None, last=7, twice=3))
    assert made_of == {"axes": (1, 2), "size": (5,), "keep": True, "dtype": "", "last": 7, "twice": 13}
    assert made_of["keep"] is True
    assert attributes(made()(X, 4, last=1))["size"] is None


#: A value that attributes of each kind take.
RIGHT = {"int | Sequence[int]": 1, "Sequence[int]": (1,), "int": 1, "int | SymDim": 1, "float": 0.5, "bool": True}
RIGHT["str"] = "float32"


def right(op: OpDef, parameter: inspect.Parameter) -> Any:
    """A value of the right kind for a parameter."""
    if parameter.name in {a.name for a in op.args}:
        return X
    kind = parameter.annotation.removesuffix(" | None")
    return ((0, 0),) if kind == "Sequence[Sequence[int]]" else RIGHT[kind]


@pytest.mark.parametrize("op", OPERATORS_BY_NAME.values(), ids=OPERATORS_BY_NAME)
def test_attributes_of_a_wrong_kind_are_named(op: OpDef) -> None:
    """Whatever stands in the place of an attribute: one error, with the operator, the attribute and an example."""
    for name, parameter in builder_signature_of(op).parameters.items():
        if name in {a.name for a in op.args} or op.name == "arange":
            continue
        for wrong in (object(), 1.5j, "a", [[["x"]]]):
            if isinstance(wrong, str) and parameter.annotation.startswith("str"):
                continue
            required = [p for p in builder_signature_of(op).parameters.values() if p.default is p.empty]
            given = {p.name: right(op, p) for p in required} | {name: wrong}
            with pytest.raises(AotcError, match=rf"^{op.name}: {name} takes .*\n  hint: for example {name}=") as caught:
                op(**given)
            assert caught.value.code == "attribute" and isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^sample\(\): missing a required argument: 'data'"),
        ({"data": X, "axis": 1}, "'axis|missing a required argument: 'axes'"),
        ({"data": X, "axes": 1, "last": 1, "lsat": 1}, r"unexpected keyword argument 'lsat'; did you mean 'last'"),
        ({"data": X, "axes": 1, "last": 1, "xyz": 1}, r"^sample\(\): got .* argument 'xyz'; it takes data, .*axes"),
    ],
)
def test_mistakes_name_the_function(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        made()(**given)


def test_values_for_each_axis() -> None:
    data = Var("data", TensorType((1, 3, 8, 8), "float32"))
    pool = relay.nn.max_pool2d(data, 3, strides=[2, 1], padding=1)
    assert isinstance(pool, Call)
    assert pool.attrs["pool_size"] == (3, 3) and pool.attrs["strides"] == (2, 1)
    assert pool.attrs["padding"] == (1, 1, 1, 1) and pool.attrs["dilation"] == (1, 1)
    with pytest.raises(AotcError, match="expected 1 or 2 values"):
        relay.nn.max_pool2d(data, (3, 3, 3))


@pytest.mark.parametrize("units", [relay.Any(), te.var("u")], ids=str)
def test_units_may_be_symbolic(units: SymDim) -> None:
    kernel = Var("k", TensorType((units, 3)))
    assert relay.nn.dense(X, kernel, units=units).checked_type == TensorType((2, units))
    assert relay.nn.matmul(X, Var("m", TensorType((3, 5))), units=units).checked_type == TensorType((2, 5))
    with pytest.raises(AotcError, match="axis takes int"):
        relay.nn.softmax(X, axis=units)


def test_sequences_may_be_arrays() -> None:
    data = Var("data", TensorType((1, 3, 8, 8)))
    pool = relay.nn.max_pool2d(data, np.array(3), padding=np.array([1, 2]))
    assert pool.attrs["pool_size"] == (3, 3) and pool.attrs["padding"] == (1, 2, 1, 2)
    assert relay.reshape(X, newshape=np.array([6, -1])).attrs["newshape"] == (6, -1)


def test_the_stub_is_current() -> None:
    for stub, module in STUBS.items():
        assert stub.read_text(encoding="utf-8") == render(module), "run `python -m tests.ops.builders_stub`"


@pytest.mark.parametrize("name", builders.__all__)
def test_functions_can_be_looked_at(name: str) -> None:
    function = getattr(builders, name)
    assert function.__name__ == name and inspect.getdoc(function)
    assert inspect.signature(function).return_annotation in ("Call", "Tuple", "TupleGetItem")


def test_a_shape_may_be_an_expression() -> None:
    shape = Var("shape", TensorType((2,), "int64"))
    signature = inspect.signature(builders.reshape)
    assert signature.parameters["newshape"].annotation == "Expr | int | Sequence[int]"
    assert builders.reshape(X, shape).op is OPERATORS_BY_NAME["dyn.reshape"]
    assert builders.reshape(X, relay.const([3, 2])).op is OPERATORS_BY_NAME["reshape"]
    assert builders.reshape(X, [3, 2]).op is OPERATORS_BY_NAME["reshape"]
    with pytest.raises(AotcError, match="strided_slice: `axes` cannot be combined with a shape that is an expression"):
        builders.strided_slice(X, shape, [1, 1], axes=[0])
