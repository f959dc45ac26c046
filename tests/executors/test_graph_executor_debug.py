# SPDX-License-Identifier: Apache-2.0
"""The debug executor: values of all nodes, times per node, dumps, and refused calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib.debugger import debug_executor
from aotc.contrib.debugger.debug_executor import GraphModuleDebug
from aotc.contrib.graph_executor import GraphModule
from aotc.ir.diagnostics import AotcError
from aotc.ir.span import Span, span_scope

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
W = np.random.default_rng(1).standard_normal((8, 8)).astype("float32")


def network() -> aotc.IRModule:
    """Two products by the same weights, so that one kernel is called twice; the sum of rows and a view are outputs."""
    x, w = relay.var("x", shape=(4, 8)), relay.var("w", shape=(8, 8))
    with span_scope(Span("net", "first")):
        once = relay.tanh(relay.nn.dense(x, w))
    twice = relay.tanh(relay.nn.dense(once, w))
    rows, order = relay.sum(twice, axis=1), relay.argsort(twice, axis=-1)
    outputs = relay.Tuple([rows, order, relay.reshape(once, (32,)), x])
    return aotc.IRModule.from_expr(relay.Function([x, w], outputs))


Factory = relay.build_module.ExecutorFactory


@pytest.fixture(scope="module")
def lib() -> Factory:
    with aotc.transform.PassContext(opt_level=3):
        return relay.build(network(), "llvm", params={"w": W})


@pytest.fixture
def module(lib: Factory) -> GraphModuleDebug:
    return debug_executor.create(lib.get_graph_json(), lib, aotc.cpu())


def dense(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.tanh(x @ W.T))


def calls(module: GraphModuleDebug, part: str) -> list[str]:
    return [name for name in module.nodes if part in name]


def test_every_intermediate_by_name(module: GraphModuleDebug, lib: Factory) -> None:
    assert list(module.nodes) == [node["name"] for node in json.loads(lib.get_graph_json())["nodes"]]
    assert len(set(module.nodes)) == len(module.nodes)
    module.profile(x=X)
    first, second = calls(module, "dense")
    np.testing.assert_allclose(module.debug_get_output(first), dense(X), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module.debug_get_output(second), dense(dense(X)), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(module.get_node_output("x"), X)
    np.testing.assert_array_equal(module.get_node_output(0), X)
    out = aotc.nd.empty((4, 8))
    assert module.debug_get_output(first, out) is out
    np.testing.assert_allclose(out, dense(X), rtol=1e-4, atol=1e-6)


def test_results_are_those_of_the_compiled_schedule(module: GraphModuleDebug, lib: Factory) -> None:
    whole = GraphModule(lib["default"](aotc.cpu()))
    step_by_step = GraphModule(lib["debug_create"]("default", aotc.cpu()))
    whole.run(x=X)
    module.profile(x=X)
    step_by_step.run(x=X)
    assert module.get_num_outputs() == whole.get_num_outputs() == 4
    for k in range(4):
        np.testing.assert_array_equal(whole.get_output(k), module.get_output(k))
        np.testing.assert_array_equal(whole.get_output(k), step_by_step.get_output(k))


def test_a_node_runs_alone_on_what_its_inputs_hold(module: GraphModuleDebug) -> None:
    module.profile(x=X)
    first, second = calls(module, "dense")
    before = module.debug_get_output(second)
    module.set_input("x", X + 1)
    module.execute_node(first)
    np.testing.assert_allclose(module.debug_get_output(first), dense(X + 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(module.debug_get_output(second), before)
    module.execute_node(second)
    np.testing.assert_allclose(module.debug_get_output(second), dense(dense(X + 1)), rtol=1e-4, atol=1e-6)


def test_nodes_know_where_they_came_from(module: GraphModuleDebug) -> None:
    first, second = calls(module, "dense")
    assert module.origins(first) == ("net: node first",)
    assert module.origins(second) == module.origins("x") == ()


def test_times(module: GraphModuleDebug) -> None:
    module.set_input(x=X)
    times = module.run_individual(number=2, repeat=3, min_repeat_ms=0.1)
    kernels = [name != "x" and not name.startswith("p") for name in module.nodes]
    assert [len(row) for row in times] == [3] * len(module.nodes)
    assert [all(t > 0 for t in row) for row in times] == kernels
    result = module.run_individual_node(calls(module, "dense")[0], repeat=2)
    assert len(result.results) == 2 and result.min > 0


def test_run_prints_a_table_and_dumps(lib: Factory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = debug_executor.create(lib.get_graph_json(), lib.get_lib(), aotc.cpu(), tmp_path / "dump")
    module.run(x=X, number=1, min_repeat_ms=0)
    head, _, *rows, total = capsys.readouterr().out.strip().splitlines()
    assert head.split("  ")[0] == "Node Name" and head.split()[-1] == "Measurements(us)"
    executed = [name for name in module.nodes if name != "x" and not name.startswith("p")]
    assert sorted(row.split()[0] for row in rows) == sorted(executed)
    times = [float(row.split()[2]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert float(total.split()[2]) == pytest.approx(sum(times), abs=1e-2 * len(rows))
    blob = relay.load_param_dict((tmp_path / "dump" / "output_tensors.params").read_bytes())
    assert set(blob) >= {f"{name}____0" for name in module.nodes}
    np.testing.assert_array_equal(blob["x____0"], X)
    assert (tmp_path / "dump" / "_aotcdbg_graph_dump.json").read_text() == lib.get_graph_json()
    assert "Total_time" in (tmp_path / "dump" / "times.txt").read_text()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m, lib: m.debug_get_output(m.nodes[-1] + "x"), "no node .*\n.*did you mean"),
        (lambda m, lib: m.debug_get_output(99), "no node 99"),
        (lambda m, lib: m.debug_get_output("x", None, 1), "so output 1 does not exist"),
        (lambda m, lib: m.run(), "not set: 'x'"),
        (lambda m, lib: m.run(y=X), "no input 'y'"),
        (lambda m, lib: m.run_individual(0), "at least 1"),
        (lambda m, lib: lib["debug_create"]("defalt", aotc.cpu()), "no model 'defalt'"),
        (lambda m, lib: debug_executor.create("{}", lib, aotc.cpu()), "not that of the executor"),
        (lambda m, lib: debug_executor.create(lib.get_graph_json(), lib, aotc.cuda()), "runs on the CPU"),
        (lambda m, lib: GraphModuleDebug(lib["default"](aotc.cpu()), aotc.cpu(), ""), "does not keep intermediates"),
    ],
)
def test_bad_use(module: GraphModuleDebug, lib: Factory, act: Callable[..., object], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        act(module, lib)


def test_a_loaded_library_has_no_intermediates(lib: Factory, tmp_path: Path) -> None:
    lib.export_library(tmp_path / "net.so")
    loaded = aotc.runtime.load_module(tmp_path / "net.so")
    with pytest.raises(AotcError, match="cannot be executed call by call"):
        debug_executor.create(lib.get_graph_json(), loaded, aotc.cpu())
