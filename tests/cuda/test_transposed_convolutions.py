# SPDX-License-Identifier: Apache-2.0
"""Transposed and padded convolutions whose weights are inputs: one tiled launch; infinities only where defined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin
from onnx import parser

from aotc.driver.compile import CompileOptions
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir import te
from aotc.tir.gpu_launch import launch_of
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Kernel
from tests.codegen.batch import finished
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA, run_batch

Array = np.ndarray[Any, Any]

#: Shapes of data, of weights and of the result, and attributes of ConvTranspose.
MODELS = {
    "1-D": ((1, 16, 20), (16, 12, 4), (1, 12, 41), "strides = [2], pads = [1, 1], output_padding = [1]"),
    "2-D": ((1, 64, 16, 16), (64, 32, 4, 4), (1, 32, 32, 32), "strides = [2, 2], pads = [1, 1, 1, 1]"),
    "stride 1": ((1, 24, 9, 9), (24, 32, 3, 3), (1, 32, 9, 9), "pads = [1, 1, 1, 1]"),
    "groups": ((1, 32, 8, 8), (32, 16, 4, 4), (1, 32, 16, 16), "strides = [2, 2], pads = [1, 1, 1, 1], group = 2"),
    "uneven": ((1, 16, 8, 8), (16, 32, 5, 5), (1, 32, 26, 26), "strides = [3, 3]"),
    "3-D": (
        *((1, 16, 3, 4, 4), (16, 12, 3, 3, 3), (1, 12, 6, 8, 8)),
        "strides = [2, 2, 2], pads = [1, 1, 1, 1, 1, 1], output_padding = [1, 1, 1]",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_launch(name: str) -> None:
    """With what comes behind it."""
    x, w, y, attributes = (str([*part]) if isinstance(part, tuple) else part for part in MODELS[name])
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
net (float{x} x, float{w} w, float{y} r) => (float{y} y) {{
  c = ConvTranspose<{attributes}>(x, w)
  s = Add(c, r)
  y = Relu(s)
}}
"""
    options = CompileOptions(target="cuda")
    (program,) = options.start_compilation(options.import_as_graph_module(parser.parse_model(text))).scheduled_programs
    assert len(program.steps) == 1


#: Operators with shapes of data and weights, attributes, the type of both; a result of int32 is of bytes.
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "strided": ("nn.conv2d_transpose", (1, 16, 6, 5), (16, 8, 4, 4), {"strides": (2, 2), "padding": (1, 1)}, "float32"),
    "uneven": ("nn.conv2d_transpose", (1, 16, 5, 4), (16, 9, 3, 3), {"strides": (2, 2), "padding": (1, 0)}, "float32"),
    "odd": ("nn.conv2d_transpose", (1, 16, 6, 5), (16, 8, 3, 3), {"strides": (2, 2), "padding": (1, 1)}, "float32"),
    "thirds": ("nn.conv2d_transpose", (1, 16, 4, 4), (16, 8, 3, 4), {"strides": (4, 3)}, "float16"),
    "wide": (
        *("nn.conv2d_transpose", (1, 4, 5, 5), (4, 16, 3, 2)),
        *({"strides": (3, 1), "padding": (1, 0), "output_padding": (2, 0), "dilation": (2, 2)}, "float32"),
    ),
    "long": ("nn.conv1d_transpose", (2, 6, 9), (6, 3, 4), {"strides": (2,), "output_padding": (1,)}, "float32"),
    "deep": (
        *("nn.conv3d_transpose", (1, 4, 3, 3, 4), (4, 8, 3, 3, 2)),
        *({"strides": (2, 2, 1), "padding": (1, 1, 0), "output_padding": (1, 0, 0), "groups": 2}, "float32"),
    ),
    "last": (
        *("nn.conv2d_transpose", (1, 5, 4, 16), (2, 2, 8, 16)),
        *({"strides": (2, 2), "data_layout": "NHWC", "kernel_layout": "HWOI"}, "float32"),
    ),
    "half": ("nn.conv2d_transpose", (1, 16, 6, 5), (16, 8, 4, 4), {"strides": (2, 2), "padding": (1, 1)}, "float16"),
    "bytes": ("nn.conv2d_transpose", (1, 16, 4, 5), (16, 16, 4, 4), {"strides": (2, 2), "out_dtype": "int32"}, "int8"),
    "padded": ("nn.conv2d", (1, 16, 6, 7), (20, 16, 3, 3), {"padding": (1, 1)}, "float32"),
    "narrow": ("nn.conv2d", (1, 16, 6, 7), (20, 16, 3, 3), {"padding": (1, 1)}, "float16"),
    "thin": ("nn.conv2d", (1, 32, 12, 12), (3, 32, 3, 3), {"padding": (1, 1)}, "float32"),
    "split": ("nn.conv2d", (1, 512, 4, 4), (16, 512, 3, 3), {"padding": (1, 1)}, "float32"),
}


