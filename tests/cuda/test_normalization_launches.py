# SPDX-License-Identifier: Apache-2.0
"""Normalizations and the elementwise operators around them are one launch, right for every order of threads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Expr, Function, Tuple, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.elementwise_unary import relu, sigmoid
from aotc.relay.op.opdef import Accuracy
from aotc.relay.type_inference import infer_module
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from tests.codegen.batch import finished
from tests.codegen.bit_comparison import wrong
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import assert_agrees
from tests.share import share
from tests.tir.programs import run_program

Array = np.ndarray[Any, Any]
NORMS = ("group_norm", "instance_norm", "layer_norm", "rms_norm", "softmax", "log_softmax", "l2_normalize")


class Case(NamedTuple):
    """`front` and `behind`: what is computed of the data, and of the norm; `kept`: the former is a result, too."""

    norm: str
    shape: tuple[int, ...]
    groups: int = 1
    dtype: str = "float32"
    front: str = ""
    behind: str = ""
    kept: bool = False


def drawn(seed: int) -> Case:
    """Batches, channels and planes of none, one, an odd number and more; one group, some, or one for each channel."""
    rng = random.Random(seed)
    channels = rng.choice((1, 3, 6, 12, 33, 64))
    groups = rng.choice([n for n in range(1, channels + 1) if channels % n == 0])
    plane = rng.choice(((), (1,), (5,), (7, 3), (33, 32), (2, 3, 5)))
    empty = rng.randrange(30)
    channels, plane = channels * (empty != 0), (0,) if empty == 1 else plane
    if empty > 1 and rng.random() < 0.2:
        plane = (12_700 // channels,)  # rows of 48 KiB, and more
    front, behind = rng.choice(("", "scale", "add", "mask")), rng.choice(("", "relu", "silu"))
    dtype = rng.choice(("float32", "float32", "float16", "bfloat16"))
    shape = (rng.choice((0, 1, 2, 5)) if rng.random() < 0.3 else 2, channels, *plane)
    return Case(rng.choice(NORMS[:2] + NORMS), shape, groups, dtype, front, behind, bool(front) and rng.random() < 0.4)


def model(case: Case) -> IRModule:
    """The norm of a case: of channels, or along the last axis."""
    along_channels = case.norm in NORMS[:2]
    x = Var("x", TensorType(case.shape, case.dtype))
    size = case.shape[1 if along_channels else -1]
    vectors = [Var(name, TensorType((size,), case.dtype)) for name in ("gamma", "beta")]
    other = Var("other", TensorType(case.shape if case.front == "add" else case.shape[2:], case.dtype))
    fronts = {
        "scale": lambda: multiply(x, Constant(np.asarray(0.125, DType(case.dtype).numpy))),
        "add": lambda: add(x, other),
        "mask": lambda: add(x, other),
        "": lambda: x,
    }
    first: Expr = fronts[case.front]()
    op = OPERATORS_BY_NAME[f"nn.{case.norm}"]
    given: dict[str, Any] = {"axis": 1 if along_channels else -1}
    given |= {"axis": (-1,), "eps": 1e-6} if case.norm == "l2_normalize" else {}
    given |= {"num_groups": case.groups} if case.norm == "group_norm" else {}
    taken = vectors[: len(op.args) - 1]
    made: Expr = op(first, *taken, **given)
    made = {"relu": relu, "silu": lambda y: multiply(y, sigmoid(y)), "": lambda y: y}[case.behind](made)
    params = [x, *taken, *([other] if case.front in ("add", "mask") else [])]
    return infer_module(IRModule({"main": Function(params, Tuple((made, first)) if case.kept else made)}))


def values(module: IRModule) -> list[Array]:
    rng = np.random.default_rng(3)
    types = [p.checked_type for p in module.main.params]
    return [(rng.standard_normal(t.static_shape) * 3).astype(t.dtype.numpy) for t in types]  # type: ignore[union-attr]


def compiled(module: IRModule) -> Compilation:
    return CompileOptions(target="cuda").start_compilation(module)


@pytest.mark.parametrize("seed", share(range(120), 10))
def test_drawn(seed: int) -> None:
    """What numpy computes, in both orders of threads; the verifier has looked at every launch."""
    module = model(case := drawn(seed))
    (program,) = compiled(module).scheduled_programs
    given = values(module)
    expected = evaluate(module, *given)
    for backwards in (False, True):
        found = run_program(program, given, backwards)
        for a, b in zip(found, expected if case.kept else (expected,), strict=True):
            assert_agrees(a.reshape(b.shape), b, Accuracy.ROUNDING)
    assert len(program.steps) == 1


EMULATED = [
    Case("group_norm", (2, 12, 7, 3), 3, front="add", behind="silu", kept=True),
    Case("group_norm", (2, 12, 7, 3), 12, "float16", "mask", "relu"),
    Case("group_norm", (3, 8, 1600), 1, "float32", "", "silu"),
    Case("group_norm", (1, 64, 8, 8), 32, "bfloat16", "scale"),
    Case("instance_norm", (2, 3, 33, 32), front="add", kept=True),
    Case("layer_norm", (2, 5, 100), front="add", kept=True),
    Case("softmax", (2, 5, 13_000), front="mask"),
    Case("rms_norm", (2, 5, 64), 1, "float16", "add", "relu", kept=True),
]


def test_bits_of_emulated_launches(tmp_path: Path) -> None:
    """Those of the interpreter, whoever of the threads goes first."""
    jobs = []
    for case in EMULATED:
        module = model(case)
        (calls,) = compiled(module).lowered_programs
        (step,) = calls.steps
        memory = dict(zip(calls.inputs, values(module), strict=True))
        given = [memory.get(view.storage, view.storage.data) for view in step.inputs]
        jobs.append((step.kernel, [np.asarray(value).reshape(-1) for value in given]))
    expected = [run_kernel(finished(kernel, CUDA), given) for kernel, given in jobs]
    for outputs in run_batch(jobs, tmp_path):
        for (kernel, _), found, wanted in zip(jobs, outputs, expected, strict=True):
            assert not wrong(kernel, found, wanted)


def test_group_norm_in_place() -> None:
    """Its rows are a piece of the data each, whose channels have no axis of their own for groups."""
    (calls,) = compiled(model(Case("group_norm", (2, 12, 7, 3), 3, behind="silu"))).lowered_programs
    assert [step.kernel.inplace for step in calls.steps] == [((0, 0),)]


def test_barriers_of_a_group_norm_are_needed() -> None:
    """All but the first: each thread sums what it has stored itself."""
    case = Case("group_norm", (2, 12, 33, 32), 3, front="add", behind="silu", kept=True)
    (program,) = compiled(model(case)).scheduled_programs
    parts = to_text(program.steps[0].kernel).split("sync\n")
    assert len(parts) == 6
    for number in range(1, 5):
        text = "sync\n".join(parts[: number + 1]) + "sync\n".join(parts[number + 1 :])
        with pytest.raises(AotcError, match="iterations may access the same elements"):
            verify(parse_kernel(text))
