# SPDX-License-Identifier: Apache-2.0
"""4-bit weights with byte activations are multiplied as integers, where ONNX Runtime computes with floats."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.driver.compile import CompileOptions
from aotc.reporting.model_inspection import inspect_model
from tests.frontend.test_random_quantized_operators import Drawing, F
from tests.share import share
from tests.targets.machines import FOREIGN, PORTABLE, machine, native_targets

LAYERS: dict[str, Any] = {
    # the shapes of weights and data, the weights' axis of channels, and the sums of products
    "Conv": ((8, 4, 3, 3), (1, 4, 7, 6), 0, lambda x, w: np.einsum("ncyxij,ocij->noyx", windows(x), w)),
    "MatMul": ((32, 8), (5, 32), 1, np.matmul),
}
WIDE: dict[str, Any] = {
    "Conv": ((64, 64, 3, 3), (1, 64, 9, 10), *LAYERS["Conv"][2:]),
    "MatMul": ((256, 37), (33, 256), *LAYERS["MatMul"][2:]),
}


def windows(x: Any) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))


def drawn(kind: str, dtype: str, seed: int, sizes: Any = LAYERS, **places: int) -> tuple[Drawing, Any, Any]:
    """A quantized layer, and what its integers are."""
    d, (shape, data, axis, sums) = Drawing(seed), sizes[kind]
    low = -8 if dtype == "int4" else 0
    x_pair, y_pair = d.pair(), d.pair(64.0)
    stored, zero = d.rng.integers(low, low + 16, shape), int(d.rng.integers(low, low + 16))
    many = (32 // places["block_size"], 8) if places else shape[axis]
    scale = np.asarray(d.rng.uniform(0.5, 1, many), F)
    kind_of = getattr(ml_dtypes, dtype)
    zeros = np.full(many, zero).astype(kind_of)
    x = d.x(*data, pair=x_pair)
    w = d.real(d.constant(stored.astype(kind_of)), (scale, zeros), **(places or {"axis": axis}))
    model = d.done(d.op(kind, x, w), y_pair)
    model.opset_import[0].version, model.ir_version = 21, 10
    if places:
        return d, model, None
    found = sums(d.data["x0"].astype(int) - int(x_pair[1]), stored - zero).astype(F)
    factor = x_pair[0] * scale / y_pair[0]
    ends = np.iinfo(d.dtype)
    y = np.rint(found * (factor[:, None, None] if kind == "Conv" else factor)) + int(y_pair[1])
    return d, model, np.clip(y, ends.min, ends.max).astype(d.dtype)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("kind", LAYERS)
def test_they_are_multiplied_as_integers(kind: str, dtype: str) -> None:
    for seed in range(3):
        d, model, want = drawn(kind, dtype, seed)
        assert inspect_model(model)["left_real"] == []
        np.testing.assert_array_equal(
            CompileOptions(cflags=("-O1",)).compile_model(model).session().run(None, d.data)[0], want
        )


def test_those_with_scales_of_blocks_are_left_on_real_numbers() -> None:
    _, model, _ = drawn("MatMul", "int4", 0, axis=0, block_size=16)
    (row,) = inspect_model(model)["left_real"]
    assert (row["operator"], row["reason"]) == ("nn.matmul", "its operands and its result are not all quantized")


@pytest.mark.parametrize(("dtype", "axis", "zero"), [("int4", 0, 0), ("uint4", 0, 5), ("int4", 1, -3), ("uint8", 1, 9)])
def test_those_of_blocks_stay_in_few_bits(dtype: str, axis: int, zero: int, tmp_path: Path) -> None:
    """Products of floats by weights of 4 or 8 bits, of a size that the importer folds, with and without zero points."""
    rng, bits = np.random.default_rng(0), 8 if dtype == "uint8" else 4
    low, type_of = -8 if dtype == "int4" else 0, getattr(ml_dtypes, dtype, np.uint8)
    stored = rng.integers(low, low + (1 << bits), (64, 32) if axis == 0 else (32, 64))
    blocks = (2, 32) if axis == 0 else (32, 2)
    scale, x = rng.uniform(-1, 1, blocks).astype(F), rng.normal(size=(1, 64)).astype(F)
    known = {"w": stored.astype(type_of), "scale": scale, "zeros": np.full(blocks, zero).astype(type_of)}
    nodes = [
        helper.make_node("DequantizeLinear", list(known)[: 2 + (zero != 0)], ["m"], axis=axis, block_size=32),
        helper.make_node("Transpose", ["m"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "m" if axis == 0 else "t"], ["y"]),
    ]
    nodes = nodes if axis else [nodes[0], nodes[2]]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 64), ("y", 32))]
    constants = [numpy_helper.from_array(value, name) for name, value in known.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = CompileOptions(output=tmp_path / "net", target="c", cflags=("-O0",)).compile_model(model)
    real = (stored - zero) * np.repeat(scale, 32, axis)
    np.testing.assert_allclose(
        made.session().run(None, {"x": x})[0], x @ (real.T if axis else real), rtol=1e-4, atol=1e-3
    )
    assert made.metadata["weights_bytes"] <= stored.size * bits / 8 + 2 * scale.nbytes + 256


@pytest.mark.parametrize(
    ("target", "kind"),
    share(product(native_targets(), WIDE), 6, always=[("c", "Conv"), ("x86-64-v4-amx", "Conv")])
    + share(product((*FOREIGN, *PORTABLE), WIDE), 1),
)
def test_they_take_half_a_byte(target: str, kind: str, tmp_path: Path) -> None:
    here = machine(target)
    d, model, want = drawn(kind, ("int4", "uint4")[len(target) % 2], len(target), WIDE)
    config = {"compile.halve_bytes": True}
    common = {"target": here.target, "cflags": ("-O1",), "build": not here.emulator}
    options = CompileOptions(output=tmp_path / "net", config=config, **common)
    made = options.compile_model(model)
    inputs = {v["name"]: d.data[v["name"]] for v in made.metadata["inputs"]}
    run = made.session().run if not here.emulator else lambda _, x: here.run_model(made, list(x.values()))
    np.testing.assert_array_equal(run(None, inputs)[0], want)
    without = replace(options, output=tmp_path / "whole", build=False, disabled_pass=["HalveBytes"])
    whole = without.compile_model(model)
    saved = whole.metadata["weights_bytes"] - made.metadata["weights_bytes"]
    assert abs(saved - np.prod(WIDE[kind][0]) / 2) <= 64 * 48


@pytest.mark.parametrize(("target", "units", "halves"), [("c", 255, 0), ("c", 512, 1), ("cortex-m0plus", 255, 1)])
def test_they_do_so_where_memory_or_caches_are_short(target: str, units: int, halves: int) -> None:
    """Processors with caches take whole bytes of a mebibyte or less."""
    _, model, _ = drawn("MatMul", "int4", 0, {"MatMul": ((4096, units), (1, 4096), *LAYERS["MatMul"][2:])})
    sizes = [
        sum(
            s.nbytes
            for s in CompileOptions(target=target, disabled_pass=off)
            .start_compilation(model)
            .scheduled_programs[0]
            .constants
        )
        for off in ([], ["HalveBytes"])
    ]
    assert (sizes[0] < 0.6 * sizes[1]) == bool(halves)
