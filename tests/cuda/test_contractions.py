# SPDX-License-Identifier: Apache-2.0
"""Contractions in GPU block tiles: as CUDA C on the CPU they have the interpreter's bits for every order of threads;
as GPU machine code they use few registers, no stack, and spend most instructions on products.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.compiler_flags import CUDA_COMPILER_FLAGS
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin

from aotc.driver.nvrtc import FLAGS as NVRTC_FLAGS
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.micro_kernels import BlockShape
from aotc.tir.passes import kernel_passes
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA, Gpu, Target
from tests.conftest import skip_or_fail_without
from tests.cuda.device import FLAGS
from tests.cuda.emulator import build, launch
from tests.tir.contractions import Case, conv, matmul, with_block_shapes

ONE_GROUP, GROUPS, FEW = BlockShape(8, 8, 4, 4), BlockShape(4, 4, 4, 8, 4, 32), BlockShape(4, 4, 4, 4, 16, 128)
FEW_WARPS, TWO_WARPS = BlockShape(8, 4, 4, 8, 4, 64), BlockShape(8, 8, 4, 8, depth=32)
CASES = {
    "pieces": (conv(ic=32, oc=20, size=(5, 4), kernel=(2, 1), padding=1, block=4), GROUPS),
    "conv": (conv(batch=2, ic=3, oc=17, size=(4, 5), kernel=(3, 2), padding=1), ONE_GROUP),
    "product": (matmul(m=33, k=20, n=20), ONE_GROUP),
    "thin": (conv(ic=16, oc=9, size=(2, 2), kernel=(2, 2), padding=1), FEW),
    "half": (matmul(m=16, k=3, n=16, dtype="float16", acc="float32"), FEW_WARPS),
    "halves": (conv(ic=32, oc=20, size=(5, 4), kernel=(2, 1), padding=1, dtype="float16", acc="float32"), TWO_WARPS),
    "words": (matmul(m=33, k=72, n=20, transposed=True, dtype="uint8", acc="int32"), ONE_GROUP),
    "bytes": (conv(ic=6, oc=17, size=(4, 5), kernel=(3, 2), padding=1, dtype="int8", acc="int32"), FEW),
    "brain": (matmul(m=70, k=40, n=20, dtype="bfloat16", acc="float32"), FEW_WARPS),
    "warps": (conv(ic=6, oc=17, size=(4, 5), kernel=(3, 2), padding=1, dtype="int8", acc="int32"), FEW_WARPS),
    "words_of_warps": (matmul(m=33, k=72, n=20, transposed=True, dtype="uint8", acc="int32"), TWO_WARPS),
}
#: Bytes that tensor cores multiply.
WARPS = ("warps", "words_of_warps")


def ready(case: Case, name: str, target: Target = CUDA) -> Kernel:
    """A kernel that can be printed."""
    kernel = replace(case.kernel(target), name=name)
    for one in kernel_passes(CUDA):
        kernel = one.rewrite_kernel(kernel)
    return kernel


def printed(kernels: Mapping[str, Kernel]) -> str:
    assert CUDA.gpu is not None
    return render_cuda_source_file(print_cuda_kernels([*kernels.values()], "net", CUDA.gpu), name="net", banner="")


def test_bits_of_tiles(tmp_path: Path) -> None:
    kernels = {}
    for name, (case, shape) in CASES.items():
        target = OLD if name == "words" else CUDA
        is_of_warps = name in WARPS or case.a.dtype.bits == 16
        kernels[name] = ready(case, name, with_block_shapes(target, shape, level="warp" if is_of_warps else "threads"))
        assert ("mma_" in to_text(kernels[name])) == is_of_warps
    built = build(printed(kernels), tmp_path, *FLAGS)
    for name, kernel in kernels.items():
        a, b = (value.reshape(-1) for value in CASES[name][0].values(seed=4))
        (expected,) = run_kernel(kernel, [a, b])
        size = launch_of(kernel)
        assert size is not None
        for backwards in (False, True):
            y = np.full(expected.nbytes, 0x5A, np.uint8).view(expected.dtype)
            arguments = [a, b, y]
            problem = launch(built, f"net_{name}", arguments, blocks=size.grid, threads=size.block, backwards=backwards)
            assert problem == ""
            assert y.tobytes() == expected.tobytes(), name


#: Registers at most, the least share of multiply-adds in the innermost loop around most of them, and how many of these
#: there are for each load from shared memory, which brings four operands.
FIGURES = {
    "conv3x3": (conv(ic=64, oc=64, size=(56, 56), padding=1, block=32), 96, 0.66, 10),
    "conv1x1": (conv(ic=1024, oc=1024, size=(14, 14), kernel=(1, 1), block=32), 96, 0.6, 8),
    "dense": (matmul(m=128, k=384, n=1536), 96, 0.7, 10),
    "large": (matmul(m=4096, k=4096, n=4096), 128, 0.8, 16),
    "vector": (matmul(m=1, k=512, n=1000), 48, 0.0, 0),
}
#: Of bytes, which matrix instructions multiply, and four of which one instruction does on older devices.
BYTES = matmul(m=1024, k=512, n=1024, transposed=True, dtype="uint8", acc="int32")
OLD = replace(CUDA, gpu=Gpu(architectures=(75, 80)))
#: Of float16, where matrix instructions multiply, and the tile is 64 x 64.
HALF = matmul(m=1024, k=512, n=1024, dtype="float16", acc="float32")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+ )?(.*?) ?;")
#: What brings 16 bytes to shared memory.
_WIDE = "LDGSTS.E.BYPASS.128"
_LABEL = re.compile(r"^(\.L_\w+):")


def hot_loop(text: str) -> list[str]:
    """The instructions of the innermost loop that multiplies most."""
    labels: dict[str, int] = {}
    found: list[str] = []
    loops: list[list[str]] = [[]]
    ends: list[int] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        if instruction := _INSTRUCTION.search(line):
            found.append(instruction[1])
            target = re.search(r"BRA.*`\((\.L_\w+)\)", instruction[1])
            begin = labels.get(target[1]) if target else None
            if begin is not None and not any(end > begin for end in ends):
                loops.append(found[begin:])
                ends.append(len(found))
    return max(loops, key=lambda loop: (multiplied(loop), -len(loop)))


def multiplied(loop: list[str]) -> int:
    return sum(one.startswith("FFMA") for one in loop)


def disassembled(code: bytes, folder: Path) -> Iterator[tuple[str, str]]:
    """The name and instructions of each kernel."""
    package = find_spec("nvidia")
    folders = (package.submodule_search_locations if package is not None else None) or ()
    tool = next((tool for found in folders for tool in Path(found).glob("*/bin/nvdisasm*")), None)
    if tool is None:
        skip_or_fail_without("nvdisasm")
    (folder / "net.cubin").write_bytes(code)
    done = subprocess.run([tool, "-c", folder / "net.cubin"], capture_output=True, text=True, check=True)
    for part in re.split(r"\n\s*\.section\s+\.text\.net_", done.stdout)[1:]:
        yield part.partition(",")[0], part


@pytest.fixture(scope="module")
def code() -> bytes:
    cases = {name: case for name, (case, *_) in FIGURES.items()} | {"half": HALF, "bytes": BYTES}
    kernels = {name: ready(case, name) for name, case in cases.items()}
    text = printed({**kernels, "words": ready(BYTES, "words", OLD)})
    try:
        return find_nvrtc_compiler().images(text, (80,))["sm_80"]
    except AotcError as error:
        if error.diagnostics[0].code != "no-nvrtc":
            raise
        skip_or_fail_without("NVRTC")


def test_kernels_need_no_libraries() -> None:
    """Matrix instructions are written out, and arithmetic is as exact as C's."""
    text = printed({"half": ready(HALF, "half")})
    assert "mma.sync.aligned" in text and "ldmatrix.sync.aligned" in text
    assert re.findall("#include.*", text) == ['#include "aotc_emulator.h"']
    assert not re.search(r"wmma|cublas|cudnn|cooperative|__(?:expf|logf|sinf|cosf|powf|fdividef)\b", text)
    assert CUDA_COMPILER_FLAGS[:4] == ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
    assert not any("fast" in flag for flag in NVRTC_FLAGS)


