# SPDX-License-Identifier: Apache-2.0
"""Compile random models of control flow (`tests.fuzz.control_flow`), and compare their runs with ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto

import aotc
from aotc.driver.compile import CompileOptions
from aotc.reporting.model_inspection import inspect_model
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.fuzz.case import Files, Found, Stage
from tests.fuzz.control_flow import Array, files_of, load_case
from tests.fuzz.onnx_graphs import pruned_models


def check(folder: Path, stage: Stage) -> str:
    """The interpreter of programs and compiled C give what ONNX Runtime does."""
    names = ("model.onnx", "inputs.npz", "setting.json")
    model, runs, setting = load_case({name: (folder / name).read_bytes() for name in names})
    stage("other: ONNX Runtime")
    state = setting["state"]
    expected = results_by_onnxruntime(model, runs, state)
    stage("compile")
    threads = {"threads": True} if setting["threads"] > 1 and setting["target"] != "c" else {}
    dims = {name: tuple(bounds) for name, bounds in setting["dims"].items()}
    options: dict[str, Any] = {**threads, "dims": dims, "state": state}
    options |= {name: setting[name] for name in ("target", "opt_level")}
    kept = [o.name for o in model.graph.output if o.name not in state.values()]
    program = _program(folder / "model.onnx", options)
    stage("interpreter")
    interpreter = ProgramInterpreter(program)
    outputs = [interpreter(_given(feeds, state)) for feeds in runs]
    results = [[found[name] for name in kept] for found in outputs]
    if expected is not None:
        _compare("interpreter", kept, results, expected)
    stage("compile C")
    project = aotc.compile(
        folder / "model.onnx", output=folder / "net", cflags=["-O0"], cache=False, tuning=False,
        instruments=[ProgramVerifier()], **options,
    )  # fmt: skip
    stage("run")
    session = aotc.load(project.path, threads=setting["threads"] if threads else 1)
    kept_state = {"state": session.new_state()} if state else {}
    found = [session.run(kept, _given(feeds, state), **kept_state) for feeds in runs]
    _compare(f"C for {setting['target']}", kept, found, expected if expected is not None else results)
    return "agreed" if expected is not None else "no reference"


def _given(feeds: Mapping[str, Array], state: Mapping[str, str]) -> dict[str, Array]:
    return {name: array for name, array in feeds.items() if name not in state}


def _program(path: Path, options: Mapping[str, Any]) -> Any:
    work = CompileOptions.from_keywords({**options, "cache": False}, inspect_model).start_compilation(path)
    return work.scheduled_programs[0]


def results_by_onnxruntime(
    model: ModelProto, runs: Sequence[Mapping[str, Array]], state: Mapping[str, str]
) -> list[list[Array]] | None:
    """The outputs of each run that are no state, which is fed by hand from zeros on; None if it does not take the
    model.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # its own exception types
        return None
    names = [o.name for o in model.graph.output]
    kept = {past: np.zeros(4, np.float32) for past in state}
    results = []
    for feeds in runs:
        try:
            found = dict(zip(names, session.run(None, {**feeds, **kept}), strict=True))
        except Exception:  # its own exception types
            return None
        kept = {past: found[present] for past, present in state.items()}
        results.append([found[name] for name in names if name not in state.values()])
    return results


def _compare(
    how: str, names: Sequence[str], results: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]
) -> None:
    for run, (found, wanted) in enumerate(zip(results, expected, strict=True)):
        for name, a, b in zip(names, found, wanted, strict=True):
            # ONNX Runtime does not know the shape of rows that it did not compute
            is_empty = a.size == b.size == 0
            fits = a.dtype == b.dtype and (is_empty or a.shape == b.shape)
            if not fits or not (is_empty or np.allclose(a, b, 1e-3, 1e-4, equal_nan=True)):
                raise Found(
                    "wrong", how, f"output {name} of run {run}:\n{a.dtype} {a.shape}\n{a}\nexpected {b.shape}\n{b}"
                )


def smaller(files: Files) -> Iterator[Files]:
    """One output, or an intermediate result as the output; an easier setting."""
    model, runs, setting = load_case(files)
    for easier in ({"threads": 1}, {"target": "c"}, {"opt_level": 0}, {"state": {}}):
        if {**setting, **easier} != setting:
            yield files_of(model, runs, {**setting, **easier})
    for made in pruned_models(model):
        names = {v.name for v in made.graph.input}
        texts = {d.dim_param for v in made.graph.input for d in v.type.tensor_type.shape.dim}
        dims = {k: v for k, v in setting["dims"].items() if k in texts or k.removesuffix("[0]") in names}
        state = {} if "h" not in names else setting["state"]
        if set(state.values()) <= {o.name for o in made.graph.output}:
            yield files_of(made, runs, {**setting, "dims": dims, "state": state})
