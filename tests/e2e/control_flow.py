# SPDX-License-Identifier: Apache-2.0
"""Models with control flow in ONNX's text form, and the ways to run them, for the tests of branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import compose

import aotc
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import CompiledModel
from aotc.reporting.model_inspection import inspect_model
from aotc.tir import Program
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
    rng, feeds = np.random.default_rng(3), {}
    for value in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        given = decisions[value.name] if value.name in decisions else rng.normal(0, 0.6, shape)
        feeds[value.name] = np.array(given, dtype)
    return feeds


def compiled(model: Any, folder: Path, **options: Any) -> CompiledModel:
    options = {"target": "c", "cflags": ["-O0"], "instruments": [ProgramVerifier()], **options}
    return aotc.compile(model, name="net", output=folder, **options)


def interpreter_of(model: Any, **options: Any) -> ProgramInterpreter:
    return ProgramInterpreter(program_of(model, **options))


def program_of(model: Any, **options: Any) -> Program:
    work = CompileOptions.from_keywords({"target": "c", **options}, inspect_model).start_compilation(model)
    return work.scheduled_programs[0]


def joined(models: Mapping[str, onnx.ModelProto]) -> onnx.ModelProto:
    """The models as one, whose names begin with those of the models."""
    whole = model_of("=>", "")
    for name, model in models.items():
        part = compose.add_prefix(model, f"{name}_").graph
        whole.graph.node.extend(part.node)
        whole.graph.input.extend(part.input)
        whole.graph.output.extend(part.output)
    return whole
