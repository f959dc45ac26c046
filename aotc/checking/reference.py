# SPDX-License-Identifier: Apache-2.0
"""An independent execution of a model: of an ONNX model by ONNX Runtime where installed, else by onnx's reference
evaluator.

run = reference_runner(model)
run.name, run({"input": array})                  # "onnxruntime", {"output": array}
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aotc.ir.diagnostics import AotcError

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class Reference:
    """What a compiled model is compared with.

    run     outputs by name for inputs by name
    exact   outputs in double precision; None where these cannot be had
    """

    name: str
    run: Callable[[Arrays], Arrays]
    exact: Callable[[Arrays], Arrays | None]


@dataclass(frozen=True, slots=True)
class ReferenceRunner:
    """Another implementation, by name, ready to run."""

    name: str
    _session: Any
    outputs: tuple[str, ...]

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """The outputs by name; AotcError (code "reference") where the implementation cannot run the model."""
        try:
            values = self._session.run(list(self.outputs), dict(inputs))
        except Exception as error:  # of many kinds
            text = f"{self.name} cannot run the model on these inputs: {str(error).strip() or type(error).__name__}"
            hint = "integers of random inputs are 0 to 7; --inputs FILE.npz gives what the model takes"
            raise AotcError("reference", text, hint=hint) from error
        return {name: np.asarray(value) for name, value in zip(self.outputs, values, strict=True)}


def _onnxruntime_session(model: ModelProto) -> Any:
    """An ONNX Runtime session without its graph optimisations; None where it is absent or refuses the model."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # its own exception types; whatever it is, it cannot serve as the reference
        return None


def reference_runner(model: ModelProto) -> ReferenceRunner:
    """The best independent implementation at hand for `model`."""
    outputs = tuple(o.name for o in model.graph.output)
    session = _onnxruntime_session(model)
    if session is not None:
        return ReferenceRunner("onnxruntime", session, outputs)
    from onnx.reference import ReferenceEvaluator

    return ReferenceRunner("onnx.reference", ReferenceEvaluator(model), outputs)
