# SPDX-License-Identifier: Apache-2.0
"""Code for RISC-V's vector extension: which compilers and flags it accepts, which processors, and how many instructions
it executes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import find_toolchain
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Load, Var, cast
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Kernel, Store, forall
from aotc.tir.target import get_target
from benchmarks.instruction_counts import instructions_per_multiply_add
from benchmarks.single_operators import (
    OperatorShape,
    dense_bias_relu_case,
    float32_conv_bias_relu_case,
    int8_conv_bias_requantize_case,
)
from tests.codegen.batch import finished
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, build_program_that_opens_libraries, run
from tests.share import share
from tests.targets.machines import machine

#: Folder of the C library of Debian's cross compiler.
SYSTEM_ROOT = "/usr/riscv64-linux-gnu"
X = np.ones((1, 1, 8, 8), np.float32)


def processor(extensions: str = "") -> tuple[str, ...]:
    """Return the command of QEMU with a processor that has `extensions`."""
    return (require_tool("qemu-riscv64"), "-L", SYSTEM_ROOT, "-cpu", f"rv64{extensions}")


def vectors(bits: int) -> str:
    return f",v=true,vlen={bits},elen=64,vext_spec=v1.0"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """A library for registers of 256 bits, by the compiler that is chosen where none is named."""
    machine("riscv64-v256")
    folder = tmp_path_factory.mktemp("wide") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CC", raising=False)
        return aotc.compile(DIGITS, output=folder, target="riscv64-v256", cflags=["-O1"])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that opens libraries."""
    return build_program_that_opens_libraries(require_tool("riscv64-linux-gnu-gcc"), tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize(
    ("extensions", "lacks"), [("", "v, zvl256b"), (vectors(128), "zvl256b"), (vectors(256), ""), (vectors(512), "")]
)
def test_loading_states_all_that_the_processor_lacks(
    wide: CompiledModel, host: Path, extensions: str, lacks: str
) -> None:
    said = run([*processor(extensions), host, wide.library], host.parent)
    if lacks:
        assert said == f"8 the processor lacks {lacks}, which kernels for riscv64-v256 need\n"
    else:
        assert said.startswith("0 \n0 success\n")


def test_longer_registers_give_the_same_bits(tmp_path: Path) -> None:
    here = machine("riscv64-v128")
    model = aotc.compile(DIGITS, output=tmp_path / "digits", name="net", target=here.target, build=False)
    (expected,) = here.run_model(model, [X])
    X.tofile(tmp_path / "x")
    run([*processor(vectors(256)), model.path / "build/net_example", tmp_path / "x", tmp_path / "y"], tmp_path)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y", np.float32), expected.reshape(-1))


@pytest.mark.parametrize(
    ("compiler", "flags", "message"),
    [
        ("clang-19 --target=riscv64-linux-gnu", "-march=rv64gcv", "vector registers of 256 bits"),
        ("clang-19 --target=riscv64-linux-gnu", "-march=rv64gc", "vector registers of 256 bits"),
        ("riscv64-linux-gnu-gcc", "-march=rv64gcv_zvl256b", "this compiler has no vector instructions of RISC-V"),
    ],
)
def test_kernels_reject_flags_and_compilers_without_such_vectors(
    wide: CompiledModel, compiler: str, flags: str, message: str
) -> None:
    cc = compiler.split()
    if "gcc" in cc[0] and int(run([require_tool(cc[0]), "-dumpversion"], wide.path).partition(".")[0]) > 13:
        pytest.skip("newer versions of gcc have vector instructions")
    require_tool(cc[0])
    (file, *_) = wide.metadata["isas"][0]["files"]
    command = [*cc, "-std=c99", flags, "-mabi=lp64d", "-Iinclude", "-Isrc", "-fsyntax-only", file]
    done = subprocess.run(command, cwd=wide.path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and message in done.stderr


def test_a_named_compiler_without_vectors_is_refused(tmp_path: Path) -> None:
    cc = require_tool("riscv64-linux-gnu-gcc")
    if int(run([cc, "-dumpversion"], tmp_path).partition(".")[0]) > 13:
        pytest.skip("newer versions of gcc have vector instructions")
    with pytest.raises(AotcError, match="does not translate vectors to instructions for riscv64-v128") as caught:
        aotc.compile(DIGITS, output=tmp_path / "digits", target="riscv64-v128", cc=cc)
    assert "clang-19 --target=riscv64-linux-gnu" in str(caught.value.diagnostics[0].hint)


def test_no_compiler_for_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AotcError, match="no C compiler that translates vectors for riscv64-v256 found") as caught:
        find_toolchain(target=get_target("riscv64-v256"))
    assert "clang-19 gcc-riscv64-linux-gnu" in str(caught.value.diagnostics[0].hint)


@pytest.mark.parametrize("target", ["riscv64-v128", "riscv64-v256"])
def test_doubles_become_integers_under_qemu(target: str, tmp_path: Path) -> None:
    """QEMU 7.2 ends with an error at the instruction that converts float64 to int32."""
    here, rng = machine(target), np.random.default_rng(0)
    ends = [np.nan, np.inf, -np.inf, 2.0**31, 2.0**31 - 1, -(2.0**31), -(2.0**31) - 1, -0.5]
    values = np.concatenate([ends, rng.normal(0, 2.0**31, 29)])
    x, y, i = Buffer("x", DType("float64"), values.size), Buffer("y", DType("int32"), values.size), Var("i")
    body = forall(i, values.size, Store(y, i, cast(Load(x, i), "int32")))
    kernel = finished(Kernel(name="doubles", inputs=(x,), outputs=(y,), body=body), here.target)
    ((actual,),) = here.run_kernels([(kernel, [values])], tmp_path)
    np.testing.assert_array_equal(actual, run_kernel(kernel, [values])[0])


SHAPES = {
    "convolution": float32_conv_bias_relu_case("3x3", 32, 32, 14, 3),
    "depthwise": float32_conv_bias_relu_case("3x3 depthwise", 32, 32, 28, 3, groups=32),
    "pointwise": float32_conv_bias_relu_case("1x1", 64, 64, 14, 1),
    "matrix": dense_bias_relu_case(32, 64, 128),
    "int8 convolution": int8_conv_bias_requantize_case("3x3", 32, 32, 14, 3, dtype="int8"),
    "int8 pointwise": int8_conv_bias_requantize_case("1x1", 64, 64, 14, 1, dtype="int8"),
}


@pytest.mark.parametrize("name", share(SHAPES, 2))
def test_vectors_execute_a_third_of_the_instructions(name: str, tmp_path: Path) -> None:
    shape: OperatorShape = SHAPES[name]
    scalar, short, long = (
        instructions_per_multiply_add(shape, target, tmp_path / target)
        for target in ("riscv64", "riscv64-v128", "riscv64-v256")
    )
    assert 3 * long <= scalar and 2 * short <= scalar


def test_tiles_load_from_few_addresses(tmp_path: Path) -> None:
    """Loads of vectors have no offsets: a tile of many positions computes their addresses, and spills registers."""
    shape = float32_conv_bias_relu_case("3x3 s2 depthwise", 32, 32, 28, 3, 2, groups=32)
    scalar, long = (
        instructions_per_multiply_add(shape, target, tmp_path / target) for target in ("riscv64", "riscv64-v256")
    )
    assert 1.7 * long <= scalar
