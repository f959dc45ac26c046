# SPDX-License-Identifier: Apache-2.0
"""Functions with the attribute Compiler are computed by the user's own C code."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib import external, graph_executor
from aotc.contrib.debugger import debug_executor
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.diagnostics import AotcError
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.dataflow_pattern import is_op, wildcard
from aotc.relay.expr import Expr, Function
from aotc.relay.module import IRModule
from aotc.relay.text.parser import parse

TEXT = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) {
  %0 = exp(%x);
  %1 = @mine_0(%0, %y);
  %2 = @mine_0(%1, %x);
  multiply(%2, 2f)
}

def @mine_0(%a: Tensor[(2, 3), float32], %b: Tensor[(2, 3), float32], \
Compiler="mine", global_symbol="mine_0", Primitive=1) -> Tensor[(2, 3), float32] {
  subtract(%a, %b)
}
"""
CODE = """
#include <stddef.h>
void SYMBOL(const float *a, const float *b, float *out) {
  size_t i;
  for (i = 0; i < 6; ++i) out[i] = a[i] - b[i] + 100.0f;
}
"""
"""Adds 100 to what the function says, so that the results tell who computed them."""
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(3, 4, 6, dtype=np.float32).reshape(2, 3)
EXPECTED = (np.exp(X) - Y - X + 200) * 2


def generate(_: Function, symbol: str) -> str:
    return CODE.replace("SYMBOL", symbol)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    external.unregister("mine")


def module() -> IRModule:
    return parse(TEXT)


def test_gpus_do_not_run_it(tmp_path: Path) -> None:
    external.register("mine", generate)
    with pytest.raises(AotcError, match="the code of mine_0 is C, which mine wrote") as caught:
        aotc.compile(module(), target="cuda", output=tmp_path / "net")
    assert caught.value.code == "external" and not (tmp_path / "net").exists()


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_the_users_code_is_called(opt_level: int, tmp_path: Path) -> None:
    external.register("mine", generate)
    model = aotc.compile(module(), output=tmp_path / "net", name="net", opt_level=opt_level, check_compiler=True)
    result = model.session().run(None, {"x": X, "y": Y})[0]
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    assert (tmp_path / "net/src/net_extern_0.c").read_text().startswith(CODE.replace("SYMBOL", "mine_0"))
    assert not (tmp_path / "net/src/net_extern_1.c").exists()
    assert [s["kernel"] for s in model.metadata["steps"]].count("mine_0") == 2
    for build_file in ("Makefile", "CMakeLists.txt"):
        assert "src/net_extern_0.c" in (tmp_path / "net" / build_file).read_text()
    assert "void mine_0(" in (tmp_path / "net/src/net_internal.h").read_text()


@pytest.mark.skipif(normalized_architecture_name() != "x86_64", reason="instruction sets of x86-64")
def test_several_instruction_sets_share_it(tmp_path: Path) -> None:
    """It runs on each, so it is compiled for the oldest; alone with one, it is compiled as kernels are."""
    external.register("mine", generate)
    models = [aotc.compile(module(), output=tmp_path / t, name="net", target=t) for t in ("x86-64-multi", "x86-64-v3")]
    for isa in ("x86-64", "x86-64-v3"):
        result = aotc.load(models[0].path, isa=isa).run(None, {"x": X, "y": Y})[0]
        np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    for model, own in zip(models, (False, True), strict=True):
        assert any("src/net_extern_0.c" in version["files"] for version in model.metadata["isas"]) == own
        kernels = [line for line in (model.path / "Makefile").read_text().splitlines() if line.startswith("KERNELS")]
        assert any("src/net_extern_0.c" in line for line in kernels) == own


def test_code_that_differs_between_instruction_sets_is_refused(tmp_path: Path) -> None:
    numbers = itertools.count()
    external.register("mine", lambda function, symbol: f"/* {next(numbers)} */{generate(function, symbol)}")
    with pytest.raises(AotcError, match="code of the user's differs between the instruction sets") as caught:
        aotc.compile(module(), output=tmp_path / "net", target="x86-64-multi", build=False)
    assert caught.value.code == "external"


def test_relay_build_calls_it_too() -> None:
    external.register("mine")(generate)
    library = relay.build(module(), "llvm")
    executor = graph_executor.GraphModule(library["default"](aotc.cpu()))
    executor.run(x=X, y=Y)
    np.testing.assert_allclose(executor.get_output(0).numpy(), EXPECTED, rtol=1e-6)


