# SPDX-License-Identifier: Apache-2.0
"""Tiles of contractions whose extents are known at run time only.

Kernels run in the interpreter on arrays of exactly the elements of a call, with scratch memory that holds NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from aotc.ir import SymDim
from aotc.tir import as_expr, te
from aotc.tir.expr import Const, Expr, Var, maximum, substitute, variable_of_symbol
from aotc.tir.interpreter import compile_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.schedule.contraction.tile_segments import MAX_RUN_TIME_TILE_POSITIONS, tiles_of_run_time_extent
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Kernel, Number
from aotc.tir.target import TARGETS
from aotc.tir.threads.parallel_kernels import parallelize_kernel
from aotc.tir.winograd_matrices import winograd_matrices_at_g_bt
from tests.codegen.batch import finished
from tests.tir.thread_teams import EAGER, TEAMS

Array = np.ndarray[Any, Any]
Definition = tuple[Sequence[te.Placeholder], te.Tensor]
LARGEST = {"n0": 3, "n1": 19}
N0, N1 = (SymDim(name, most) for name, most in LARGEST.items())
EXTENT = Var("n")


def value_at(expr: Expr, extent: int) -> Any:
    """The value of an expression of the extent."""
    result = simplify(substitute(expr, {EXTENT: as_expr(extent)}), {})
    assert isinstance(result, Const)
    return result.value


@pytest.mark.parametrize("size", range(1, MAX_RUN_TIME_TILE_POSITIONS + 3))
def test_tiles_divide_every_extent_without_small_tiles(size: int) -> None:
    tiles = tiles_of_run_time_extent(EXTENT, size)
    assert len({item.size for item in tiles}) == len(tiles)  # each size has code once
    for extent in range(5 * size + 2):
        found: list[tuple[int, int]] = []
        for item in tiles:
            if item.condition is None or value_at(item.condition, extent):
                begin = value_at(item.begin, extent)
                count = 1 if item.count is None else value_at(item.count, extent)
                end = begin + count * item.size if item.end is None else value_at(item.end, extent)
                found += [(position, item.size) for position in range(begin, end, item.size)]
        covered = [position for begin, length in sorted(found) for position in range(begin, begin + length)]
        assert covered == list(range(extent))
        assert extent < size or 2 * min(length for _, length in found) >= size


def dense() -> Definition:
    """relu(x @ w)."""
    x, w = te.placeholder((N1, 5), "float32", "x"), te.placeholder((5, 20), "float32", "w")
    y = te.contraction((N1, 20), (5,), x, lambda i, j, k: (i, k), w, lambda i, j, k: (k, j), dtype="float32", lane=1)
    return (x, w), te.compute((N1, 20), lambda i, j: maximum(y[i, j], 0.0))


def dense_of_sequences() -> Definition:
    """x @ w + z, with a batch of sequences, whose axes are one axis of rows."""
    x, w = te.placeholder((N0, N1, 8), "float32", "x"), te.placeholder((8, 16), "float32", "w")
    z = te.placeholder((N0, N1, 16), "float32", "z")
    y = te.contraction(
        (N0, N1, 16), (8,), x, lambda b, i, j, k: (b, i, k), w, lambda b, i, j, k: (k, j), dtype="float32", lane=2
    )
    return (x, w, z), te.compute((N0, N1, 16), lambda b, i, j: y[b, i, j] + z[b, i, j])


def batched_product(columns: int) -> Definition:
    """x @ w, where the batch, the rows and the reduction are known at run time only."""
    x, w = te.placeholder((N0, N1, N1), "float32", "x"), te.placeholder((N0, N1, columns), "float32", "w")
    y = te.contraction(
        (N0, N1, columns),
        (N1,),
        x,
        lambda b, i, j, k: (b, i, k),
        w,
        lambda b, i, j, k: (b, k, j),
        dtype="float32",
        lane=2,
    )
    return (x, w), y


def convolution(stride: int, channels: int, depthwise: bool, images: int = 1) -> Definition:
    """3x3 filters over images with a border of zeros, channels last; relu(x * w)."""
    x = te.placeholder((images, N0 + 1, N1 + 1, channels), "float32", "x")
    height, width = (n // stride + 1 for n in (N0, N1))
    shape = (3, 3, channels) if depthwise else (3, 3, channels, 16)
    w = te.placeholder(shape, "float32", "w", finite=True)
    rows = 1 if depthwise else channels
    y = te.contraction(
        (images, height, width, channels if depthwise else 16),
        (3, 3, rows),
        x,
        lambda n, i, j, o, p, q, k: (n, i * stride + p - 1, j * stride + q - 1, o if depthwise else k),
        w,
        lambda n, i, j, o, p, q, k: (p, q, o) if depthwise else (p, q, k, o),
        dtype="float32",
        lane=3,
    )
    return (x, w), te.compute(y.shape, lambda n, i, j, o: maximum(y[n, i, j, o], 0.0))


def convolved(x: Array, w: Array, stride: int) -> Array:
    """What `convolution` defines."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    return np.maximum(np.einsum("nijcpq,pqco->nijo" if w.ndim == 4 else "nijcpq,pqc->nijc", windows, w), 0)


