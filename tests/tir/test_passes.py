# SPDX-License-Identifier: Apache-2.0
"""Tensor passes: every kernel of operators and networks is well formed after each pass, and errors are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import PassInfo, PassInstrument
from aotc.ir.transform import PassContext
from aotc.relay.expr import Expr, Function, Tuple, Var, typed_op_call
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.testing import dcgan, mlp, mobilenet, resnet, squeezenet
from aotc.relay.text.parser import parse
from aotc.tir import passes as tensor_passes
from aotc.tir.expr import const
from aotc.tir.kernel_text import to_text
from aotc.tir.passes import (
    TENSOR_PASS_NAMES,
    TENSOR_PIPELINE,
    DivideAmongThreads,
    KernelPass,
    PlanMemory,
    ProgramPass,
    ProgramVerifier,
    VectorizeLoops,
    program_passes,
    run_tensor_passes,
)
from aotc.tir.plan.program import Program
from aotc.tir.plan.storage import MemoryPlan, View
from aotc.tir.stmt import Block, Store, walk_stmts
from aotc.tir.target import get_target
from tests.ops.harness import type_of_value
from tests.share import share

TARGETS = ("c", "x86-64-v3", "x86-64-v4", "aarch64", "cuda")
NETWORKS = {"dcgan": dcgan, "mlp": mlp, "mobilenet": mobilenet, "resnet": resnet, "squeezenet": squeezenet}
OPERATORS = sorted(name for name, op in OPERATORS_BY_NAME.items() if op.static is None and op.compute is not None)
GROUPS = [OPERATORS[k::32] for k in range(32)]


def verified(module: IRModule, target: str, **options: Any) -> list[Program]:
    chosen = CompileOptions(
        target=target, name="net", cache=False, tuning=False, instruments=[ProgramVerifier()], **options
    )
    return list(chosen.start_compilation(module).scheduled_programs)


@pytest.mark.parametrize(("name", "target"), share([(n, t) for n in NETWORKS for t in TARGETS], 1))
def test_networks(name: str, target: str) -> None:
    module, params = NETWORKS[name].get_workload(batch_size=1)
    assert verified(CompileOptions(params=params).import_as_graph_module(module), target)


def operand(value: Any, params: list[Var]) -> Expr:
    """New parameters that may have a value, in a tuple where it is one."""
    if isinstance(value, tuple):
        return Tuple([operand(v, params) for v in value])
    params.append(Var(f"a{len(params)}", type_of_value(value)))
    return params[-1]


def samples_of(names: Iterable[str]) -> IRModule:
    """All samples of some operators as the outputs of one program."""
    params: list[Var] = []
    results = []
    for name in names:
        for sample in OPERATORS_BY_NAME[name].samples():
            results.append(
                typed_op_call(OPERATORS_BY_NAME[name], [operand(value, params) for value in sample.args], sample.attrs)
            )
    return IRModule({"main": Function(params, Tuple(results))})


@pytest.mark.parametrize(("group", "target"), share([(g, t) for g in range(len(GROUPS)) for t in TARGETS], 2))
def test_samples_of_operators(group: int, target: str) -> None:
    assert verified(samples_of(GROUPS[group]), target, opt_level=0)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4-vnni", "aarch64-i8mm"])
def test_loops_over_sums_of_bytes_are_reductions(target: str) -> None:
    """Instructions that add products of bytes to a register reduce them, whatever a loop takes in turn."""
    assert verified(samples_of(["qnn.dense"]), target, opt_level=0)


def small() -> Program:
    """A network of a few kernels, lowered and planned."""
    module, params = mlp.get_workload(batch_size=1)
    (program,) = verified(CompileOptions(params=params).import_as_graph_module(module), "x86-64-v3")
    return program


def store_outside_of_buffer(program: Program) -> Program:
    """A store of every kernel outside of its buffer."""
    kernel = program.distinct_kernels[0]
    store = next(s for s in walk_stmts(kernel.body) if isinstance(s, Store))
    outside = Store(store.buffer, const(store.buffer.size), store.value)
    made = replace(kernel, body=Block([kernel.body, outside]))
    return replace(program, body=tuple(replace(s, kernel=made) if s.kernel is kernel else s for s in program.steps))


def overlap_temporaries(program: Program) -> Program:
    """All temporaries at the beginning of the arena."""
    plan = MemoryPlan(offsets=dict.fromkeys(program.plan.offsets, 0), peak=program.plan.peak)
    return replace(program, plan=plan)


def shift_last_result(program: Program) -> Program:
    """The first result of the last kernel one element further on."""
    *steps, last = program.steps
    args = (*last.args[:-1], View(last.args[-1].storage, 1))
    return replace(program, body=(*steps, replace(last, args=args)))


@pytest.mark.parametrize("damage", [store_outside_of_buffer, overlap_temporaries, shift_last_result])
def test_a_wrong_pass_is_found(damage: Callable[[Program], Program], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorizeLoops, "run", lambda self, program, ctx: damage(program))
    with pytest.raises(AotcError) as caught:
        small()
    assert {d.code for d in caught.value.diagnostics} == {"tir-verify"}


class Renames(PassInstrument):
    levels = frozenset({"tensor"})

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        module.name = "other"


class Empties(Renames):
    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        object.__setattr__(module.distinct_kernels[0], "body", Block([]))


@pytest.mark.parametrize("instrument", [Renames(), Empties()])
def test_an_instrument_that_changes_a_program_is_named(instrument: PassInstrument) -> None:
    module, params = mlp.get_workload(batch_size=1)
    options = CompileOptions(target="c", name="net", cache=False, tuning=False, instruments=[instrument])
    with pytest.raises(AotcError, match=f"{instrument.name} changes the program that it is shown by TakeViews"):
        _ = options.start_compilation(CompileOptions(params=params).import_as_graph_module(module)).scheduled_programs


def test_copies_are_views_and_results_lie_in_place_unless_passes_are_left_out() -> None:
    row = "strided_slice(exp(%x), begin=[2, 0], end=[3, 6], strides=[1, 1], axes=None)"
    body = f"reshape(sigmoid(tanh(nn.relu({row}))), newshape=[6])"
    module = parse(f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(4, 6), float32]) {{ {body} }}')

    def steps(*left_out: str) -> list[tuple[str, int]]:
        (program,) = verified(module, "c", opt_level=0, disabled_pass=left_out)
        return [(step.kernel.name, len(step.args)) for step in program.steps]

    assert steps() == [("exp", 2), ("relu", 2), ("tanh", 1), ("sigmoid", 2)]
    assert steps("WorkInPlace") == [("exp", 2), ("relu", 2), ("tanh", 2), ("sigmoid", 2)]
    copies = [("exp", 2), ("copy", 2), ("relu", 1), ("tanh", 1), ("sigmoid", 1), ("copy", 2), ("copy", 2)]
    assert steps("TakeViews") == copies


def test_passes_take_programs_alone_and_can_be_left_out() -> None:
    with pytest.raises(AotcError, match="expected a module, got IRModule"):
        PlanMemory()(IRModule({}))
    program, target = small(), get_target("x86-64-v3")
    with PassContext(disabled_pass=[DivideAmongThreads.name]):
        alone, shared = run_tensor_passes(program, target, multithreaded=False), run_tensor_passes(program, target)
        assert list(map(to_text, shared.distinct_kernels)) == list(map(to_text, alone.distinct_kernels))


LAST_PASSES = ("FuseMultiplyAdds", "VectorizeLoops")
ONE_THREAD_PASSES = ("KeepState", "WorkInPlace", "PlanMemory", *LAST_PASSES, "HalveBytes")
CPU_PASSES = ("KeepState", "WorkInPlace", "PlanMemory", "DivideAmongThreads", *LAST_PASSES, "HalveBytes")


@pytest.mark.parametrize(
    ("target", "config", "expected"),
    [
        ("x86-64-v3", {}, CPU_PASSES),
        ("x86-64-v3", {"compile.reorder": True}, ("FuseLoops", "OrderSteps", *CPU_PASSES)),
        ("x86-64-v3", {"compile.overlap": True}, CPU_PASSES),
        ("c", {"compile.workspace_io": True}, ("KeepInputsAndOutputs", *ONE_THREAD_PASSES)),
        (
            "cortex-m4",
            {},
            ("FuseLoops", "OrderSteps", "KeepState", "WorkInPlace", *LAST_PASSES, "HalveBytes", "PlanMemory"),
        ),
        ("cortex-m4", {"compile.overlap": False, "compile.reorder": False}, ONE_THREAD_PASSES),
        ("cuda", {"compile.reorder": True}, ("LaunchOnDevice", "KeepState", "WorkInPlace", "PlanMemory", *LAST_PASSES)),
    ],
)
def test_pipelines_of_targets(target: str, config: dict[str, bool], expected: tuple[str, ...]) -> None:
    with PassContext(config=config):
        assert tuple(item.name for item in program_passes(get_target(target))) == expected


def test_the_table_of_tensor_passes_is_complete() -> None:
    """Every pass of the module has a row, and some target includes each row."""
    classes = {c for c in vars(tensor_passes).values() if isinstance(c, type) and issubclass(c, ProgramPass)}
    assert classes - {ProgramPass, KernelPass} == {row.pass_class for row in TENSOR_PIPELINE}
    assert set(TENSOR_PASS_NAMES) == {row.pass_class.name for row in TENSOR_PIPELINE}
    with PassContext(config={"compile.workspace_io": True}):
        targets = [get_target(name) for name in ("x86-64-v3", "cortex-m4", "cuda")]
        unused = [row for row in TENSOR_PIPELINE if not any(row.is_included(target, True) for target in targets)]
    assert not unused
    assert all(isinstance(row.create(get_target("x86-64-v3")), row.pass_class) for row in TENSOR_PIPELINE)