def test_the_interpreter_runs_the_body() -> None:
    result = relay.create_executor("debug", mod=module()).evaluate()(X, Y)
    np.testing.assert_allclose(result.numpy(), EXPECTED - 400, rtol=1e-5)


@pytest.mark.parametrize("kind", ["graph", "aot", "vm"])
def test_executors_call_it(kind: str) -> None:
    external.register("mine", generate)
    result = relay.create_executor(kind, mod=module()).evaluate()(X, Y)
    np.testing.assert_allclose(result.numpy(), EXPECTED, rtol=1e-6)


def test_two_generators_for_a_name() -> None:
    external.register("mine", generate)
    external.register("mine", generate)
    assert external.registered() == ("mine",)
    with pytest.raises(AotcError, match="generator for 'mine' is registered already"):
        external.register("mine", lambda _, symbol: symbol)


def test_no_generator_names_the_nearest() -> None:
    external.register("mine", generate)
    with pytest.raises(AotcError, match="no code generator is registered for functions of 'mime'") as caught:
        aotc.compile(parse(TEXT.replace('"mine"', '"mime"')), build=False)
    assert "did you mean 'mine'" in str(caught.value)


def test_the_virtual_machine_wants_a_generator_too() -> None:
    with pytest.raises(AotcError, match="no code generator is registered for functions of 'mine'"):
        relay.create_executor("vm", mod=module()).evaluate()


def test_main_cannot_be_external_itself() -> None:
    external.register("mine", generate)
    program = module()
    program["main"] = program["mine_0"]
    with pytest.raises(AotcError, match="@main is one kernel, not calls of kernels"):
        aotc.compile(program, build=False)


def test_a_source_without_the_symbol() -> None:
    external.register("mine", lambda *_: "void other(const float *a, float *b) { *b = *a; }")
    with pytest.raises(AotcError, match=r"does not define void mine_0"):
        aotc.compile(module(), build=False)


def test_a_generator_that_raises_is_named() -> None:
    def broken(_: Function, symbol: str) -> str:
        raise ValueError("no such layout")

    external.register("mine", broken)
    with pytest.raises(AotcError, match="generator for 'mine' failed on @mine_0: ValueError: no such layout"):
        aotc.compile(module(), build=False)


def test_a_symbol_that_c_does_not_have() -> None:
    external.register("mine", generate)
    with pytest.raises(AotcError, match="has the global_symbol '9 lives'"):
        aotc.compile(parse(TEXT.replace('symbol="mine_0"', 'symbol="9 lives"')), build=False)


