# SPDX-License-Identifier: Apache-2.0
"""relay.build and its results (executors, graph, parameters, exported files); diagnostics for bad input."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib.graph_executor import GraphModule
from aotc.ir.diagnostics import AotcError

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 8)).astype("float32")
Y = RNG.standard_normal((2, 4)).astype("float32")
PARAMS = {"w": RNG.standard_normal((4, 8)).astype("float32"), "b": RNG.standard_normal(4).astype("float32")}


def module_of_two() -> aotc.IRModule:
    """Two inputs, two parameters, two outputs."""
    x, y = relay.var("x", shape=(2, 8)), relay.var("y", shape=(2, 4))
    w, b = relay.var("w", shape=(4, 8)), relay.var("b", shape=(4,))
    z = relay.nn.bias_add(relay.nn.dense(x, w), b)
    return aotc.IRModule.from_expr(relay.Function([x, y, w, b], relay.Tuple([relay.add(z, y), relay.nn.softmax(z)])))


def twins() -> relay.Call:
    """Two inputs of one name."""
    return relay.add(relay.var("a", shape=(1,)), relay.var("a", shape=(1,)))


def expected() -> tuple[np.ndarray, np.ndarray]:
    z = X @ PARAMS["w"].T + PARAMS["b"]
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return z + Y, e / e.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def lib() -> relay.build_module.ExecutorFactory:
    with aotc.transform.PassContext(opt_level=3):
        return relay.build(module_of_two(), "llvm", params={k: aotc.nd.array(v) for k, v in PARAMS.items()})


@pytest.fixture
def graph(lib: relay.build_module.ExecutorFactory) -> GraphModule:
    return GraphModule(lib["default"](aotc.cpu(0)))


def check(module: GraphModule) -> None:
    for k, value in enumerate(expected()):
        aotc.testing.assert_allclose(module.get_output(k), value, rtol=1e-5, atol=1e-6)


def test_inputs_run_outputs(graph: GraphModule) -> None:
    graph.set_input("x", X)
    graph.set_input(1, aotc.nd.array(Y))
    graph.run()
    check(graph)
    assert (graph.get_num_inputs(), graph.get_num_outputs()) == (2, 2)
    assert (graph.get_input_index("y"), graph.get_input_index("none")) == (1, -1)
    assert graph.get_input_info() == ({"x": (2, 8), "y": (2, 4)}, {"x": "float32", "y": "float32"})
    np.testing.assert_array_equal(graph.get_input("x"), X)
    np.testing.assert_array_equal(graph.get_input(1), Y)


def test_inputs_are_kept_and_copied(graph: GraphModule) -> None:
    mine = X.copy()
    graph.set_input(x=mine, y=Y)
    mine[:] = 0
    graph.run()
    check(graph)
    before = graph.get_output(0)
    graph.run(x=np.zeros_like(X))
    assert not np.array_equal(graph.get_output(0), before)
    graph.run(x=X)
    check(graph)


def test_output_into_an_array(graph: GraphModule) -> None:
    graph.run(x=X, y=Y)
    out = aotc.nd.empty((2, 4))
    assert graph.get_output(0, out) is out
    np.testing.assert_array_equal(out, graph.get_output(0))
    for bad in (aotc.nd.empty((2, 3)), aotc.nd.empty((2, 4), "float64")):
        with pytest.raises(AotcError, match="cannot copy"):
            graph.get_output(0, bad)
    with pytest.raises(AotcError, match="must be an NDArray"):
        graph.get_output(0, np.zeros((2, 4), "float32"))  # type: ignore[arg-type]


def test_executors_are_independent(lib: relay.build_module.ExecutorFactory) -> None:
    first, second = GraphModule(lib["default"](aotc.cpu())), GraphModule(lib["default"](aotc.cpu()))
    first.run(x=X, y=Y)
    second.run(x=-X, y=Y)
    check(first)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda g: g.set_input("z", X), "no input 'z'"),
        (lambda g: g.set_input(2, X), "no input 2"),
        (lambda g: g.set_input(-1, X), "no input -1"),
        (lambda g: g.set_input("x", X, x=X), "twice"),
        (lambda g: g.set_input("x", X.astype("float64")), "is float64, expected float32"),
        (lambda g: g.set_input("x", X[:1]), r"shape \[1, 8\], expected \[2, 8\]"),
        (lambda g: g.set_input("x", [[1.0]]), "of type list"),
        (lambda g: g.set_input("x"), "of type NoneType"),
        (lambda g: g.load_params(relay.save_param_dict({"z": X})), "no input 'z'"),
        (lambda g: g.run(x=X, y=Y, w=Y), "no input 'w'"),
        (lambda g: g.run(x=X), "not set: 'y'"),
        (lambda g: g.get_output(0), "no outputs before its first run"),
        (lambda g: g.get_output(2), "no output 2"),
        (lambda g: g.get_output("x"), "an integer"),
        (lambda g: g.get_input("x"), "not set: 'x'"),
        (lambda g: g.get_input("w"), "no input 'w'"),
        (lambda g: g.benchmark(aotc.cuda(9)), "no device cuda"),
        (lambda g: g.benchmark(aotc.cpu()), "not set: 'x', 'y'"),
        (lambda g: g.benchmark(aotc.cpu(), "walk"), "no function 'walk'"),
        (lambda g: g.benchmark(repeat=0), "at least 1"),
    ],
)
def test_bad_use_of_an_executor(graph: GraphModule, act: Callable[[GraphModule], object], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        act(graph)


def test_nothing_is_set_by_a_call_that_fails(graph: GraphModule) -> None:
    with pytest.raises(AotcError, match="no input 'z'"):
        graph.set_input(x=X, z=X)
    with pytest.raises(AotcError, match="not set: 'x'"):
        graph.get_input("x")


def test_benchmark(graph: GraphModule) -> None:
    graph.set_input(x=X, y=Y)
    result = graph.benchmark(aotc.cpu(), repeat=4, number=2, min_repeat_ms=1)
    assert len(result.results) == 4
    assert 0 < result.min <= result.median <= result.max < 1
    assert result.min <= result.mean <= result.max and result.std >= 0
    head, names, values, _ = str(result).split("\n")
    assert head == "Execution time summary:"
    assert names == " mean (ms)   median (ms)    max (ms)     min (ms)     std (ms)  "
    assert len(values.split()) == 5


# --- the factory


def test_graph_json(lib: relay.build_module.ExecutorFactory) -> None:
    graph = json.loads(lib.get_graph_json())
    nodes = graph["nodes"]
    assert [n["name"] for n in nodes if n["op"] == "null"] == ["x", "y", *lib.get_params()]
    assert graph["arg_nodes"] == [k for k, n in enumerate(nodes) if n["op"] == "null"]
    assert len(graph["heads"]) == 2
    assert graph["node_row_ptr"][-1] == len(graph["attrs"]["shape"][1]) == len(graph["attrs"]["dltype"][1])
    for k, node in enumerate(nodes):
        assert all(source < k for source, _, _ in node["inputs"])
    calls = [n["attrs"] for n in nodes if n["op"] == "tvm_op"]
    assert calls and all(a["func_name"] and int(a["num_outputs"]) >= 1 for a in calls)
    assert [graph["attrs"]["shape"][1][graph["node_row_ptr"][h[0]] + h[1]] for h in graph["heads"]] == [[2, 4], [2, 4]]


def test_parts(lib: relay.build_module.ExecutorFactory) -> None:
    text, library, params = lib
    assert text == lib.get_graph_json()
    assert library is lib.get_lib() is lib.lib
    assert set(params) == set(lib.get_params())
    assert {p.size for p in params.values()} >= {4}
    assert lib.libmod_name == "default"
    assert [p.name for p in lib.ir_mod["main"].params] == ["x", "y"]
    assert repr(lib) == f"<ExecutorFactory 'default' for {aotc.target.llvm().name}>"


def test_parameters_may_stay_inputs() -> None:
    lib = relay.build(module_of_two(), "c", mod_name="open")
    module = GraphModule(lib["open"](aotc.cpu()))
    module.set_input("x", X)
    module.set_input(y=Y)
    module.load_params(relay.save_param_dict(PARAMS))
    module.run()
    check(module)


@pytest.mark.parametrize("context", [{"opt_level": 0}, {"opt_level": 1}, {}, {"opt_level": 3}])
def test_build_obeys_the_context(context: dict[str, int]) -> None:
    timing = aotc.instrument.PassTimingInstrument()
    with aotc.transform.PassContext(instruments=[timing], **context):
        lib = relay.build(module_of_two(), "c", params=PARAMS)
        text = timing.render()
    module = GraphModule(lib["default"](aotc.cpu()))
    module.run(x=X, y=Y)
    check(module)
    assert ("FoldConstant" in text) == (context.get("opt_level", 2) >= 2)
    assert "FuseOps" in text


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda m: relay.build(m), "no target"),
        (lambda m: relay.build(m, "rocm"), "no ROCm back end yet"),
        (lambda m: relay.build(m, "lvm"), "unknown target"),
        (lambda m: relay.build(m, 3), "a target is a name"),
        (lambda m: relay.build(m, "llvm", params={"v": X}), "no parameter is called 'v'"),
        (lambda m: relay.build(m, "llvm", params={"w": X}), "parameter 'w' is"),
        (lambda m: relay.build(m, "llvm", params={"b": np.zeros(4)}), "parameter 'b' is"),
        (lambda m: relay.build(m, "llvm", mod_name="no name"), "cannot be called 'no name'"),
        (lambda m: relay.build(m, "llvm", mod_name=""), "cannot be called ''"),
        (lambda m: relay.build(m, "llvm", mod_name=3), "cannot be called 3"),
        (lambda m: relay.build(m, "llvm", params=[X]), "a mapping from names to arrays, not list"),
        (lambda m: relay.build(aotc.IRModule.from_expr(twins()), "llvm"), "several inputs of @main have the name 'a'"),
        (lambda m: relay.build(aotc.IRModule(), "llvm"), "no function @main"),
    ],
)
def test_bad_builds(build: Callable[[aotc.IRModule], object], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        build(module_of_two())


def test_build_needs_kernels() -> None:
    with aotc.transform.PassContext(disabled_pass=["FuseOps"]), pytest.raises(AotcError, match="disables FuseOps"):
        relay.build(module_of_two(), "c")


def test_unknown_models_and_devices(lib: relay.build_module.ExecutorFactory) -> None:
    with pytest.raises(AotcError, match="no model 'defalt'"):
        lib["defalt"]
    with pytest.raises(AotcError, match="no device cuda"):
        lib["default"](aotc.cuda(9))
    with pytest.raises(AotcError, match="expected a device"):
        lib["default"]("cpu")  # type: ignore[arg-type]
    with pytest.raises(AotcError, match="expected an executor"):
        GraphModule(lib)  # type: ignore[arg-type]


# --- files

FRESH = """
import sys, numpy as np, aotc
from aotc.contrib.graph_executor import GraphModule
module = GraphModule(aotc.runtime.load_module(sys.argv[1])["default"](aotc.cpu()))
inputs = np.load(sys.argv[2])
module.run(**inputs)
np.savez(sys.argv[3], *[module.get_output(k).numpy() for k in range(module.get_num_outputs())])
assert not {"onnx", "aotc.driver", "aotc.relay.op"} & set(sys.modules)
"""


@pytest.mark.parametrize("suffix", [".so", ".tar"])
def test_another_process_gives_the_same(
    lib: relay.build_module.ExecutorFactory, graph: GraphModule, tmp_path: Path, suffix: str
) -> None:
    lib.export_library(tmp_path / f"deploy{suffix}")
    np.savez(tmp_path / "in.npz", x=X, y=Y)
    files = [str(tmp_path / name) for name in (f"deploy{suffix}", "in.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", FRESH, *files], check=True, cwd=ROOT)
    graph.run(x=X, y=Y)
    with np.load(tmp_path / "out.npz") as found:
        for k, array in enumerate(found.values()):
            np.testing.assert_array_equal(array, graph.get_output(k))


def test_the_archive(lib: relay.build_module.ExecutorFactory, tmp_path: Path) -> None:
    lib.export_library(tmp_path / "a.tar")
    lib.export_library(str(tmp_path / "b.tar"))
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        names = tar.getnames()
        assert all(m.mtime == 0 and m.isfile() for m in tar)
        tar.extractall(tmp_path / "out", filter="data")
    out = tmp_path / "out"
    passes = json.loads((out / "metadata.json").read_text(encoding="utf-8"))["passes"]
    assert passes[0] == "InferType" and passes[-1] == "ShareKernels" and "FoldConstant" in passes
    assert {"Makefile", "metadata.json", "parameters/default.params", "src/default.relay"} <= set(names)
    assert (out / "executor-config/graph/default.graph").read_text(encoding="utf-8") == lib.get_graph_json()
    params = relay.load_param_dict((out / "parameters/default.params").read_bytes())
    assert list(params) == list(lib.get_params())
    shutil.rmtree(out / "lib")
    subprocess.run(["make", "-s", "-C", str(out)], check=True, capture_output=True)
    module = GraphModule(aotc.runtime.load_module(out)["default"](aotc.cpu()))
    module.run(x=X, y=Y)
    check(module)


def test_bad_exports(lib: relay.build_module.ExecutorFactory, tmp_path: Path) -> None:
    with pytest.raises(AotcError, match=r"\.so or \.tar"):
        lib.export_library(tmp_path / "lib.zip")
    for name in ("none/lib.tar", "none/lib.so"):
        with pytest.raises(AotcError, match="cannot write"):
            lib.export_library(tmp_path / name)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="no such file"):
        aotc.runtime.load_module(tmp_path / "none.tar")
    (tmp_path / "bad.tar").write_bytes(b"no archive")
    with pytest.raises(AotcError, match="cannot unpack"):
        aotc.runtime.load_module(tmp_path / "bad.tar")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(AotcError, match="no compiled library"):
        aotc.runtime.load_module(tmp_path / "empty.tar")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_archives_stay_inside_their_directory(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(AotcError, match="will not unpack"):
        aotc.runtime.load_module(tmp_path / "evil.tar")


def test_links_in_archives_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        member = tarfile.TarInfo("lib")
        member.type, member.linkname = tarfile.SYMTYPE, "/tmp"
        tar.addfile(member)
    with pytest.raises(AotcError, match="will not unpack"):
        aotc.runtime.load_module(tmp_path / "link.tar")


# --- programs at the edges


def run_once(body: relay.Expr, **inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a program in which every variable is an input; its graph names as many outputs."""
    lib = relay.build(aotc.IRModule.from_expr(body), "c", mod_name="edge")
    module = GraphModule(lib["edge"](aotc.cpu()))
    module.run(**inputs)
    assert len(json.loads(lib.get_graph_json())["heads"]) >= module.get_num_outputs()
    return [module.get_output(k).numpy() for k in range(module.get_num_outputs())]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "bfloat16", "float8_e4m3fn", "int4", "uint4"]
)
def test_every_kind_of_dtype(dtype: str) -> None:
    array = np.array([0, 1, 1, 0]).astype(aotc.nd.empty((), dtype).numpy().dtype)
    (out,) = run_once(relay.reverse(relay.var("x", shape=(4,), dtype=dtype), axis=0), x=array)
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array[::-1])


def test_scalars() -> None:
    (out,) = run_once(relay.add(relay.var("x", shape=()), relay.const(1.0)), x=np.array(2, "float32"))
    assert out.shape == () and out == 3


def test_outputs_that_are_inputs_and_constants() -> None:
    x = relay.var("x", shape=(2,))
    array = np.array([1, 2], "float32")
    outputs = run_once(relay.Tuple([x, relay.const(np.array([3.0], "float32")), x, relay.exp(x)]), x=array)
    for out, wanted in zip(outputs, [array, [3.0], array, np.exp(array)], strict=True):
        np.testing.assert_allclose(out, wanted, rtol=1e-6)


def test_no_inputs() -> None:
    (out,) = run_once(relay.Function([], relay.exp(relay.const(np.zeros(3, "float32")))))
    np.testing.assert_array_equal(out, 1)


def test_an_input_called_like_an_argument() -> None:
    key, value = relay.var("key", shape=(1,)), relay.var("value", shape=(1,))
    (out,) = run_once(relay.subtract(key, value), key=np.ones(1, "float32"), value=np.zeros(1, "float32"))
    np.testing.assert_array_equal(out, 1)
