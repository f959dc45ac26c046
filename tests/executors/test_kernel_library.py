# SPDX-License-Identifier: Apache-2.0
"""Kernel libraries: primitive functions compiled together, each called with numpy arrays."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from aotc_codegen.c.kernel_library_project import emit_kernel_table_project

from aotc import relay
from aotc.driver.compile_sources import make_project_object_compiler
from aotc.driver.pipeline import Compilation
from aotc.driver.toolchain import Toolchain
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType, TupleType
from aotc.relay.expr import Function, Var
from aotc.relay.module import IRModule
from aotc.runtime.kernel_library import KernelLibrary
from aotc.tir.expr import Buffer, Load, call, const
from aotc.tir.expr import Var as Index
from aotc.tir.stmt import Kernel, Store, loop_nest
from aotc.tir.target import TARGETS, Target

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
C = TARGETS["c"]


def tensor(name: str, *shape: int, dtype: str = "float32") -> Var:
    return relay.var(name, shape=shape, dtype=dtype)


def functions() -> dict[str, Function]:
    x, y, i = tensor("x", 3, 4), tensor("y", 3, 4), tensor("i", 5, dtype="int4")
    pair = relay.var("pair", TupleType([TensorType((3, 4)), TensorType((3, 4))]))
    one, two = relay.TupleGetItem(pair, 0), relay.TupleGetItem(pair, 1)
    return {
        "add": Function([x, y], relay.add(x, y)),
        "swap": Function([pair], relay.Tuple([relay.negative(two), relay.nn.relu(one)])),
        "sum": Function([x], relay.sum(x, axis=(0, 1))),
        "sorted": Function([x], relay.sort(x, axis=0)),
        "narrow": Function([i], relay.cast(i, "float32")),
        "to narrow": Function([x], relay.cast(relay.clip(x, -8.0, 7.0), "int4")),
        "same as add": Function([x, y], relay.add(x, y)),
        "none": Function([], relay.zeros((2,), "float32")),
    }


def compile_functions(functions: Mapping[str, Function], target: Target) -> KernelLibrary:
    return Compilation(IRModule(), target, "kernels", PassContext()).compile_functions(functions)


@pytest.fixture(scope="module", params=["c", "x86-64"])
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    return compile_functions(functions(), TARGETS[request.param])


X = np.linspace(-3, 4, 12, dtype=np.float32).reshape(3, 4)


def test_every_function_is_a_kernel_of_its_name(library: KernelLibrary) -> None:
    assert library.kernel_names == tuple(functions())


def test_kernels_write_their_outputs(library: KernelLibrary) -> None:
    out, other, total = np.empty_like(X), np.empty_like(X), np.empty((), np.float32)
    library.run_kernel("add", [X, X], [out])
    np.testing.assert_array_equal(out, X + X)
    library.run_kernel("same as add", [X, out], [other])
    np.testing.assert_array_equal(other, X + out)
    library.run_kernel("swap", [X, out], [out.copy(), other])
    np.testing.assert_array_equal(other, np.maximum(X, 0))
    library.run_kernel("sum", [X], [total])
    np.testing.assert_allclose(total, X.sum(), rtol=1e-6)
    library.run_kernel("sorted", [-X], [out])
    np.testing.assert_array_equal(out, np.sort(-X, 0))
    two = np.ones(2, np.float32)
    library.run_kernel("none", [], [two])
    assert not two.any()


def test_integers_below_eight_bits_pass_through(library: KernelLibrary) -> None:
    narrow = np.array([-8, -1, 0, 3, 7], ml_dtypes.int4)
    wide = np.empty(5, np.float32)
    library.run_kernel("narrow", [narrow], [wide])
    np.testing.assert_array_equal(wide, [-8, -1, 0, 3, 7])
    back = np.zeros((3, 4), ml_dtypes.int4)
    library.run_kernel("to narrow", [np.trunc(X)], [back])
    np.testing.assert_array_equal(back.astype(np.float32), np.trunc(X))


def test_bound_arrays_are_read_anew_at_each_call(library: KernelLibrary) -> None:
    x, out = X.copy(), np.empty_like(X)
    call = library.bind_kernel("sorted", [x], [out])
    call()
    x[:] = X[::-1] + 1
    call()
    np.testing.assert_array_equal(out, X + 1)


def test_threads_have_scratch_memory_of_their_own(library: KernelLibrary) -> None:
    def sort(seed: int) -> bool:
        x = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
        out = np.empty_like(x)
        library.run_kernel("sorted", [x], [out])
        return bool((out == np.sort(x, 0)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(sort, range(200)))


def test_what_cannot_be_compiled_is_refused() -> None:
    assert compile_functions({}, C).kernel_names == ()
    x = tensor("x", 2, 3)
    choice = relay.If(relay.const(True), x, x)
    with pytest.raises(AotcError, match="If inside a fused function"):
        compile_functions({"choice": Function([x], choice)}, C)
    broken = Target(name="broken", cflags=("-march=no-such-machine",))
    with pytest.raises(AotcError, match="failed with exit code"):
        compile_functions({"relu": Function([x], relay.nn.relu(x))}, broken)


def test_kernels_may_be_called_like_helper_functions() -> None:
    x, y, i = Buffer("x", DType("int32"), 4), Buffer("y", DType("int32"), 4), Index("i")
    half = call("scale_once", Load(x, i), const(1 << 30, "int32"), const(0, "int32"))
    body = loop_nest([(i, 4)], Store(y, i, half))
    kernel = Kernel(name="scaled_i32_once", inputs=(x,), outputs=(y,), body=body)
    library, out = Compilation(IRModule(), C, "", PassContext()).compile_kernels({"k": kernel}), np.empty(4, np.int32)
    library.run_kernel("k", [np.array([8, 12, -4, 3], np.int32)], [out])
    assert out.tolist() == [1, 2, 0, 0]


def test_what_asks_the_processor_runs_on_every_one(tmp_path: Path) -> None:
    """The table says what a processor lacks: it has none of the instructions that are asked for."""
    target, (x, y) = TARGETS["x86-64-v4"], (Buffer(name, DType("float32"), 1) for name in "xy")
    kernel = Kernel(name="copy", inputs=(x,), outputs=(y,), body=Store(y, const(0), Load(x, const(0))))
    metadata = emit_kernel_table_project([kernel], tmp_path, target)
    compiler = make_project_object_compiler(tmp_path, metadata, Toolchain(("cc",)), target)
    table, *kernels = sorted((tmp_path / "src").glob("*.c"), key=lambda path: "_kernels_" in path.name)
    assert not {*target.cflags} & {*compiler.flags, *compiler.special.get(table, ())}
    assert kernels
    assert all({*target.cflags} <= {*compiler.special[path]} for path in kernels)
