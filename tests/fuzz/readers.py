# SPDX-License-Identifier: Apache-2.0
"""Reads a mutated model, compiles it to C, and executes it if it is small."""

from __future__ import annotations

import zlib
from pathlib import Path

import onnx

from aotc.checking.input_generation import draw_random_inputs, input_types
from aotc.driver.compile import CompileOptions, compile
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import tensor_types
from aotc.relay.expr import Call
from aotc.relay.module import IRModule
from aotc.relay.visitor import post_order
from tests.fuzz.case import Found, Stage
from tests.fuzz.differential import check_executions
from tests.fuzz.execute import Setting, targets
from tests.fuzz.onnx_graphs import compare_with_onnxruntime
from tests.fuzz.rounding_bounds import Expected

MOST_ELEMENTS = 100_000
"""Largest number of elements of all results of a model that is executed."""
SHARE = 10
"""One in this many models is executed as C, too."""


def check_model(path: Path, stage: Stage) -> str:
    """Read a model, write it as C, on a target and a level that its bytes choose, and execute it."""
    choice = zlib.crc32(path.read_bytes())
    setting = Setting(targets()[choice % len(targets())], choice // 8 % 4, threads=1 + choice // 32 % 2)
    stage("import")
    module = CompileOptions().import_as_graph_module(path)
    stage("compile")
    out = path.parent / "out"
    try:
        compile(module, output=out, target=setting.target, opt_level=setting.opt_level, build=False, cache=False)
    except AotcError:
        if out.exists():
            raise Found("leftover", "a project that was refused", f"{out} exists") from None
        raise
    return _execute(path, module, setting, choice, stage) if _is_small(module) else "accepted"


def _is_small(module: IRModule) -> bool:
    calls = [n for f in module.functions.values() for n in post_order(f) if isinstance(n, Call)]
    types = [t for n in calls if n.checked_type is not None for t in tensor_types(n.checked_type)]
    inputs = input_types(module)
    if len(inputs) < len(module.main.params) or not all(t.is_static for t in (*types, *inputs.values())):
        return False
    return sum(t.numel for t in (*types, *inputs.values())) < MOST_ELEMENTS


def _whole(path: Path) -> onnx.ModelProto | None:
    """A model with all its weights; None if some that nothing uses cannot be read."""
    try:
        return onnx.load(path)
    except Exception:  # of several kinds
        return None


def _execute(path: Path, module: IRModule, setting: Setting, choice: int, stage: Stage) -> str:
    inputs = draw_random_inputs(input_types(module), choice)
    stage("definition")
    try:
        expected = Expected.of(module, inputs)
    except MemoryError:  # numpy pads what the compiled program never has as a whole
        return "accepted"
    compared = False
    if path.suffix == ".onnx" and (model := _whole(path)) is not None:
        compared = compare_with_onnxruntime(model, inputs, expected, stage)
    if choice // 64 % SHARE == 0:
        check_executions(path.parent, module, inputs, expected, setting, stage)
        compared = True
    return "agreed" if compared else "accepted"
