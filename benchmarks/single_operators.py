# SPDX-License-Identifier: Apache-2.0
"""Benchmark single convolutions and matrix products through the whole compiler: ms, GFLOP/s,
percent of the peak.

Each shape is a model of one operator with constant weights, bias and ReLU (int8 shapes:
requantization to 8 bits); it runs on one thread, and the minimum of many runs is reported. Products
with padding count as work, so that a convolution that omits them may exceed the peak. The peak is
measured in the same process: independent multiply-adds on registers.

    python benchmarks/single_operators.py                      # all shapes
    python benchmarks/single_operators.py 3x3 --target x86-64-v3
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np
from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc import relay
from aotc.driver.compile import compile
from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.driver.toolchain import find_toolchain, resolve_target, run_compiler
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, bias_add, dense
from aotc.relay.op.elementwise_unary import relu
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.int8_dot_products import dot_instruction_name
from aotc.tir.target import Target

PEAK_PROGRAM_TEMPLATE = """
#include <stdint.h>
#define AOTC_HAS(name) __has_builtin(name)
typedef float v __attribute__((vector_size({bytes})));
typedef int32_t aotc_int32x{lanes} __attribute__((vector_size({bytes})));
typedef int8_t aotc_int8x{wide} __attribute__((vector_size({bytes})));
{functions}
void peak({number} *p, long n) {{
  {kind} x = *({kind} *)p, y = *({kind} *)(p + {lanes});
{begin}
  for (long i = 0; i < n; ++i) {{
{steps}
  }}
  *({kind} *)p = {sum};
}}
"""
"""C program that measures the peak: independent chains of multiply-adds, each of which depends only
on itself.
"""
SECONDS_PER_SHAPE = 0.4
"""Time in seconds for which each shape is run repeatedly."""


@dataclass(frozen=True)
class OperatorShape:
    """Benchmark case: input shapes, a function that builds the graph from the inputs, and the
    number of multiply-adds.
    """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    graph: Callable[..., Expr]
    macs: int
    dtype: str = "float32"


def _seeded_weights(*shape: int, dtype: str = "float32") -> Constant:
    rng = np.random.default_rng(0)
    if dtype == "float32":
        return Constant(rng.standard_normal(shape).astype(np.float32) * 0.1)
    return Constant(rng.integers(-127, 128, shape).astype(dtype))


def float32_conv_bias_relu_case(
    name: str, ic: int, oc: int, size: int, kernel: int, stride: int = 1, groups: int = 1, batch: int = 1
) -> OperatorShape:
    """Return the case of a square float32 convolution with "same" padding, bias and ReLU."""
    pad, out = kernel // 2, -(-size // stride)

    def build_conv_bias_relu(x: Expr) -> Expr:
        w = _seeded_weights(oc, ic // groups, kernel, kernel)
        y = conv2d(x, w, strides=(stride, stride), padding=(pad, pad), groups=groups)
        return relu(bias_add(y, _seeded_weights(oc)))

    macs = batch * oc * out * out * (ic // groups) * kernel * kernel
    return OperatorShape(f"{name} {ic}->{oc} {size}x{size}", ((batch, ic, size, size),), build_conv_bias_relu, macs)


def int8_conv_bias_requantize_case(
    name: str, ic: int, oc: int, size: int, kernel: int, stride: int = 1, pad_value: int = 0, dtype: str = "uint8"
) -> OperatorShape:
    """Return the case of an 8-bit convolution in NHWC layout with int8 weights, bias, and
    requantization to 8 bits.
    """
    pad, out, limits = kernel // 2, -(-size // stride), np.iinfo(dtype)

    def build_conv_bias_requantize(x: Expr) -> Expr:
        w = _seeded_weights(oc, ic, kernel, kernel, dtype="int8")
        how = {"strides": (stride, stride), "padding": (pad, pad), "data_layout": "NHWC", "pad_value": pad_value}
        y = conv2d(x, w, kernel_layout="OIHW", out_dtype="int32", **how)
        y = relay.add(y, _seeded_weights(oc, dtype="int32"))
        onto = {"axis": 3, "rounding": "FLOAT_EVEN", "out_dtype": dtype}
        scales = relay.const(np.abs(_seeded_weights(oc).data) * np.float32(0.01))
        return relay.qnn.op.requantize(y, scales, 0, 0.25, 128 if limits.min == 0 else 3, **onto)

    macs = oc * out * out * ic * kernel * kernel
    return OperatorShape(
        f"bytes {name} {ic}->{oc} {size}x{size}", ((1, size, size, ic),), build_conv_bias_requantize, macs, dtype
    )


def dense_bias_relu_case(m: int, k: int, n: int) -> OperatorShape:
    """Return the benchmark case of an m x k matrix times a constant k x n matrix."""

    def build_dense_bias_relu(x: Expr) -> Expr:
        return relu(bias_add(dense(x, _seeded_weights(n, k)), _seeded_weights(n), axis=-1))

    return OperatorShape(f"dense {m}x{k}x{n}", ((m, k),), build_dense_bias_relu, m * k * n)


def batch_matmul_case(batch: int, m: int, k: int, n: int, transposed: bool) -> OperatorShape:
    """Return the case of a batch of products of two run-time matrices, as in attention."""
    b = (batch, n, k) if transposed else (batch, k, n)
    name = f"batch_matmul{' transposed' if transposed else ''} {batch}x{m}x{k}x{n}"
    return OperatorShape(
        name, ((batch, m, k), b), lambda x, y: batch_matmul(x, y, transpose_b=transposed), batch * m * k * n
    )


BENCHMARK_SHAPES = (
    float32_conv_bias_relu_case("3x3", 64, 64, 56, 3),
    float32_conv_bias_relu_case("3x3", 128, 128, 28, 3),
    float32_conv_bias_relu_case("3x3", 256, 256, 14, 3),
    float32_conv_bias_relu_case("3x3", 512, 512, 7, 3),
    float32_conv_bias_relu_case("3x3 s2", 64, 128, 56, 3, 2),
    float32_conv_bias_relu_case("7x7 s2", 3, 64, 224, 7, 2),
    float32_conv_bias_relu_case("3x3 s2", 3, 32, 224, 3, 2),
    float32_conv_bias_relu_case("1x1", 64, 256, 56, 1),
    float32_conv_bias_relu_case("1x1", 512, 128, 28, 1),
    float32_conv_bias_relu_case("1x1", 1024, 256, 14, 1),
    float32_conv_bias_relu_case("1x1", 512, 2048, 7, 1),
    float32_conv_bias_relu_case("1x1 s2", 64, 128, 56, 1, 2),
    float32_conv_bias_relu_case("1x1", 96, 24, 56, 1),
    float32_conv_bias_relu_case("1x1", 32, 16, 112, 1),
    float32_conv_bias_relu_case("1x1", 960, 320, 7, 1),
    float32_conv_bias_relu_case("3x3", 64, 64, 52, 3),
    float32_conv_bias_relu_case("3x3 depthwise", 144, 144, 56, 3, groups=144),
    float32_conv_bias_relu_case("3x3 s2 depthwise", 96, 96, 112, 3, 2, groups=96),
    float32_conv_bias_relu_case("3x3 depthwise", 384, 384, 14, 3, groups=384),
    float32_conv_bias_relu_case("3x3 depthwise", 960, 960, 7, 3, groups=960),
    dense_bias_relu_case(128, 384, 384),
    dense_bias_relu_case(128, 384, 1536),
    dense_bias_relu_case(128, 1536, 384),
    dense_bias_relu_case(197, 768, 768),
    dense_bias_relu_case(1, 512, 1000),
    batch_matmul_case(12, 128, 64, 128, transposed=True),
    batch_matmul_case(12, 128, 128, 64, transposed=False),
    int8_conv_bias_requantize_case("1x1", 64, 64, 56, 1),
    int8_conv_bias_requantize_case("1x1", 128, 128, 28, 1),
    int8_conv_bias_requantize_case("1x1", 256, 256, 14, 1),
    int8_conv_bias_requantize_case("3x3", 64, 64, 56, 3),
    int8_conv_bias_requantize_case("3x3", 128, 128, 28, 3),
    int8_conv_bias_requantize_case("3x3", 256, 256, 14, 3),
    int8_conv_bias_requantize_case("3x3", 512, 512, 14, 3),
    int8_conv_bias_requantize_case("3x3 filled", 128, 128, 28, 3, pad_value=9),
    int8_conv_bias_requantize_case("3x3 s2", 64, 128, 56, 3, 2),
    int8_conv_bias_requantize_case("7x7 s2 filled", 3, 64, 224, 7, 2, pad_value=9),
    int8_conv_bias_requantize_case("1x1", 192, 64, 28, 1),
    int8_conv_bias_requantize_case("1x1", 32, 96, 112, 1),
    int8_conv_bias_requantize_case("1x1", 96, 32, 56, 1),
    int8_conv_bias_requantize_case("1x1", 144, 24, 56, 1),
)


def measure_peak_gigaops_per_second(target: Target, dtype: str) -> float:
    """Return the measured peak of one thread: GFLOP/s, or billions of 8-bit operations per second.

    The peak program has as many independent accumulators in registers as hide the latency of
    multiply-adds.
    """
    number = "float" if dtype == "float32" else "int32_t"
    lanes, chains = target.lanes("float32"), min(12, target.registers - 4)
    kind = number if lanes == 1 else f"aotc_int32x{lanes}" if dtype != "float32" else "v"
    names = [f"a{k}" for k in range(chains)]
    step, functions = "{0} * x + y", ""
    if dtype != "float32":
        instruction = INSTRUCTIONS[dot_instruction_name("uint8", "int8", lanes)]
        row = instruction.text_for_dialect("gnu-c", lanes, target.processor_features)
        assert row is not None
        step, functions = row.call.format("{0}", "y", f"(aotc_int8x{4 * lanes})x"), row.function
    text = PEAK_PROGRAM_TEMPLATE.format(
        number=number,
        bytes=4 * max(lanes, 2),
        lanes=lanes,
        wide=4 * lanes,
        functions=Template(functions).substitute(inline="static inline"),
        kind=kind,
        begin="\n".join(f"  {kind} {a} = x;" for a in names),
        steps="\n".join(f'    {a} = {step.format(a)}; __asm__("" : "+x"({a}));' for a in names),
        sum=" + ".join(names),
    )
    count = 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.c", Path(folder) / "peak.so"
        source.write_text(text, encoding="utf-8")
        tools = find_toolchain()
        run_compiler(
            [*tools.cc, *kernel_cflags(target), "-shared", "-fPIC", "-o", str(library), str(source)], Path(folder)
        )
        function = ctypes.CDLL(str(library)).peak
        memory = np.zeros(256, np.float32)
        start = -memory.ctypes.data % 64
        seconds = fastest_run_seconds(
            lambda: function(ctypes.c_void_p(memory.ctypes.data + start), ctypes.c_long(count))
        )
    return (2e-9 if dtype == "float32" else 8e-9) * count * chains * lanes / seconds


def fastest_run_seconds(run: Callable[[], object]) -> float:
    """Return the time of the fastest of many runs, in seconds."""
    fastest, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < SECONDS_PER_SHAPE:
        start = time.perf_counter()
        run()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def module_of_operator_shape(shape: OperatorShape) -> IRModule:
    """Return the network of a benchmark case as a module; its inputs are called x0, x1, ..."""
    arguments = [Var(f"x{k}", TensorType(s, shape.dtype)) for k, s in enumerate(shape.inputs)]
    return IRModule.from_expr(Function(tuple(arguments), shape.graph(*arguments)))


def compile_and_measure_table_row(shape: OperatorShape, target: Target, peak_gigaops_per_second: float) -> str:
    """Compile a benchmark case and measure it; return its Markdown row."""
    module = module_of_operator_shape(shape)
    start = time.perf_counter()
    session = compile(module, target=target, name="shape").session()
    seconds = time.perf_counter() - start
    rng = np.random.default_rng(1)
    inputs = {
        f"x{k}": rng.standard_normal(s).astype(np.float32)
        if shape.dtype == "float32"
        else rng.integers(0, 256, s).astype(shape.dtype)
        for k, s in enumerate(shape.inputs)
    }
    fastest = fastest_run_seconds(session.bind(inputs).run)
    speed = 2e-9 * shape.macs / fastest
    return (
        f"| {shape.name} | {fastest * 1e3:.3f} | {speed:.1f} | "
        f"{100 * speed / peak_gigaops_per_second:.0f} | {seconds:.1f} |"
    )


def benchmark_single_operators() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only shapes whose names contain one of these")
    parser.add_argument("--target", default="host")
    arguments = parser.parse_args()
    install_operators_and_passes()
    target = resolve_target(arguments.target)
    top = {dtype: measure_peak_gigaops_per_second(target, dtype) for dtype in ("float32", "uint8")}
    peak_text = f"peak {top['float32']:.1f} GFLOP/s, {top['uint8']:.1f} billions of operations on bytes"
    print(f"target {target.name}, one thread, {peak_text}")
    print("| shape | ms | GFLOP/s | % of peak | build s |")
    print("|---|---|---|---|---|")
    for shape in BENCHMARK_SHAPES:
        if not arguments.words or any(word in shape.name for word in arguments.words):
            print(compile_and_measure_table_row(shape, target, top[shape.dtype]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(benchmark_single_operators())
