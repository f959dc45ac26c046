# SPDX-License-Identifier: Apache-2.0
"""Last-block reductions as CUDA C: the interpreter's bits for every order of blocks, and the code that NVRTC
generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin
from onnx import numpy_helper, parser

from aotc.driver.compile import CompileOptions
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.tir.device.lower_to_launches import lower_program_to_gpu_launches
from aotc.tir.gpu_launch import buffers_of_last_block_counters, launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.stmt import Kernel
from tests.codegen.batch import finished
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA
from tests.cuda.emulator import Array, build, launch
from tests.tir.contractions import conv, matmul, with_block_shapes
from tests.tir.test_last_block_reduction import FUSED, SPLIT, SUMS, means, with_launch_cost


def text_of(kernels: Mapping[str, Kernel]) -> str:
    assert CUDA.gpu is not None
    return render_cuda_source_file(print_cuda_kernels([*kernels.values()], "net", CUDA.gpu), name="net", banner="")


@pytest.fixture
def jobs() -> dict[str, tuple[Kernel, list[Array]]]:
    """Kernels with few threads, and what they are run on."""
    rng = np.random.default_rng(7)
    found = {"sums": (parse_kernel(SUMS), [rng.standard_normal(768).astype(np.float32)])}
    for k, name in enumerate(("conv", "groups of threads")):
        case, tile = SPLIT[name]
        found[f"part{k}"] = (
            case.kernel(with_block_shapes(CUDA, tile)),
            [value.reshape(-1) for value in case.values(seed=k)],
        )
    for k, name in enumerate(("channels", "parts")):
        case, columns, tile, _ = FUSED[name]
        program = means(case, columns, with_block_shapes(CUDA, tile))
        (step,) = lower_program_to_gpu_launches(program, with_launch_cost(1024)).steps
        found[f"fused{k}"] = step.kernel, [value.reshape(-1) for value in case.values(seed=k)]
    return found


def test_bits_of_the_last_block(jobs: dict[str, tuple[Kernel, list[Array]]], tmp_path: Path) -> None:
    """Blocks run one after the other in both orders, and side by side; counts are what they were when all is done."""
    kernels = {name: finished(kernel, CUDA) for name, (kernel, _) in jobs.items()}
    assert CUDA.gpu is not None
    printed = print_cuda_kernels([*kernels.values()], "net", CUDA.gpu)
    built = build(render_cuda_source_file(printed, name="net", banner=""), tmp_path, "-O1")
    for name, kernel in kernels.items():
        inputs, size = jobs[name][1], launch_of(kernel)
        assert size is not None
        expected = run_kernel(kernel, inputs)
        counts = buffers_of_last_block_counters(kernel)
        scratch = [np.full(b.size, 0 if b in counts else 99, b.dtype.numpy) for b in kernel.workspace]
        for backwards, hosts in ((False, 1), (True, 1), (False, 3), (True, 3)):
            made = [np.full_like(one, 77) for one in expected]
            arguments, sizes = [*inputs, *made, *scratch], {"blocks": size.grid, "threads": size.block}
            problem = launch(built, printed.names[kernel], arguments, **sizes, backwards=backwards, hosts=hosts)
            assert problem == "", name
            assert [one.tobytes() for one in made] == [one.tobytes() for one in expected], name
            assert not any(array.any() for b, array in zip(kernel.workspace, scratch, strict=True) if b in counts)


def test_code_of_the_last_block() -> None:
    """Machine code of last-block reductions: one atomic operation per block between fences, no stack."""
    cases = {
        "one": conv(ic=512, oc=512, size=(7, 7), padding=1, block=32),
        "two": matmul(m=32, k=4096, n=32, dtype="float16", acc="float32"),
    }
    kernels = {name: finished(case.kernel(CUDA), CUDA) for name, case in cases.items()}
    (step,) = lower_program_to_gpu_launches(means(matmul(m=128, k=384, n=384), 384), CUDA).steps
    kernels["three"] = finished(step.kernel, CUDA)
    assert all(len(buffers_of_last_block_counters(kernel)) == 1 for kernel in kernels.values())
    try:
        images = find_nvrtc_compiler().images(text_of(kernels), (80,))
    except AotcError as error:
        if error.diagnostics[0].code != "no-nvrtc":
            raise
        skip_or_fail_without("NVRTC")
    found = read_kernel_resources_from_cubin(images["sm_80"])
    assert [one.local_bytes for one in found.values()] == [0, 0, 0]
    ptx = images["compute_80"]
    assert ptx.count(b"atom.global.inc.u32") == 3
    assert ptx.count(b"membar.gl") == 6


NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[128, 96] x, float[96] g, float[96] b) => (float[128, 96] z) {
  p = MatMul(x, w)
  y = Add(p, x)
  z = LayerNormalization(y, g, b)
}
"""


def test_each_run_counts_anew() -> None:
    """From what is there when a session is opened: a new device's memory is no zeros."""
    rng = np.random.default_rng(9)
    model = parser.parse_model(NET)
    w = rng.standard_normal((96, 96)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    made = CompileOptions(target="cuda", emulated=True).compile_model(model)
    assert len(made.metadata["steps"]) == 1
    sessions = [made.session() for _ in range(2)]
    for _ in range(3):
        x, g, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((128, 96), 96, 96))
        y = x @ w + x
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * g + b
        found = [session.run(None, {"x": x, "g": g, "b": b})[0] for session in sessions]
        np.testing.assert_allclose(found[0], y, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(found[0], found[1])
