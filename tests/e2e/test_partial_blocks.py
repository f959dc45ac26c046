# SPDX-License-Identifier: Apache-2.0
"""Operators that work in blocks compile for sizes that are not multiples of blocks, and agree with ONNX Runtime.

Several nodes with sizes drawn from a seed are one model, since the C compiler takes most of the time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from aotc.driver.compile import CompileOptions
from aotc.driver.pass_observers import ProgramVerifier
from tests.frontend.evaluation import Array, model_of, ort_run
from tests.share import share

F = np.float32
STRICT = ("-O0", "-Wall", "-Wextra", "-Werror")
MICROSOFT = "com.microsoft"


class Part(NamedTuple):
    """A node that makes "y", and the values of what it reads."""

    node: NodeProto
    data: Array | None
    constants: dict[str, Array]


def drawn_bytes(rng: Any, *shape: int) -> Array:
    return rng.integers(0, 256, shape).astype(np.uint8)


def nbits(r: random.Random, rng: Any) -> Part:
    block = r.choice([16, 32, 64])
    rows, depth, units = r.choice([1, 2, 5]), r.randint(1, 3 * block), r.randint(1, 37)
    blocks = -(-depth // block)
    constants = {"q": drawn_bytes(rng, units, blocks, block // 2), "s": rng.random(units * blocks).astype(F) * F(0.1)}
    names = ["x", "q", "s"]
    if r.random() < 0.5:
        constants["z"] = drawn_bytes(rng, units * -(-blocks // 2))
        names.append("z")
    sizes = {"K": depth, "N": units, "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", names, ["y"], domain=MICROSOFT, **sizes)
    return Part(node, rng.standard_normal((rows, depth)).astype(F), constants)


def smallest_nbits(_: random.Random, rng: Any) -> Part:
    """One whole block and a partial one."""
    constants = {"q": drawn_bytes(rng, 1, 2, 8), "s": rng.random(2).astype(F)}
    node = helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain=MICROSOFT, K=17, N=1, bits=4, block_size=16)
    return Part(node, rng.standard_normal((1, 17)).astype(F), constants)


def blocked_dequantize(r: random.Random, rng: Any) -> Part:
    shape, axis, block = [r.randint(1, 20) for _ in range(3)], r.randrange(3), r.choice([2, 3, 8, 16])
    scales = [-(-n // block) if k == axis else n for k, n in enumerate(shape)]
    constants = {"s": rng.random(scales).astype(F), "z": rng.integers(-9, 9, scales).astype(np.int8)}
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis, block_size=block)
    return Part(node, rng.integers(-128, 128, shape).astype(np.int8), constants)


def gathered(r: random.Random, rng: Any) -> Part:
    block = r.choice([16, 32])
    rows, depth = r.randint(2, 9), 2 * r.randint(1, 40)
    constants = {"q": drawn_bytes(rng, rows, depth // 2), "s": rng.random((rows, -(-depth // block))).astype(F)}
    attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1, "bits": 4}
    node = helper.make_node("GatherBlockQuantized", ["q", "x", "s"], ["y"], domain=MICROSOFT, **attributes)
    return Part(node, rng.integers(0, rows, r.randint(1, 5)), constants)


def convolution(r: random.Random, rng: Any) -> Part:
    """Three by three is Winograd's; channels are packed in blocks."""
    k, group = r.choice([1, 3, 3, 5]), r.choice([1, 1, 1, 2])
    inputs, outputs = group * r.randint(1, 21), group * r.randint(1, 37)
    height, width = r.randint(k, 19), r.randint(k, 19)
    constants = {"w": rng.standard_normal((outputs, inputs // group, k, k)).astype(F)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[r.randrange(2)] * 4, group=group)
    return Part(node, rng.standard_normal((1, inputs, height, width)).astype(F), constants)


def product(r: random.Random, rng: Any) -> Part:
    rows, depth, columns = r.choice([1, 3, 17]), r.randint(1, 70), r.randint(1, 70)
    constants = {"w": rng.standard_normal((depth, columns)).astype(F)}
    return Part(helper.make_node("MatMul", ["x", "w"], ["y"]), rng.standard_normal((rows, depth)).astype(F), constants)


def rearranged(r: random.Random, rng: Any) -> Part:
    size, channels = r.choice([2, 3]), r.randint(1, 7)
    height, width = r.randint(1, 7), r.randint(1, 7)
    node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=size, mode=r.choice(["DCR", "CRD"]))
    return Part(node, rng.standard_normal((1, channels * size * size, height, width)).astype(F), {})


KINDS = {
    "nbits": [smallest_nbits] + [nbits] * 7,
    "dequantize": [blocked_dequantize] * 8,
    "gather": [gathered] * 6,
    "conv": [convolution] * 6,
    "product": [product] * 6,
    "rearrange": [rearranged] * 6,
}


def joined(parts: Iterator[Part]) -> tuple[ModelProto, dict[str, Array]]:
    """One model of all nodes, and its inputs."""
    nodes, data, constants, outputs = [], {}, {}, []
    for k, part in enumerate(parts):
        rename = {name: f"{name}{k}" for name in ("x", "y", *part.constants)}
        node = NodeProto()
        node.CopyFrom(part.node)
        node.input[:] = [rename[name] for name in part.node.input]
        node.output[:] = [f"y{k}"]
        nodes.append(node)
        outputs.append(f"y{k}")
        data[f"x{k}"] = np.asarray(part.data)
        constants |= {f"{name}{k}": value for name, value in part.constants.items()}
    model = model_of(nodes, {}, outputs, constants=constants, opset=21)
    for name, value in data.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    for output in model.graph.output:
        output.type.tensor_type.elem_type = 1
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model, data


CASES = [(kind, seed, target) for kind in KINDS for seed in range(6) for target in ("c", "host")]
ALWAYS = [("nbits", 0, "c"), ("nbits", 0, "host")]


@pytest.mark.parametrize(("kind", "seed", "target"), share(CASES, 6, always=ALWAYS))
def test_sizes_that_fill_no_block(kind: str, seed: int, target: str) -> None:
    r, rng = random.Random(f"{kind}{seed}"), np.random.default_rng(seed)
    model, data = joined(make(r, rng) for make in KINDS[kind])
    options = CompileOptions(target=target, cflags=STRICT, instruments=(ProgramVerifier(),))
    found = options.compile_model(model).session().run(None, data)
    for k, (got, want) in enumerate(zip(found, ort_run(model, data), strict=True)):
        np.testing.assert_allclose(got, want, 1e-3, 1e-3, err_msg=f"node {k}: {model.graph.node[k]}")
