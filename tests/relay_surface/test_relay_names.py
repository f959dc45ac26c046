# SPDX-License-Identifier: Apache-2.0
"""Relay's public names exist, are those that type checkers see, and are imported lazily."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay_api.expr import op_functions_with_prefix

ROOT = Path(__file__).parents[2]
FACADES = (
    *("aotc", "aotc.contrib", "aotc.contrib.debugger", "aotc.contrib.debugger.debug_executor", "aotc.contrib.external"),
    *("aotc.contrib.graph_executor", "aotc.contrib.utils", "aotc.instrument", "aotc.ir", "aotc.nd", "aotc.relay"),
    *("aotc.relay.annotation", "aotc.relay.build_module", "aotc.relay.dataflow_pattern", "aotc.relay.frontend"),
    *("aotc.relay.image", "aotc.relay.ml", "aotc.relay.nn", "aotc.relay.testing", "aotc.relay.vm", "aotc.runtime"),
    *("aotc.relay.qnn", "aotc.relay.qnn.op", "aotc.relay.ty", "aotc.ir.supply", "aotc.testing", "aotc.transform"),
    "aotc.target",
)


def reexported(facade: str) -> list[tuple[str, str]]:
    """(module, name) of all re-exports of a facade for type checkers: in its stub file if it has one."""
    path = Path(str(importlib.import_module(facade).__file__))
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path).read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    return [(str(n.module), a.name) for n in imports for a in n.names if a.asname == a.name]


def test_star_import_of_facades_gives_public_names() -> None:
    names: dict[str, object] = {}
    exec("from aotc.relay.dataflow_pattern import *\nfrom aotc.relay.nn import *\nfrom aotc.transform import *", names)
    assert {"is_op", "DFPatternCallback", "conv2d", "PassContext"} <= names.keys()
    assert not [name for name in names if name.startswith("_") and name != "__builtins__"]


@pytest.mark.parametrize("facade", FACADES)
def test_facades_export_what_type_checkers_see(facade: str) -> None:
    module = importlib.import_module(facade)
    pairs = reexported(facade)
    assert pairs
    for home, name in pairs:
        where = importlib.import_module(home)
        if not hasattr(where, name):
            where = importlib.import_module(f"{home}.{name}")
            assert getattr(module, name) is where
        else:
            assert inspect.unwrap(getattr(module, name)) is inspect.unwrap(getattr(where, name))
        assert name in dir(module)


@pytest.mark.parametrize("prefix", ["", "nn", "image", "ml", "vision", "annotation", "qnn"])
def test_type_checkers_see_every_operator(prefix: str) -> None:
    facade = f"aotc.relay.{prefix}".removesuffix(".").replace("qnn", "qnn.op")
    assert op_functions_with_prefix(prefix).keys() <= {name for _, name in reexported(facade)}


@pytest.mark.parametrize("name", sorted(OPERATORS_BY_NAME))
def test_every_operator_has_its_function(name: str) -> None:
    where, _, last = name.rpartition(".")
    if where.startswith("dyn"):
        assert getattr(relay.op.dyn, last) is OPERATORS_BY_NAME[name]
        return
    facade = getattr(relay, where) if where else relay
    function = getattr(facade.op if where == "qnn" else facade, last)
    assert function.__name__ == last and inspect.getdoc(function)
    assert {a.name for a in OPERATORS_BY_NAME[name].args} - {"mean"} <= set(inspect.signature(function).parameters)


def test_seed_names() -> None:
    from aotc.contrib import graph_executor, utils
    from aotc.ir.instrument import PassTimingInstrument, pass_instrument
    from aotc.relay.build_module import bind_params_by_name
    from aotc.relay.testing import resnet

    assert all((graph_executor.GraphModule, utils.tempdir, PassTimingInstrument, pass_instrument))
    assert callable(bind_params_by_name) and callable(resnet.get_workload)
    assert aotc.ir.op.Op is aotc.ir.Op
    assert isinstance(relay.add(relay.const(1), relay.const(2)).op, aotc.ir.op.Op)
    assert relay.expr.Call is relay.Call
    assert aotc.instrument.pass_instrument is pass_instrument


def test_structural_equal() -> None:
    def made(name: str) -> relay.Function:
        x = relay.var(name, shape=(2,))
        return relay.Function([x], relay.nn.relu(x))

    assert aotc.ir.structural_equal(made("a"), made("b"))
    assert not aotc.ir.structural_equal(made("a"), relay.Function([], relay.const(1)))


def test_misspelt_names_are_corrected() -> None:
    with pytest.raises(AttributeError, match="did you mean 'conv2d'"):
        relay.nn.con2d  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'softmax_of_all'"):
        relay.softmax_of_all  # noqa: B018


def test_loading_stays_light() -> None:
    program = (
        "import sys, aotc, aotc.runtime; aotc.load, aotc.runtime.load_module, aotc.nd.array, aotc.cpu;"
        "assert not {'onnx', 'jinja2', 'aotc.relay.op', 'aotc.driver', 'aotc.tir'} & set(sys.modules);"
    )
    program += (
        "from aotc.relay.expr import Tuple; from aotc.relay.dataflow_pattern.patterns import is_tuple;"
        "assert str(Tuple(())).startswith('()') and is_tuple([]).match(Tuple(())) and 'aotc.driver' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_door_comes_from_aotc_alone() -> None:
    program = (
        "import aotc; aotc.relay.nn.conv2d; aotc.relay.image.resize2d; aotc.relay.testing.resnet.get_workload;"
        "aotc.relay.transform.FoldConstant; aotc.relay.analysis.post_order_visit; aotc.contrib.utils.tempdir;"
        "aotc.ir.instrument.PassInstrument; aotc.transform.Sequential([], required=['FoldConstant']);"
        "x = aotc.relay.var('x', shape=(2,));"
        "m = aotc.IRModule.from_expr(aotc.relay.equal(x, x));"
        "assert aotc.ir.structural_equal(aotc.relay.fromtext(m.astext()), m);"
        "assert callable(aotc.relay.equal)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# --- var and const


def test_var() -> None:
    assert relay.var("x", shape=(2, 3), dtype="int8").annotation == relay.TensorType((2, 3), "int8")
    assert relay.var("x", relay.TensorType([1])).annotation == relay.TensorType((1,), "float32")
    assert relay.var("x", "int32").annotation == relay.TensorType((), "int32")
    assert relay.var("x").annotation is None
    with pytest.raises(AotcError, match="not both"):
        relay.var("x", relay.TensorType([1]), shape=(1,))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1, None, "int32"),
        (1.5, None, "float32"),
        (True, None, "bool"),
        ([1, 2], None, "int32"),
        (np.arange(3), None, "int64"),
        (np.float64(2), None, "float64"),
        (1, "float16", "float16"),
        (aotc.nd.array(np.ones(2, "uint8")), None, "uint8"),
    ],
)
def test_const(value: object, dtype: str | None, expected: str) -> None:
    constant = relay.const(value, dtype)
    assert constant.checked_type == relay.TensorType(np.shape(value), expected)
    np.testing.assert_array_equal(constant.data, np.asarray(value))


@pytest.mark.parametrize(("value", "dtype"), [(1 << 40, None), (300, "uint8"), ([-1], "uint16")])
def test_constants_that_do_not_fit(value: object, dtype: str | None) -> None:
    with pytest.raises(AotcError, match="does not fit"):
        relay.const(value, dtype)


def test_modules_take_functions_in_place() -> None:
    x = relay.var("x", shape=(2,))
    module = aotc.IRModule.from_expr(relay.nn.relu(x))
    module["main"] = relay.Function([x], relay.exp(x))
    module["helper"] = relay.Function([x], relay.tanh(x))
    assert list(module) == ["main", "helper"]
    assert relay.analysis.list_op_freqs(module["main"]) == {"exp": 1}
    module["main"] = relay.abs(x)
    assert list(module["main"].params) == [x] and module.functions.keys() == {"main", "helper"}
    assert [name.name_hint for name in module.functions] == ["main", "helper"]
    with pytest.raises(aotc.AotcError, match="holds functions"):
        module["main"] = 3  # type: ignore[assignment]


def test_print_ir(capsys: pytest.CaptureFixture[str]) -> None:
    x = relay.var("x", shape=(2,))
    module = aotc.IRModule.from_expr(relay.nn.relu(x))
    assert aotc.transform.PrintIR("here")(module) is module
    assert capsys.readouterr().out == f"PrintIR(here):\n{module.astext()}\n"
