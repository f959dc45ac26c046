# SPDX-License-Identifier: Apache-2.0
"""`reproducible` compilations: equal bits on every target, for all tilings and numbers of threads.

The interpreter of tensor programs runs the scheduled kernels of all targets, those without a machine here, too; then
compiled libraries give what it gives.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from aotc.checking.input_generation import draw_random_inputs, input_types
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir import DType
from aotc.ir.option_description import ACCURACIES
from aotc.relay import op as operators
from aotc.relay.expr import Constant
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.text.parser import parse
from aotc.relay.visitor import post_order
from aotc.tir.bare_metal_portable_and_small_targets import target_with_fixed_summation_order
from aotc.tir.expr import Call
from aotc.tir.functions.elementary_function_table import elementary_function_definition
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.passes import kernel_passes
from aotc.tir.plan import numerics_fingerprint as name_of
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser
from aotc.tir.stmt import Kernel, all_exprs_in_stmt
from aotc.tir.target import TARGETS, Budget, Target, Tiles
from tests.fuzz.execute import run_program
from tests.golden.cases import KERNELS, PROJECTS, Case, tensor
from tests.ops.harness import kernel_job
from tests.share import share
from tests.targets.machines import FOREIGN, machine, native_targets
from tests.targets.random_layers import Model, parts
from tests.tir.contractions import conv, matmul

Array = np.ndarray[Any, Any]
#: Fits no processor: whatever a schedule asks of a target differs from the others.
ODD = replace(
    TARGETS["x86-64-v3"], name="odd", vector_bytes=128, registers=11, fma_bytes=16, l1=4 << 10, l2=16 << 10,
    line=128, store_cost=1, tiles=Tiles(latency=9), threads=None,
    budget=Budget(unrolled=60, row_bytes=64, index_nodes=20, stack_bytes=64),
)  # fmt: skip
#: Scalar, and vectors of 4, 16 and 32 numbers in 16, 32 and 11 registers.
MACHINES = [TARGETS[name] for name in ("c", "x86-64", "x86-64-v4", "aarch64")] + [ODD]
#: Functions without a program that all libraries compute alike.
EXACT = {"sqrt", "fma", "product", "copysign", "abs", "isnan", "isinf", "popcount", "clz"}
EXACT |= {name for name in INSTRUCTIONS if name.startswith("quantize_")}
AT_ONCE = 45
NETWORKS = {
    **KERNELS,
    **PROJECTS,
    "long": Case("long", "c", f"%x: {tensor(3000, 8)}", "nn.softmax(multiply(mean(%x, axis=[0]), sum(%x, axis=[0])))"),
}


def bits(arrays: Sequence[Array]) -> list[bytes]:
    """What decides whether results are equal: all NaN are."""
    wide = (np.asarray(a, np.float32 if a.dtype.kind == "V" else a.dtype) for a in arrays)
    return [(np.where(np.isnan(a), np.full_like(a, np.nan), a) if a.dtype.kind == "f" else a).tobytes() for a in wide]


def finished(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as it is printed."""
    for item in kernel_passes(target):
        kernel = item.rewrite_kernel(kernel)
    return kernel


def samples() -> list[tuple[OpDef, Sample]]:
    """Those of all operators, in an order that spreads families over shares."""
    found = [
        (op, sample) for op in operators.OPERATORS_BY_NAME.values() if op.static is None for sample in op.samples()
    ]
    random.Random(0).shuffle(found)
    return found


@pytest.mark.parametrize("first", share(range(0, 2940, AT_ONCE), 1))
def test_samples_of_operators(first: int) -> None:
    wrong = []
    for op, sample in samples()[first : first + AT_ONCE]:
        found = []
        for target in map(target_with_fixed_summation_order, MACHINES):
            job = kernel_job(op, sample, target)
            found.append(bits(run_kernel(finished(job.kernel, target), job.inputs)))
            calls = [n for n in all_exprs_in_stmt(job.kernel.body) if isinstance(n, Call) and n.args[0].dtype.is_float]
            wrong += [
                n.name
                for n in calls
                if n.name not in EXACT and elementary_function_definition(n.name, n.args[0].dtype) is None
            ]
        wrong += [op.name] * (len(set(map(tuple, found))) > 1)
    assert wrong == []


