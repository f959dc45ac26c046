# SPDX-License-Identifier: Apache-2.0
"""Models with control flow in ONNX's text form, and the ways to run them, for the tests of branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import aotc
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import CompiledModel
from aotc.reporting.model_inspection import inspect_model
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.e2e.test_state import graph_model

Feeds = Mapping[str, Any]


def arm(body: str, outputs: str) -> str:
    return f"g () => ({outputs}) {{ {body} }}"


def choice(condition: str, results: str, yes: str, no: str, outputs: str) -> str:
    """An If in ONNX's text form; `outputs` are the types and names of what both arms compute."""
    return f"{results} = If ({condition}) <then_branch = {arm(yes, outputs)}, else_branch = {arm(no, outputs)}>"


def model_of(interface: str, body: str) -> onnx.ModelProto:
    inputs, outputs = interface.split("=>")
    return graph_model(f"g ({inputs}) => ({outputs}) {{ {body} }}")


def reference_of(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def arrays(model: onnx.ModelProto, decisions: Feeds) -> dict[str, Any]:
    rng, session = np.random.default_rng(3), reference_of(model)
    types = {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int64)": np.int64}
    return {
        i.name: np.array(decisions[i.name], types[i.type])
        if i.name in decisions
        else rng.normal(0, 0.6, i.shape).astype(types[i.type])
        for i in session.get_inputs()
    }


def compiled(model: Any, folder: Path, **options: Any) -> CompiledModel:
    options = {"target": "c", "cflags": ["-O0"], "instruments": [ProgramVerifier()], **options}
    return aotc.compile(model, name="net", output=folder, **options)


def interpreter_of(model: Any, **options: Any) -> ProgramInterpreter:
    work = CompileOptions.from_keywords({"target": "c", **options}, inspect_model).start_compilation(model)
    return ProgramInterpreter(work.scheduled_programs[0])