def winograd() -> Definition:
    """relu of the convolution of an image by 3x3 filters, of which `w` is the transform."""
    x, w = te.placeholder((1, N0 + 1, N1 + 1, 6), "float32", "x"), te.placeholder((16, 1, 6, 8), "float32", "w")
    y = te.winograd((1, N0 + 1, N1 + 1, 5), x, w, tile=2, pads=(1, 1), channels_last=True)
    return (x, w), te.compute(y.shape, lambda n, i, j, o: maximum(y[n, i, j, o], 0.0))


def filtered_in_tiles(x: Array, w: Array) -> Array:
    """What `winograd` defines, for any w: tiles of 2 rows and columns from patches of 4."""
    at, _, bt = winograd_matrices_at_g_bt(2)
    height, width = x.shape[1:3]
    padded = np.pad(x[0], ((1, 3), (1, 3), (0, 0)))
    result = np.zeros((height + 1, width + 1, 5))
    for y, z in product(range(0, height, 2), range(0, width, 2)):
        patch = np.einsum("ai,ijc,bj->abc", bt, padded[y : y + 4, z : z + 4], bt)
        products = np.einsum("abc,abco->abo", patch, w.reshape(4, 4, 6, 8)[..., :5])
        result[y : y + 2, z : z + 2] = np.einsum("ia,abo,jb->ijo", at, products, at)
    return np.maximum(result[None, :height, :width], 0).astype(np.float32)


#: Definitions, and their reference.
CASES: dict[str, tuple[Callable[[], Definition], Callable[..., Array]]] = {
    "dense": (dense, lambda x, w: np.maximum(x @ w, 0)),
    "dense_of_sequences": (dense_of_sequences, lambda x, w, z: x @ w + z),
    "batched_product": (partial(batched_product, 8), lambda x, w: x @ w),
    "batched_product_of_few_columns": (partial(batched_product, 5), lambda x, w: x @ w),
    "convolution": (partial(convolution, 1, 4, False), partial(convolved, stride=1)),
    "convolution_of_stride_2": (partial(convolution, 2, 3, False), partial(convolved, stride=2)),
    "convolution_of_images": (partial(convolution, 1, 2, False, 2), partial(convolved, stride=1)),
    "winograd": (winograd, filtered_in_tiles),
    "depthwise_convolution": (partial(convolution, 1, 16, True), partial(convolved, stride=1)),
}


def kernel_of(name: str, target: str, typical: dict[str, int] | None = None) -> tuple[Kernel, Sequence[te.Placeholder]]:
    inputs, output = CASES[name][0]()
    numbers = [Number(variable_of_symbol(n), 0, most, (typical or {}).get(n)) for n, most in LARGEST.items()]
    return finished(schedule(name, inputs, (output,), TARGETS[target], None, numbers), TARGETS[target]), inputs


@pytest.mark.parametrize(("name", "target"), [("dense", "aarch64"), *((name, "x86-64-v3") for name in CASES)])
def test_tiled_kernels_agree_with_numpy_at_every_size(name: str, target: str) -> None:
    kernel, inputs = kernel_of(name, target)
    assert "acc0_1" in to_text(kernel)  # a tile of several rows
    verify(kernel)
    compare_with_numpy(name, kernel, inputs)


@pytest.mark.parametrize(
    "name", ["dense_of_sequences", "batched_product", "convolution_of_stride_2", "depthwise_convolution"]
)
def test_tilings_for_small_typical_sizes_agree_with_numpy_at_every_size(name: str) -> None:
    compare_with_numpy(name, *kernel_of(name, "x86-64-v3", {"n0": 1, "n1": 2}))