def test_no_sample_is_left_out() -> None:
    assert len(samples()) <= 2940


def shape_of_a_convolution(rng: random.Random) -> dict[str, Any]:
    """Arguments of `conv`."""
    rows, columns, stride, dilation = rng.choice([1, 3, 3, 5, 7]), rng.choice([1, 3, 3, 5]), rng.choice([1, 1, 2, 3]), 1
    dilation = rng.choice([1, 1, 2])
    many = rng.choice([8, 16, 33])
    inner, outer, groups = rng.choice([(3, 24, 1), (16, 8, 1), (24, 40, 1), (8, 16, 2), (many, many, many)])
    size = tuple(dilation * (k - 1) + stride + rng.randint(0, 12) for k in (rows, columns))
    return {
        "batch": rng.choice([1, 1, 2]), "ic": inner, "oc": outer, "groups": groups, "size": size, "stride": stride,
        "kernel": (rows, columns), "dilation": dilation, "padding": rows // 2, "last": rng.random() < 0.4,
        "block": rng.choice([0, 16, 32]) if groups == 1 else 0, "finite": rng.random() < 0.8,
    }  # fmt: skip


@pytest.mark.parametrize("seed", share(range(60), 1))
def test_every_tiling_of_a_sum_of_products(seed: int) -> None:
    """Whichever of the proposed tilings is taken."""
    rng = random.Random(seed)
    if seed % 6:
        case = conv(**shape_of_a_convolution(rng))
    else:
        case = matmul(m=rng.choice([1, 5, 30]), k=rng.randint(1, 70), n=rng.randint(1, 50), block=rng.choice([0, 16]))
    values, found = case.values(seed), set()
    for target in map(target_with_fixed_summation_order, MACHINES):
        known: list[str] = []

        def collect(site: TilingSite, known: list[str] = known) -> None:
            known.extend(candidate.name for candidate in site.candidates)

        with use_tiling_chooser(collect):
            kernels = [case.kernel(target)]
        for name in rng.sample(known, min(3, len(known))):
            with use_tiling_chooser(lambda _, name=name: name):
                kernels.append(case.kernel(target))
        found.update(bits(run_kernel(kernel, values))[0] for kernel in kernels)
    assert len(found) == 1


def compilation(module: IRModule, target: Target, **options: Any) -> Compilation:
    chosen = CompileOptions(target=target, accuracy="reproducible", name="net", cache=False, tuning=False, **options)
    return chosen.start_compilation(module)


def interpreted(module: IRModule, inputs: dict[str, Array]) -> set[tuple[bytes, ...]]:
    """The different results on all machines, whose numerics have one name."""
    made = [compilation(module, target) for target in MACHINES]
    assert len({work.numerics_id_per_target_version for work in made}) == 1
    return {tuple(bits(run_program(work.scheduled_programs[0], inputs))) for work in made}


def names(case: str, *targets: str, **options: Any) -> list[tuple[str, ...]]:
    """The numerics of a network on some targets."""
    module = NETWORKS[case].module()
    options = {"cache": False, "tuning": False, **options}
    return [
        CompileOptions(target=target, **options).start_compilation(module).numerics_id_per_target_version
        for target in targets
    ]


def test_names_tell_what_changes_bits() -> None:
    fast, strict, reproducible = (names("conv-winograd", "x86-64-v3", accuracy=a)[0] for a in ACCURACIES)
    assert len({fast, strict, reproducible}) == 3  # Winograd's algorithm, and multiply-adds
    scalar, vector, fused = names("elementwise", "c", "x86-64", "x86-64-v3")
    assert vector != fused != scalar
    several = names("threads", "x86-64-multi", "x86-64-v3")
    assert len(set(several[0])) == 3 and several[1][0] == several[0][1]
    assert len(set(names("threads", "x86-64-multi", accuracy="reproducible")[0])) == 1


