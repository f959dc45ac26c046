# SPDX-License-Identifier: Apache-2.0
"""An exported program of PyTorch, run by torch itself, also in double precision.  Imports torch.

reference = torch_reference(program, ["output"])
reference.run({"x": array})["output"]; reference.exact({"x": array})
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_aggregate

from aotc.checking.input_generation import Arrays
from aotc.checking.reference import Reference, or_none


def torch_reference(program: Any, names: Sequence[str]) -> Reference:
    """torch on an ExportedProgram; `names` are those of the outputs, in order."""
    run, exact = (partial(_run, kind, program, names) for kind in (torch.fx.Interpreter, _InDouble))
    return Reference(f"torch {torch.__version__}", run, or_none(exact))


class _InDouble(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a program with float64 for every float32: arguments, and data types among operators' arguments."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return super().run(*map(_wide, args), **kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(target, map_aggregate(args, _wide_dtype), map_aggregate(kwargs, _wide_dtype))


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.double()
    return value


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _run(kind: type[torch.fx.Interpreter], program: Any, names: Sequence[str], inputs: Arrays) -> Arrays:
    """The outputs for inputs by name; parameters, and inputs that are no tensors, are the program's."""
    state = {**program.constants, **program.state_dict}

    def argument(spec: Any) -> Any:
        if spec.kind != InputKind.USER_INPUT:
            return state[spec.target]
        name = spec.arg.name
        return torch.from_numpy(np.array(inputs[name])) if name in inputs else spec.arg.value

    with torch.no_grad():
        values = kind(program.graph_module).run(*map(argument, program.graph_signature.input_specs))
    specs = program.graph_signature.output_specs
    kept = [v for v, spec in zip(values, specs, strict=True) if spec.kind == OutputKind.USER_OUTPUT]
    return {name: np.asarray(value) for name, value in zip(names, kept, strict=True)}