@pytest.mark.parametrize("name", ["dense_of_sequences", "convolution", "convolution_of_stride_2", "winograd"])
def test_threads_divide_loops_of_run_time_extents(name: str) -> None:
    kernel, inputs = kernel_of(name, "x86-64-v3")
    team = parallelize_kernel(kernel, thread_costs=EAGER)
    assert team.team and re.search(r"lo\w*: int64 = truncdiv\(part \* \(.*n[01]", to_text(team))
    compare_teams_with_one_thread(kernel, team, inputs)


@pytest.mark.parametrize(
    ("name", "typical"), [("batched_product", {"n0": 1, "n1": 2}), ("convolution", {"n0": 0, "n1": 5})]
)
def test_threads_divide_loops_that_make_one_iteration_at_typical_sizes(name: str, typical: dict[str, int]) -> None:
    kernel, inputs = kernel_of(name, "c", typical)
    team = parallelize_kernel(kernel, thread_costs=EAGER)
    assert team.team
    compare_teams_with_one_thread(kernel, team, inputs)


def compare_teams_with_one_thread(kernel: Kernel, team: Kernel, inputs: Sequence[te.Placeholder]) -> None:
    """Run a kernel for one thread and one for teams of them on the same random inputs; compare all bits."""
    runs, rng = (compile_kernel(kernel), compile_kernel(team)), np.random.default_rng(0)
    for values in ({"n0": 0, "n1": 4}, {"n0": 3, "n1": 1}, {"n0": 2, "n1": 19}, {"n0": 3, "n1": 16}):
        numbers = [values[number.var.name] for number in kernel.numbers]
        shapes = [[d.bind(values) if isinstance(d, SymDim) else d for d in tensor.shape] for tensor in inputs]
        arrays = [np.full(tensor.capacity, np.nan, np.float32) for tensor in inputs]
        for array, shape in zip(arrays, shapes, strict=True):
            array[: np.prod(shape)] = rng.standard_normal(int(np.prod(shape)))
        whole, *divided = (
            run(arrays, numbers=numbers, participants=participants, backwards=backwards)[0].tobytes()
            for run, participants, backwards in ((runs[0], 1, False), *((runs[1], *team) for team in TEAMS))
        )
        assert divided == [whole] * len(TEAMS)


def compare_with_numpy(name: str, kernel: Kernel, inputs: Sequence[te.Placeholder]) -> None:
    """Run a kernel at several sizes and compare its results with the reference."""
    run, rng = compile_kernel(kernel), np.random.default_rng(0)
    for sizes in ((0, 4), (2, 0), (3, 1), (1, 19), *((1 + n % 3, n) for n in range(2, 19))):
        values = {"n0": sizes[0], "n1": sizes[1]}
        shapes = [[d.bind(values) if isinstance(d, SymDim) else d for d in tensor.shape] for tensor in inputs]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        expected = CASES[name][1](*arrays)
        result = np.full(expected.size, np.nan, np.float32)
        scratch = [np.full(b.size, np.nan, b.dtype.numpy) for b in kernel.workspace]
        numbers = [values[number.var.name] for number in kernel.numbers]
        run.run_kernel_in_place([*(a.reshape(-1) for a in arrays), result, *scratch], numbers)
        np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["aarch64", "x86-64-v4"])
def test_vectors_of_weights_without_a_copy_read_no_more_columns_than_there_are(target: str) -> None:
    inputs, output = batched_product(3)
    numbers = [Number(variable_of_symbol(n), 0, most) for n, most in LARGEST.items()]
    verify(finished(schedule("product", inputs, (output,), TARGETS[target], None, numbers), TARGETS[target]))


def test_convolutions_of_no_channels_are_zero() -> None:
    inputs, output = convolution(1, 0, False)
    numbers = [Number(variable_of_symbol(n), 0, most) for n, most in LARGEST.items()]
    kernel = schedule("empty", inputs, (output,), TARGETS["x86-64-v3"], None, numbers)
    empty, result = np.zeros(0, np.float32), np.full(2 * 3 * 16, np.nan, np.float32)
    sizes = {"n0": 1, "n1": 2}
    compile_kernel(kernel).run_kernel_in_place([empty, empty, result], [sizes[n.var.name] for n in kernel.numbers])
    assert not result.any()
