# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/errors.md, and functions that run them.

An entry of the page is a heading with the code, a sentence, an example in a fenced block, and the message that it ends
with in another.  The block's language says what is done with it: Relay text is parsed, a graph in ONNX's text form is
imported, Python is run, and a command too, in a folder where `net.relay`, `net.onnx` and the project `net` lie.
"""

# ruff: noqa: F401  the examples use names of this module

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from aotc_codegen.c.c_dialects import C99
from aotc_codegen.c.kernel_printer import print_kernel
from onnx import TensorProto, helper, parser

import aotc
from aotc import relay
from aotc.checking.input_generation import draw_random_inputs
from aotc.checking.model_reference_runs import make_session_runner
from aotc.cli.console import report_errors_and_exit
from aotc.cli.main import main
from aotc.contrib import graph_executor
from aotc.contrib.debugger import debug_executor
from aotc.driver.failure_replay import rerun_failed_pass_or_kernel, write_report_on_internal_error
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.driver.tuning_store import TuningStore
from aotc.ir.diagnostics import AotcError, Diagnostic
from aotc.ir.types import TensorType
from aotc.measuring.competitors import require_known_rivals
from aotc.measuring.profile import profile_library
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.relay.backend.module_to_program import lower_main_to_program
from aotc.relay.constant_evaluation import wrap_result_in_constants
from aotc.relay.dataflow_pattern import DFPatternCallback, is_op, rewrite, wildcard
from aotc.relay.expr import with_checked_type
from aotc.relay.frontend import from_exported_program, from_pytorch
from aotc.relay.instrument.verifier import Verifier, diagnose_malformed_module
from aotc.reporting.model_inspection import inspect_project
from aotc.runtime.abi import ffi
from aotc.tir import te
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.target import get_target

RELAY_HEADER = '#[version = "0.0.5"]\n'
ONNX_HEADER = '<ir_version: 11, opset_import: ["" : 25]>\n'
_ENTRY = re.compile(r"### `([^`]+)`\n\n([^\n]+)\n\n```(\w+)\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the page; `place` is where in the page its message lies."""

    code: str
    meaning: str
    language: str
    source: str
    message: str
    place: slice = field(compare=False)


def entries(page: str) -> list[Entry]:
    """The entries of a page, in order."""
    return [Entry(*m.groups(), place=slice(*m.span(5))) for m in _ENTRY.finditer(page)]


class Surroundings:
    """What the examples find: a folder with a model in it, and names for its parts."""

    def __init__(self, folder: Path) -> None:
        v = relay.var("x", shape=(2, 3))
        module = relay.transform.InferType()(aotc.IRModule.from_expr(relay.Function([v], relay.nn.relu(v))))
        self.template = folder / "template"
        self.template.mkdir()
        model = aotc.compile(module, output=self.template / "net", target="c")
        onnx_model = parser.parse_model(f"{ONNX_HEADER}main (float[2, 3] x) => (float[2, 3] y) {{ y = Relu(x) }}")
        onnx.save(onnx_model, self.template / "net.onnx")
        (self.template / "net.relay").write_text(module.astext(), encoding="utf-8")
        np.save(self.template / "inputs.npy", np.zeros((2, 3), "float32"))
        x = np.zeros((2, 3), "float32")
        factory = relay.build(module, "llvm")
        executor = graph_executor.GraphModule(factory["default"](aotc.cpu()))
        executor.set_input("x", x)
        executor.run()
        self.names = {
            "module": module,
            "library": model.library,
            "session": aotc.load(model.path),
            "factory": factory,
            "executor": executor,
            "x": x,
            "traced": traced,
            "onnx_graph": parser.parse_graph,
            **{name: value for name, value in globals().items() if not name.startswith("_")},
        }

    def diagnostics(self, entry: Entry, folder: Path) -> tuple[Diagnostic, ...]:
        """What an example ends with, run in `folder`, which becomes a copy of the model's."""
        shutil.copytree(self.template, folder)
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.chdir(folder)
            patch.setenv("AOTC_REPLAY_DIR", str(folder))
            patch.setattr(os, "environ", dict(os.environ))
            try:
                self._run(entry, folder)
            except AotcError as error:
                return error.diagnostics
            except Exception as error:  # the test says which example it was
                return (Diagnostic(type(error).__name__, str(error)),)
            except SystemExit:
                rows = json.loads(out.getvalue())["errors"]
                return tuple(Diagnostic(r["code"], r["message"], None, tuple(r["notes"]), r["hint"]) for r in rows)
        return ()

    def _run(self, entry: Entry, folder: Path) -> None:
        match entry.language:
            case "relay":
                relay.fromtext(RELAY_HEADER + entry.source)
            case "onnx":
                relay.frontend.from_onnx(parser.parse_model(ONNX_HEADER + entry.source))
            case "sh":
                main([*shlex.split(entry.source)[1:], "--json"])
            case _:
                path = folder / "example.py"
                path.write_text(entry.source, encoding="utf-8")  # TorchScript reads the source of what it compiles
                model = onnx.load(folder / "net.onnx")
                scope = {**self.names, "folder": folder, "onnx_model": model, "__name__": "example"}
                if "tflite" in entry.code:
                    build = pytest.importorskip("tests.frontend_tflite.model_builder")
                    scope["tflite_model"] = build.Builder
                if "torch" in entry.source:
                    scope["torch"] = pytest.importorskip("torch")
                exec(compile(entry.source, str(path), "exec"), scope)


def traced(function: Callable[[Any], Any], *inputs: Any) -> Any:
    """A module of PyTorch that computes a function, traced."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    return torch.jit.trace(Module(), inputs)
