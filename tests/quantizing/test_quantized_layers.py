# SPDX-License-Identifier: Apache-2.0
"""Well-known networks, quantized in each form of ONNX Runtime's tool, against ONNX Runtime's kernels.

Each kernel of integers gives the bytes of ONNX Runtime's when it is fed with the operands that ONNX Runtime had, but
for numbers next to ties where ONNX Runtime's rounds otherwise than the model defines; and so does the whole network
where no kernel of that kind is in it and nothing is computed on real numbers.  No network has half a decibel more
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest

from aotc.checking.input_generation import draw_random_inputs
from aotc.checking.output_comparison import MAX_SNR_LOSS_DB, signal_to_noise_decibels
from aotc.driver.compile import CompileOptions
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from benchmarks.run import INPUT_SHAPES_BY_MODEL
from tests.targets.machines import has_vnni

pytest.importorskip("onnxruntime")
from tests.quantizing.networks import FORMS, Seen, Work, pinned, session

TRAINED = ("mnist8", "ultraface_rfb320", "vittrack", "ppocr_cls")
QUICK = (("ds_cnn", "qdq-s8"), ("ds_cnn", "dynamic"), ("mnist8", "qop-u8"))
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product((*TRAINED, *NETWORK_BUILD_FUNCTIONS), FORMS)
]
SEEDS, MANY = range(1, 4), range(1, 61)
"""Seeds of inputs: many for models with few outputs, whose decibels vary by half a decibel with the inputs."""
FEW = 100
OTHERWISE = {"QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat"}
OTHERWISE |= {"QLinearSoftmax"}
"""Kernels of ONNX Runtime that round otherwise than docs/quantization.md defines."""
SHARE = 1e-3
"""Largest share of the elements of a tensor that may differ; a softmax may differ anywhere by a step."""


@pytest.fixture
def quantized(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], Work]:
    """quantized("resnet18", "qdq-u8"), with a scale for each channel where the tool can do that."""

    def made(name: str, form: str) -> Work:
        if name in NETWORK_BUILD_FUNCTIONS:
            return Work.of(NETWORK_BUILD_FUNCTIONS[name](), form, tmp_path)
        model = onnx.load(request.getfixturevalue("models") / f"{name}.onnx")
        if name == "ultraface_rfb320":
            # scales for each channel came with version 13
            model = onnx.version_converter.convert_version(model, 13)
        return Work.of(pinned(model, INPUT_SHAPES_BY_MODEL.get(name, {})), form, tmp_path, per_channel=name != "mnist8")

    return made


def differing(seen: Seen, inputs: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The tensors that kernels give otherwise, on the same operands: by how much at most, and the share of that."""
    pieces = CompileOptions(cflags=("-O1",)).compile_model(seen.cut()).session()
    found = dict(zip([o.name for o in pieces.get_outputs()], pieces.run(None, seen.given(inputs)), strict=True))
    pairs = {n: (found[n].astype(np.float64), seen.values[n].astype(np.float64)) for n in seen.compared}
    return {
        n: (float(np.abs(a - b).max()), float((a != b).mean()))
        for n, (a, b) in pairs.items()
        if not np.array_equal(a, b)
    }


def maker(seen: Seen, name: str) -> str:
    """The operator of the kernel that made a tensor."""
    return seen.makers[name].op_type if name in seen.makers else ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_kernels_of_networks_give_the_bytes_of_onnx_runtime(
    name: str, form: str, quantized: Callable[[str, str], Work]
) -> None:
    if not has_vnni():
        pytest.skip("ONNX Runtime's products of bytes saturate on this processor")
    work = quantized(name, form)
    inputs = draw_random_inputs(work.types, 0)
    seen = work.seen(inputs)
    assert seen.compared
    wrong = differing(seen, inputs)
    near = {n for n in wrong if maker(seen, n) in OTHERWISE}
    assert {n: d for n, d in wrong.items() if seen.on_integers(n) and n not in near} == {}
    # what ONNX Runtime computes on real numbers, or rounds otherwise, is a neighbor at most
    assert all(step <= 1 for step, _ in wrong.values()), wrong
    assert all(wrong[n][1] < SHARE for n in near if maker(seen, n) != "QLinearSoftmax"), wrong
    print(f"{name} {form}: {len(seen.compared)} tensors, {sum(map(seen.on_integers, seen.compared))} of integers")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_noise_of_networks_is_that_of_onnx_runtime(name: str, form: str, quantized: Callable[[str, str], Work]) -> None:
    work = quantized(name, form)
    runs = [CompileOptions(cflags=("-O1",)).compile_model(work.path).session(), session(work.path), session(work.plain)]
    names = [o.name for o in runs[1].get_outputs()]
    seen = work.seen(draw_random_inputs(work.types, 0))
    whole = has_vnni() and seen.whole(names) and not any(maker(seen, n) in OTHERWISE for n in seen.makers)
    size = sum(np.size(y) for y in runs[1].run(None, draw_random_inputs(work.types, 0)))
    inputs = [draw_random_inputs(work.types, seed) for seed in (MANY if size < FEW else SEEDS)]
    for k, output in enumerate(names):
        ours, theirs, exact = (np.stack([run.run(None, x)[k] for x in inputs]) for run in runs)
        assert np.array_equal(ours, theirs) or not whole, output
        mine, other = signal_to_noise_decibels(ours, exact), signal_to_noise_decibels(theirs, exact)
        print(f"{name} {form} {output}: {mine:.2f} dB, {other:.2f} dB, {'equal' if whole else ''}")
        assert mine >= other - MAX_SNR_LOSS_DB, output
