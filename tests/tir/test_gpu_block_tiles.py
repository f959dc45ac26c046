# SPDX-License-Identifier: Apache-2.0
"""Contractions in tiles for GPU blocks: right, proven free of races, without superfluous barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.device.parameter_alignment import annotate_parameter_alignment
from aotc.tir.expr import maximum
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.micro_kernels import BlockShape
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.schedule import schedule
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA, Gpu
from tests.share import draw, share
from tests.tir.contractions import Case, conv, matmul, with_block_shapes

CASES = {
    "padded": conv(batch=2, ic=3, oc=17, size=(4, 5), kernel=(3, 2), padding=1),
    "strided": conv(ic=2, oc=16, size=(9, 9), kernel=(3, 3), stride=2, padding=2, dilation=2),
    "channels last": conv(ic=5, oc=33, size=(4, 5), kernel=(1, 1), block=32, last=True),
    "groups": conv(ic=4, oc=32, size=(4, 5), kernel=(1, 2), groups=2),
    "batched": matmul(m=18, k=5, n=20, batch=2, transposed=True),
    "pieces": conv(ic=32, oc=16, size=(4, 4), kernel=(3, 2), padding=1, block=16),
    "pieces in order": conv(ic=32, oc=16, size=(4, 4), kernel=(2, 1), padding=1, last=True),
    "int8": matmul(m=17, k=19, n=40, dtype="int8", acc="int32"),
    "words": matmul(m=17, k=40, n=20, batch=2, transposed=True, dtype="uint8", acc="int32"),
    "bytes": conv(batch=2, ic=5, oc=17, size=(4, 5), kernel=(3, 2), padding=1, dtype="uint8", acc="int32"),
    "bytes last": conv(ic=8, oc=20, size=(4, 5), kernel=(2, 3), padding=1, dtype="int8", acc="int32", last=True),
    "float16": matmul(m=16, k=3, n=16, dtype="float16", acc="float32"),
}


#: Without matrix instructions for bytes.
OLD = replace(CUDA, gpu=Gpu(architectures=(75, 80)))
#: Without tensor cores for floats.
THREADS = replace(CUDA, micro_kernels=tuple(k for k in CUDA.micro_kernels if k.level == "threads"))
#: Tiles that are small enough for the interpreter, and those that are there for few elements.
TILES = {"few": None, "one group": BlockShape(4, 4, 4, 4), "groups": BlockShape(2, 2, 4, 4, 4, 32)}


def check(case: Case, kernel: Kernel) -> None:
    """Both orders of threads give the same bits, and what is expected."""
    a, b = case.values(seed=1)
    forwards, backwards = (run_kernel(kernel, [a, b], backwards=turned)[0] for turned in (False, True))
    assert forwards.tobytes() == backwards.tobytes()
    expected = case.expected(a, b)
    np.testing.assert_allclose(forwards.reshape(expected.shape), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "tile"), share([*((name, tile) for name in CASES for tile in list(TILES)[1:]), ("float16", "few")], 12)
)
def test_tiles_of_blocks_are_right(name: str, tile: str) -> None:
    case, shape = CASES[name], TILES[tile]
    target = OLD if case.out.dtype == "int32" else THREADS
    kernel = case.kernel(CUDA if shape is None else with_block_shapes(target, shape))
    verify(kernel)
    assert launch_of(kernel) is not None
    assert ("dp4a" in to_text(kernel)) == (case.out.dtype == "int32")
    check(case, kernel)


@pytest.mark.parametrize(
    "case",
    [
        matmul(m=3, k=70, n=9),
        matmul(m=2, k=70, n=9, batch=2, transposed=True),
        matmul(m=18, k=270, n=2, dtype="int8", acc="int32"),
        matmul(m=1, k=512, n=24, transposed=True, dtype="uint8", acc="int32"),
        conv(batch=2, ic=16, oc=17, size=(2, 2), kernel=(3, 2), padding=1, block=16),
        conv(ic=32, oc=6, size=(3, 2), kernel=(2, 2), groups=2, last=True),
    ],
)
def test_thin_products_are_right(case: Case) -> None:
    kernel = case.kernel(CUDA)
    verify(kernel)
    assert launch_of(kernel) is not None
    assert [buffer.name for buffer in kernel.shared] == ["parts"]
    check(case, kernel)


def test_a_thread_of_a_large_image_has_all_channels() -> None:
    case = conv(ic=3, oc=3, size=(240, 241), kernel=(1, 1))
    kernel = case.kernel(CUDA)
    verify(kernel)
    launch = launch_of(kernel)
    assert launch is not None
    assert launch.grid == -(-240 * 241 // 256)


@pytest.mark.parametrize("transposed", [False, True])
def test_threads_load_the_neighbors_of_a_matrix(transposed: bool) -> None:
    text = to_text(matmul(m=1, k=512, n=1000, transposed=transposed).kernel(CUDA))
    assert ("t // 64" if transposed else "t % 8") in text.split("column")[1].split("\n")[0]


def test_what_follows_is_computed_where_a_tile_is_finished() -> None:
    case = matmul(m=20, k=2, n=19)
    rest = te.placeholder((20, 19), "float32", "rest")
    done = te.compute((20, 19), lambda i, j: maximum(case.out[i, j] + rest[i, j], 0.0), "done")
    kernel = schedule("k", [case.a, case.b, rest], [done], CUDA)
    verify(kernel)
    assert launch_of(kernel) is not None
    assert not kernel.workspace
    a, b = case.values(seed=2)
    c = np.random.default_rng(3).standard_normal(380).astype(np.float32)
    expected = np.maximum(case.expected(a, b).reshape(-1) + c, 0)
    np.testing.assert_allclose(run_kernel(kernel, [a, b, c])[0], expected, rtol=1e-5, atol=1e-5)


def test_large_tiles_where_they_fill_the_processors() -> None:
    kernel = matmul(m=4096, k=64, n=4096).kernel(CUDA)
    verify(kernel)
    launch = launch_of(kernel)
    assert launch is not None
    assert (launch.grid, launch.block) == (32 * 32, 256)
    assert lower_kernel_to_gpu_kernels(kernel, CUDA) == (kernel,)


@pytest.mark.parametrize(
    ("case", "blocks"),
    [
        (conv(ic=64, oc=64, size=(56, 56), padding=1, block=32), 98),
        (conv(ic=256, oc=256, size=(14, 14), padding=1, block=32), 13 * 8),
        (conv(ic=512, oc=512, size=(7, 7), padding=1, block=32), 16 * 6),
        (matmul(m=128, k=384, n=384), 8 * 12),
    ],
)
def test_few_tiles_are_smaller(case: Case, blocks: int) -> None:
    launch = launch_of(case.kernel(CUDA))
    assert launch is not None
    assert (launch.grid, launch.block) == (blocks, 256)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_barrier_is_needed(number: int) -> None:
    target = with_block_shapes(CUDA, BlockShape(2, 2, 4, 4, 4, 32, splits=3))
    parts = to_text(CASES["pieces"].kernel(target)).split("sync\n")
    assert len(parts) == 4
    text = "sync\n".join(parts[: number + 1]) + "sync\n".join(parts[number + 1 :])
    with pytest.raises(AotcError, match=r"iterations may access the same elements of (even|odd)"):
        verify(parse_kernel(text))


#: Contractions, and what computes them: three levels, and the division of a thin product.
COMPETING = {
    "threads": (matmul(m=18, k=40, n=20, transposed=True), {"multiply_add"}),
    "levels": (matmul(m=18, k=40, n=20, dtype="int8", acc="int32"), {"dp4a", "mma_int8"}),
    "thin": (matmul(m=2, k=70, n=40), {"split"}),
}


@pytest.mark.parametrize("name", COMPETING)
def test_candidates_are_priced_chosen_by_name_and_right(name: str) -> None:
    """The cheapest is the default; two others, drawn at random, compute the same."""
    case, kinds = COMPETING[name]
    sites: list[TilingSite] = []
    with use_tiling_chooser(sites.append):
        usual = to_text(case.kernel(CUDA))
    (site,) = sites
    costs = {candidate.name: candidate.cost for candidate in site.candidates}
    assert len(costs) == len(site.candidates) and min(costs.values()) > 0
    assert {candidate.split()[-1 if "block" in candidate else 0] for candidate in costs} == kinds
    cheapest = min(costs, key=costs.__getitem__)
    with use_tiling_chooser(lambda _: cheapest):
        assert to_text(case.kernel(CUDA)) == usual
    for chosen in draw(sorted(costs.keys() - {cheapest}), 2):
        with use_tiling_chooser(lambda _, chosen=chosen: chosen):
            kernel = case.kernel(CUDA)
        assert to_text(kernel) != usual
        verify(kernel)
        check(case, kernel)


@pytest.mark.parametrize(
    "case",
    [
        conv(ic=16, oc=16, size=(4, 4), groups=16),
        matmul(m=1, k=63, n=100),  # a thread is done with it as soon
    ],
)
def test_what_does_not_fit_has_a_nest_of_the_host(case: Case) -> None:
    kernel = case.kernel(CUDA)
    verify(kernel)
    assert launch_of(kernel) is None


@pytest.mark.parametrize(("first", "copies"), [(0, 0), (64, 0), (66, 1)])
def test_operands_that_begin_where_no_piece_does_are_copied(first: int, copies: int) -> None:
    case = matmul(m=32, k=32, n=32)
    kernel = case.kernel(CUDA)
    whole = Storage(name="whole", dtype=DType("float32"), shape=(1100,), kind="input")
    data = Storage(name="data", dtype=DType("float32"), shape=(32, 32), kind="input")
    y = Storage(name="y", dtype=DType("float32"), shape=(32, 32), kind="output")
    step = Step(kernel, (View(data), View(whole, first), View(y)))
    program = annotate_parameter_alignment(Program(name="net", inputs=(data, whole), outputs=(y,), body=(step,)))
    assert [s.kernel.name for s in program.steps] == ["copy"] * copies + ["contraction"]
    assert program.steps[-1].kernel.inputs[1].align == 16
    assert [s.args[0] for s in program.steps[:copies]] == [View(whole, first)] * copies
    assert program.steps[-1].args[1] == (program.steps[0].args[1] if copies else View(whole, first))


def test_what_reads_single_elements_may_begin_anywhere() -> None:
    kernel = conv(ic=3, oc=16, size=(5, 5), padding=1).kernel(CUDA)
    x, w, y = (
        Storage(name=b.name, dtype=b.dtype, shape=(b.size + 1,), kind="input")
        for b in (*kernel.inputs, *kernel.outputs)
    )
    step = Step(kernel, (View(x, 1), View(w), View(y)))
    (made,) = annotate_parameter_alignment(Program(name="net", inputs=(x, w), outputs=(y,), body=(step,))).steps
    assert [b.align for b in made.kernel.params] == [4, 16, 16]