@pytest.mark.parametrize(
    ("code", "message", "note"),
    [
        (CODE.replace("const float *a", "const double *a"), "does not compile", "conflicting types for 'mine_0'"),
        (CODE.replace("const float *b, ", ""), "does not compile", "mine_0"),
        (CODE.replace("size_t i;", "size_t i"), "does not compile", "error"),
        ("/* void SYMBOL() is elsewhere */", "does not define it", "mine_0"),
        ("void SYMBOL(const float *, const float *, float *);", "does not define it", "mine_0"),
        (f"{CODE.replace('void', 'static void')} void use(float *p); void use(float *p) {{ SYMBOL(p, p, p); }}",
         "does not define it", "mine_0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiler", [None, "clang"])
def test_code_that_is_not_the_function(
    code: str, message: str, note: str, compiler: str | None, tmp_path: Path
) -> None:
    if compiler is not None and shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    external.register("mine", lambda _, symbol: code.replace("SYMBOL", symbol))
    with pytest.raises(AotcError, match=f"what the generator for 'mine' wrote for @mine_0 {message}") as caught:
        aotc.compile(module(), output=tmp_path / "net", cc=compiler)
    (problem,) = caught.value.diagnostics
    assert any(note in line.replace("\u2018", "'").replace("\u2019", "'") for line in problem.notes)
    assert "void mine_0(const float *in0, const float *in1, float *out0)" in problem.hint
    assert not (tmp_path / "net").exists()
    with pytest.raises(AotcError, match=message):
        relay.build(module(), "llvm")


def test_functions_that_macros_write_and_qualifiers() -> None:
    macro = CODE.replace("void SYMBOL(", "#define KERNEL(name) void name\nKERNEL(SYMBOL)(").replace("*", "*restrict ")
    external.register("mine", lambda _, symbol: macro.replace("SYMBOL", symbol))
    result = aotc.compile(module()).session().run(None, {"x": X, "y": Y})[0]
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)


# --- partitioned modules

SCALED = """#include <math.h>
void SYMBOL(const float *a, const float *w, float *scaled, float *root) {
  for (int i = 0; i < COUNT; ++i) {
    scaled[i] = a[i] * w[i % 3];
    root[i] = sqrtf(scaled[i]);
  }
}
"""
"""For two results: a product, and its square root."""


def scaled(function: Function, symbol: str) -> str:
    """C for a function of (a, w) that multiplies first, whatever composites it is made of."""
    (ty, _) = (p.checked_type for p in function.params)
    assert isinstance(ty, TensorType)
    return SCALED.replace("SYMBOL", symbol).replace("COUNT", str(ty.numel))


def partitioned() -> IRModule:
    """Composites in a region of two results, of which one is used outside, and one region that is like it."""
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(3,))
    body: Expr = x
    for _ in range(2):
        scale = relay.multiply(body, w)
        body = relay.exp(relay.add(relay.sqrt(scale), scale))
    table = [("mine.scale", is_op("multiply")(wildcard(), wildcard())), ("mine.root", is_op("sqrt")(wildcard()))]
    names = ("MergeComposite", "AnnotateTarget", "MergeCompilerRegions", "PartitionGraph")
    options = {"MergeComposite": [table], "AnnotateTarget": ["mine"]}
    passes = [getattr(relay.transform, name)(*options.get(name, [])) for name in names]
    start = relay.transform.InferType()(IRModule.from_expr(Function([x, w], body)))
    module: IRModule = aotc.transform.Sequential(passes)(start)
    return module


@pytest.mark.parametrize("opt_level", [0, 3])
def test_partitioned_modules_on_all_executors(opt_level: int) -> None:
    external.register("mine", scaled)
    module = partitioned()
    assert sum("Compiler" in f.attrs for f in module.functions.values()) == 2
    x, w = np.linspace(0, 2, 6, dtype=np.float32).reshape(2, 3), np.array([0.25, 0.5, 1], np.float32)
    with PassContext(opt_level=opt_level):
        found = {kind: relay.create_executor(kind, module).evaluate()(x, w) for kind in ("debug", "graph", "aot", "vm")}
        library = relay.build(module, "llvm")
    for kind, result in found.items():
        np.testing.assert_allclose(result.numpy(), found["debug"].numpy(), rtol=1e-5, err_msg=kind)
    watched = debug_executor.create(library.get_graph_json(), library, aotc.cpu())
    watched.run(x=x, w=w)
    np.testing.assert_allclose(watched.get_output(0).numpy(), found["debug"].numpy(), rtol=1e-5)
    assert sum("mine" in str(node) for node in watched.nodes) == 2


def test_the_virtual_machine_compiles_it_for_the_shapes_that_come_up() -> None:
    """In a function that calls itself, and with an unknown dimension: the generator gets functions of static types."""
    text = """
    #[version = "0.0.5"]
    def @main(%x: Tensor[(?, 3), float32], %w: Tensor[(3), float32], %n: int32) {
      if (%n < 1) { %x } else {
        %0 = @both(%x, %w);
        @main(%0.0 + %0.1, %w, %n - 1)
      }
    }
    def @both(%a: Tensor[(?, 3), float32], %w: Tensor[(3), float32], Compiler="mine", global_symbol="both") {
      %0 = multiply(%a, %w);
      (%0, sqrt(%0))
    }
    """
    counts: list[int] = []

    def count(function: Function, symbol: str) -> str:
        counts.append(function.params[0].checked_type.numel)  # type: ignore[union-attr]
        return scaled(function, symbol)

    external.register("mine", count)
    program = parse(text)
    debug, vm = (relay.create_executor(kind, program).evaluate() for kind in ("debug", "vm"))
    w = np.array([0.25, 0.5, 1], np.float32)
    for rows in (1, 4, 1):
        x = np.linspace(0, 2, rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_allclose(vm(x, w, 3).numpy(), debug(x, w, 3).numpy(), rtol=1e-5)
    assert counts == [3, 12]