def test_names_tell_parameters_apart() -> None:
    case = NETWORKS["dense-vector"]
    other = replace(case, params=case.params.replace("%x", "%data"), body=case.body.replace("%x", "%data"))
    module = other.module()
    work = CompileOptions(target="c", cache=False, tuning=False, name="other").start_compilation(module)
    assert work.numerics_id_per_target_version == names("dense-vector", "c")[0]
    halved = {"w": 0.5 * next(n.data for n in post_order(module.main) if isinstance(n, Constant))}
    changed = parse(f'#[version = "0.0.5"]\ndef @main({case.params}) {{\n{case.body}\n}}\n')
    work = CompileOptions(target="c", cache=False, tuning=False, params=halved).start_compilation(changed)
    assert work.numerics_id_per_target_version != names("dense-vector", "c")[0]


def test_names_tell_functions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names("elementwise", "c")
    made = elementary_function_definition("erf", DType("float32"))
    assert made is not None
    other = replace(made, result=made.result * 1.0)
    monkeypatch.setattr(
        name_of,
        "elementary_function_definition",
        lambda n, d, f=False: other if n == "erf" else elementary_function_definition(n, d, f),
    )
    assert names("elementwise", "c") != before


def test_where_names_are_told(tmp_path: Path) -> None:
    module = NETWORKS["versions"].module()
    made = CompileOptions(target="x86-64-multi", name="net", cache=False, output=tmp_path / "net", build=False)
    metadata = made.compile_model(module).metadata
    own = [isa["numerics"] for isa in metadata["isas"]]
    assert (
        metadata["numerics"] == ", ".join(own)
        and tuple(own) == made.start_compilation(module).numerics_id_per_target_version
    )
    assert f'NET_NUMERICS "{metadata["numerics"]}"' in (tmp_path / "net/include/net.h").read_text()


def inputs_of(module: IRModule) -> dict[str, Array]:
    return draw_random_inputs(input_types(module), 1)


@pytest.mark.parametrize("name", share(NETWORKS, 5, always=["long", "attention", "lstm"]))
def test_networks(name: str) -> None:
    module = NETWORKS[name].module()
    assert len(interpreted(module, inputs_of(module))) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_networks() -> None:
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(parts(2))
    def run(drawn: list[Any]) -> None:
        model = Model.of(drawn, 0)
        assert len(interpreted(model.module, dict(model.inputs))) == 1

    run()


@pytest.mark.parametrize("name", share(["threads", "attention", "lstm", "long", "softmax"], 1, always=["threads"]))
def test_libraries(name: str, tmp_path: Path) -> None:
    """What was compiled gives the interpreter's bits, for any number of threads."""
    module = NETWORKS[name].module()
    inputs = inputs_of(module)
    (expected,) = interpreted(module, inputs)
    for target in native_targets():
        made = CompileOptions(
            output=tmp_path / target, target=target, accuracy="reproducible", name="net", cflags=["-O1"]
        ).compile_model(module)
        for threads in (1, 2, 3):
            assert tuple(bits(made.session(threads).run(None, inputs))) == expected, (target, threads)


@pytest.mark.parametrize(("target", "name"), share(product(FOREIGN, ["scalar", "attention", "lstm"]), 1))
def test_libraries_for_other_processors(target: str, name: str, tmp_path: Path) -> None:
    module, here = NETWORKS[name].module(), machine(target)
    inputs = inputs_of(module)
    (expected,) = interpreted(module, inputs)
    made = compilation(module, here.target).emit_project(tmp_path / "net")
    assert tuple(bits(here.run_model(made, list(inputs.values())))) == expected
