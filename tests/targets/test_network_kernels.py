# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of networks have the interpreter's bits.

Every distinct kernel of the networks that benchmarks measure, with smaller extents that leave the remainders they left;
whole networks that are small, on one thread and on several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.dtype import DType
from aotc.ir.types import tensor_types
from aotc.relay.analysis import extract_fused_functions
from aotc.relay.backend.function_to_kernel import kernel_name_from_anchor_operator, lower_fused_function
from aotc.relay.backend.zero_copy_view_detection import view_offsets_of_results
from aotc.relay.expr import Function, type_of
from aotc.relay.structural_equality import structural_hash
from aotc.runtime.session import load
from aotc.tir.target import Target
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from benchmarks.run import INPUT_SHAPES_BY_MODEL, TRAINED_MODELS
from tests.codegen.batch import Array, finished
from tests.codegen.bit_comparison import same
from tests.fuzz.execute import run_program
from tests.share import share
from tests.targets.machines import machine
from tests.targets.random_kernels import Job, disagreements
from tests.targets.reduced_networks import reduced

TARGETS = ("x86-64-v3", "c")
"""One whose vectors leave remainders, and one without vectors."""
UNITS = (48, 16, 8)
"""What extents are divided by: all vectors and most tiles divide the first, which small kernels can afford."""
MAX_MACS = 300_000
"""Multiplications of a small kernel."""
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-40)
WHOLE = (
    "ds_cnn", "lstm", "mnist8", "kws_fp32", "dtln_1", "dtln_2", "gtcrn_simple", "silero_vad_16k_op15", "ppocr_cls",
    "tinystories260k_prefill", "tinystories260k_decode", "vittrack", "selfie_seg", "mobilenet_v3_small",
    "ultraface_rfb320", "yunet_n_320",
)  # fmt: skip
"""Networks of up to 200 million multiplications; the interpreter takes minutes for those."""


@pytest.fixture
def compilation(request: pytest.FixtureRequest) -> Any:
    """compilation("minilm", "c"): a network on its way."""

    def begun(name: str, target: str) -> Compilation:
        source = (
            NETWORK_BUILD_FUNCTIONS[name]()
            if name in NETWORK_BUILD_FUNCTIONS
            else request.getfixturevalue("models") / f"{name}.onnx"
        )
        return CompileOptions(
            target=target, cache=False, tuning=False, input_shapes=INPUT_SHAPES_BY_MODEL.get(name)
        ).start_compilation(source)

    return begun


def arrays(function: Function, rng: np.random.Generator) -> Iterator[Array]:
    """Values for the parameters, some of them special; integers may be places of elements."""
    odd = rng.random() < 0.3
    for k, param in enumerate(function.params):
        for ty in tensor_types(type_of(param)):
            shape, dtype = ty.static_shape, DType(ty.dtype)
            values = rng.standard_normal(shape) if dtype.is_float else rng.integers(0, 2, shape)
            if odd and dtype.is_float and k not in function.attrs.get("Finite", ()) and values.size > 16:
                values.flat[rng.integers(values.size)] = rng.choice(SPECIAL)
            yield values.astype(dtype.numpy)


def small_kernels(work: Compilation, target: Target) -> Iterator[Job]:
    """The distinct kernels of a network, smaller."""
    seen, rng = set(), np.random.default_rng(0)
    for function in extract_fused_functions(work.optimized_graph).values():
        if view_offsets_of_results(function) is not None:
            continue
        for unit in UNITS:
            small = reduced(function, unit)
            kernel = lower_fused_function(small, kernel_name_from_anchor_operator(small), target)
            if kernel.macs <= MAX_MACS:
                break
        if structural_hash(small) not in seen:
            seen.add(structural_hash(small))
            yield finished(kernel, target), list(arrays(small, rng))


@pytest.mark.parametrize(("name", "target"), share(product((*NETWORK_BUILD_FUNCTIONS, *TRAINED_MODELS), TARGETS), 1))
def test_kernels_of_networks(name: str, target: str, compilation: Any, tmp_path: Path) -> None:
    here, work = machine(target), compilation(name, target)
    jobs = list(small_kernels(work, here.target))
    assert jobs and max(kernel.macs for kernel, _ in jobs) < 30 * MAX_MACS
    assert disagreements(jobs, here, tmp_path, levels=["-O1"], others=False) == []


def inputs_of(work: Compilation, name: str, models: Path | None) -> dict[str, Array]:
    """Those that come with a trained model, or random ones."""
    if models is None:
        rng, params = np.random.default_rng(0), work.module.main.params
        return {p.name: rng.standard_normal(type_of(p).static_shape).astype(np.float32) for p in params}  # type: ignore[union-attr]
    with np.load(models / f"{name}.npz") as file:
        return {key.removeprefix("in/"): file[key] for key in file.files if key.startswith("in/")}


def bits(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(map(same, found, expected))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_networks(name: str, target: str, compilation: Any, request: pytest.FixtureRequest) -> None:
    work: Compilation = compilation(name, target)
    inputs = inputs_of(work, name, None if name in NETWORK_BUILD_FUNCTIONS else request.getfixturevalue("models"))
    (program,) = work.scheduled_programs
    expected, model = run_program(program, inputs), work.emit_project_and_build_library()
    for threads in (1, 2, 3):
        assert bits(load(model.built, threads=threads).run(None, inputs), expected), threads
