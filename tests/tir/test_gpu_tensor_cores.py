# SPDX-License-Identifier: Apache-2.0
"""Contractions by matrix instructions of warps: within the bound of docs/accuracy.md, proven, where they apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.ir.transform import PassContext
from aotc.relay.module import IRModule
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.micro_kernels import MMA_BFLOAT16, MMA_FLOAT16, MMA_INT8, MMA_TF32, BlockShape
from aotc.tir.stmt import Execute, is_warp_wide, walk_stmts
from aotc.tir.target import CUDA, Gpu, Target
from tests.share import share_of_each
from tests.tir.contractions import Case, conv, matmul, with_block_shapes

#: One warp, two by rows, two by columns, two groups of a warp: small ones, for the interpreter.
SHAPES = {
    "one": BlockShape(8, 4, 4, 8),
    "rows": BlockShape(16, 4, 4, 8, depth=32),
    "columns": BlockShape(8, 8, 4, 8, depth=32),
    "groups": BlockShape(8, 4, 4, 8, 2, 32),
}


def cases(dtype: str) -> dict[str, tuple[Case, str]]:
    wide = {"dtype": dtype, "acc": "float32"}
    return {
        "padded": (conv(batch=2, ic=3, oc=17, size=(4, 5), kernel=(3, 2), padding=1, **wide), "columns"),
        "channels last": (conv(ic=5, oc=33, size=(4, 5), kernel=(1, 1), block=32, last=True, **wide), "rows"),
        "groups": (conv(ic=4, oc=32, size=(4, 5), kernel=(1, 2), groups=2, **wide), "one"),
        "product": (matmul(m=70, k=40, n=20, **wide), "rows"),
        "batched": (matmul(m=18, k=50, n=20, batch=2, transposed=True, **wide), "groups"),
    }


#: With TF32.
TF32 = replace(CUDA, micro_kernels=(*CUDA.micro_kernels, MMA_TF32))
#: With float16 on threads only.
NO_FLOAT16 = replace(CUDA, micro_kernels=tuple(k for k in CUDA.micro_kernels if k is not MMA_FLOAT16))


@pytest.mark.parametrize(("name", "dtype"), share_of_each(cases("float16"), ["float16", "bfloat16", "float32"], 1))
def test_products_of_warps(name: str, dtype: str) -> None:
    case, shape = cases(dtype)[name]
    kernel = case.kernel(target := with_block_shapes(TF32, SHAPES[shape], level="warp"))
    verify(kernel)
    assert launch_of(kernel) is not None
    assert multiplies(case, target)
    a, b = case.values(seed=1)
    forwards, backwards = (run_kernel(kernel, [a, b], backwards=turned)[0] for turned in (False, True))
    assert forwards.tobytes() == backwards.tobytes()
    expected = case.expected(a, b)
    steps = np.prod([extent for _, extent in case.out.reduce_axes])
    sizes = case.expected(np.abs(a), np.abs(b))
    bound = 2.0**-10 + (steps + 2) * 2.0**-22 if dtype == "float32" else steps * 2.0**-23
    assert (np.abs(forwards.reshape(expected.shape) - expected) <= bound * sizes).all()


#: Products of bytes, and the tile for them: with steps that are no whole words, a border, groups.
SUMS = {
    "product": (matmul(m=70, k=40, n=20, dtype="uint8", acc="int32", transposed=True), "rows"),
    "steps": (matmul(m=18, k=51, n=34, batch=2, dtype="int8", acc="int32"), "groups"),
    "padded": (conv(batch=2, ic=6, oc=17, size=(4, 5), kernel=(3, 2), padding=1, dtype="int8", acc="int32"), "columns"),
}


@pytest.mark.parametrize("name", SUMS)
def test_products_of_bytes(name: str) -> None:
    case, shape = SUMS[name]
    kernel = case.kernel(target := with_block_shapes(CUDA, SHAPES[shape], level="warp"))
    verify(kernel)
    assert multiplies(case, target)
    a, b = case.values(seed=1)
    for turned in (False, True):
        made = run_kernel(kernel, [a, b], backwards=turned)[0]
        np.testing.assert_array_equal(made.reshape(case.expected(a, b).shape), case.expected(a, b))


def multiplies(case: Case, target: Target) -> bool:
    body = case.kernel(target).body
    found = (s.instruction for s in walk_stmts(body) if isinstance(s, Execute) and is_warp_wide(s))
    return any(name.startswith("mma") for name in found)


def test_what_warps_multiply() -> None:
    product = matmul(m=64, k=64, n=64, dtype="float16", acc="float32")
    assert multiplies(product, CUDA)
    old = replace(CUDA, gpu=Gpu(architectures=(75, 80)))
    assert not multiplies(product, old)
    sums = matmul(m=256, k=512, n=256, dtype="int8", acc="int32")
    assert multiplies(sums, CUDA) and not multiplies(sums, old)
    assert not multiplies(product, NO_FLOAT16)
    assert not multiplies(matmul(m=64, k=64, n=64, dtype="float16", acc="float16"), CUDA)
    assert not multiplies(matmul(m=64, k=64, n=64), CUDA)
    assert not multiplies(matmul(m=1, k=64, n=64, dtype="float16", acc="float32"), CUDA)


@pytest.mark.parametrize(("accuracy", "expected"), [("fast", True), ("strict", False), ("reproducible", False)])
def test_only_fast_models_take_them(accuracy: str, expected: bool) -> None:
    made = Compilation(IRModule(), CUDA, "net", PassContext(config={"compile.accuracy": accuracy})).target
    assert (MMA_FLOAT16 in made.micro_kernels) == (MMA_BFLOAT16 in made.micro_kernels) == expected
    assert MMA_INT8 in made.micro_kernels and MMA_TF32 not in made.micro_kernels


def test_tf32_goes_with_fast_models_only() -> None:
    context = PassContext(config={"compile.tf32": True})
    assert Compilation(IRModule(), CUDA, "net", context).target == TF32
    context = PassContext(config={"compile.tf32": True, "compile.accuracy": "strict"})
    with pytest.raises(AotcError, match="rounds float32 to a fraction of 10 bits, which accuracy 'strict' does not"):
        Compilation(IRModule(), CUDA, "net", context)