def test_accumulators_are_in_registers(code: bytes) -> None:
    found = read_kernel_resources_from_cubin(code)
    for name, (_, registers, *_) in FIGURES.items():
        assert found[f"net_{name}"].registers <= registers, name
        assert found[f"net_{name}"].local_bytes == 0, name
    for name in ("half", "bytes", "words"):
        assert found[f"net_{name}"].registers <= (160 if name == "bytes" else 128)  # 128 threads
        assert found[f"net_{name}"].local_bytes == 0


def test_loops_multiply_most_of_the_time(code: bytes, tmp_path: Path) -> None:
    texts = dict(disassembled(code, tmp_path))
    half = re.findall(r" (HMMA\.16816|LDSM\.16\.MT?88|LDGSTS\.E\.BYPASS\.128|LDG|STS)\b", texts.pop("half"))
    rows, columns, products, copies = (half.count(n) for n in ("LDSM.16.M88", "LDSM.16.MT88", "HMMA.16816", _WIDE))
    assert rows == columns == copies == products // 4 > 0
    assert not {"LDG", "STS"} & {*half}
    sums = {
        name: re.findall(r" (IDP\.4A\.U8\.U8|IMMA\.16832\.U8\.U8|LDG\.\S+)", texts.pop(name))
        for name in ("bytes", "words")
    }
    assert sums["bytes"].count("IMMA.16832.U8.U8") >= 16 and sums["words"].count("IDP.4A.U8.U8") >= 512
    words = {one for found in sums.values() for one in found if one.startswith("LDG")}
    assert words == {"LDG.E.CONSTANT"}  # no single bytes
    assert texts.keys() == FIGURES.keys()
    for name, (_, _, share, each) in FIGURES.items():
        loop = hot_loop(texts[name])
        loads = [one for one in loop if one.startswith("LDS") and one != "LDS RZ, [RZ]"]  # what sm_80 waits by
        assert all(one.startswith("LDS.128") for one in loads), name
        assert multiplied(loop) >= max(share * len(loop), each * len(loads)), name
        assert multiplied(loop) > 0 or name == "vector"
        # each piece of weights, and of data without a border, comes by copies of 16 bytes
        copies = re.findall(r" (LDGSTS\.E\S*) ", texts[name])
        assert ("LDG." in texts[name]) == (name == "vector") and (_WIDE in copies) == (name != "vector"), name
    assert set(re.findall(r" (LDGSTS\.E\S*) ", texts["conv1x1"])) == {_WIDE}