def case(name: str) -> tuple[Kernel, list[Array], Array]:
    """A kernel, values of which some are infinite and NaN, and numpy's result."""
    operator, *shapes, attributes, dtype = CASES[name]
    op, rng = OPERATORS_BY_NAME[operator], np.random.default_rng(3)
    values = [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]
    if dtype != "int8":
        values[0].flat[[0, -2]] = np.nan, np.inf
        values[1].flat[[0, 7]] = np.inf, -np.inf
    inputs = [te.placeholder(v.shape, str(v.dtype), n) for v, n in zip(values, "xw", strict=True)]
    assert op.compute is not None
    attrs = op.attrs(**attributes)
    kernel = schedule(name, inputs, [op.compute(attrs, *inputs)], CUDA)
    return kernel, values, op.reference(attrs, *values)


def test_bits(tmp_path: Path) -> None:
    """Sums of whole numbers have numpy's bits, also where infinities are multiplied by padding."""
    cases = {name: case(name) for name in CASES}
    jobs = []
    tiled = {name for name, (kernel, *_) in cases.items() if launch_of(kernel) is not None}
    assert tiled >= {"strided", "last", "half", "bytes", "padded", "narrow", "thin", "split", "odd", "thirds"}
    for name, (kernel, values, wanted) in cases.items():
        verify(finished(kernel, CUDA))
        jobs.append((kernel, [v.reshape(-1) for v in values]))
        assert name == "bytes" or 0 < np.isfinite(wanted).sum() < wanted.size, name
    for results in run_batch(jobs, tmp_path):
        for (found,), (name, (_, _, wanted)) in zip(results, cases.items(), strict=True):
            np.testing.assert_array_equal(found, wanted.reshape(-1), name)


#: Shapes of data and of weights, and a stride, whose tiles end within rows of the data.
RAGGED = [
    ((1, 32, 14, 14), (32, 1, 4, 4), 2),
    ((2, 16, 7, 7), (16, 4, 3, 3), 1),
    ((2, 32, 6, 6), (32, 3, 6, 6), 4),
    ((2, 64, 32, 33), (64, 32, 4, 4), 2),
    ((2, 32, 17, 13), (32, 16, 3, 3), 2),
    ((2, 32, 9, 9), (32, 64, 3, 3), 3),
]


@pytest.mark.parametrize(("data", "weights", "stride"), RAGGED)
def test_tiles_that_end_within_rows_are_proven(data: tuple[int, ...], weights: tuple[int, ...], stride: int) -> None:
    op = OPERATORS_BY_NAME["nn.conv2d_transpose"]
    inputs = [te.placeholder(shape, "float32", name) for shape, name in ((data, "x"), (weights, "w"))]
    assert op.compute is not None
    made = op.compute(op.attrs(strides=(stride, stride), padding=(1, 1)), *inputs)
    kernel = schedule("tiles", inputs, [made], CUDA)
    assert launch_of(kernel) is not None
    verify(finished(kernel, CUDA))


def test_sums_are_in_registers() -> None:
    kernels = [finished(case(name)[0], CUDA) for name in ("strided", "uneven", "padded", "narrow", "thin")]
    assert CUDA.gpu is not None
    printed = print_cuda_kernels(kernels, "net", CUDA.gpu)
    try:
        code = find_nvrtc_compiler().images(render_cuda_source_file(printed, name="net", banner=""), (80,))["sm_80"]
    except AotcError as error:
        if error.diagnostics[0].code != "no-nvrtc":
            raise
        skip_or_fail_without("NVRTC")
    assert all(
        found.local_bytes == 0 and found.registers <= 128 for found in read_kernel_resources_from_cubin(code).values()
    )
