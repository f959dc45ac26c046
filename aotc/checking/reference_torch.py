# SPDX-License-Identifier: Apache-2.0
"""Reference execution of an exported PyTorch program by torch itself, also in float64.  Imports
torch.

    reference = make_torch_reference(program, ["output"])
    reference.run({"x": array})["output"]; reference.exact({"x": array})
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_aggregate

from aotc.checking.evaluation_memory_budget import DEFAULT_MEMORY_BYTES, EVALUATION_BYTES_PER_RESULT_BYTE, MemoryBudget
from aotc.checking.input_generation import Arrays
from aotc.checking.model_reference_runs import Reference, wrap_runner_to_return_none_on_error

#: Kinds of outputs that are new contents of buffers and parameters.
_CHANGED_BUFFER_KINDS: Final = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def make_torch_reference(
    program: Any, output_names: Sequence[str], max_float64_bytes: int = DEFAULT_MEMORY_BYTES
) -> Reference:
    """Return a Reference that runs a functional ExportedProgram in torch; `output_names` are the
    output names, in order.

    max_float64_bytes    largest number of bytes that a float64 evaluation may take
    """
    run, exact = (
        partial(_run_exported_program, kind, program, output_names)
        for kind in (torch.fx.Interpreter, partial(_Float64Interpreter, memory=max_float64_bytes))
    )
    return Reference(f"torch {torch.__version__}", run, wrap_runner_to_return_none_on_error(exact))


class _Float64Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
    """Interpreter of a torch.fx program with float64 in place of float32, in tensors and in dtype
    arguments of operators.

    memory    largest number of bytes of parameters, values and temporary arrays; AotcError (code
              "memory") if exceeded
    """

    def __init__(self, module: Any, memory: int = DEFAULT_MEMORY_BYTES) -> None:
        super().__init__(module)
        self._memory = memory
        self._arguments: list[Any] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        budget = MemoryBudget(self._memory)
        for value in args:
            wide = 2 if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else 1
            budget.require_bytes_fit_in_memory_budget("the parameters", wide * getattr(value, "nbytes", 0))
            self._arguments.append(_widen_float32_tensor(value))
            budget.add_buffers_of_held_value(self._arguments[-1])
        return super().run(*self._arguments, **kwargs)

    def run_node(self, n: Any) -> Any:
        if n.op == "call_function":
            budget = MemoryBudget(self._memory)
            budget.add_buffers_of_held_value([*self._arguments, *self.env.values()])
            budget.require_bytes_fit_in_memory_budget(
                f"node {n.name!r} ({n.target})", _estimated_float64_bytes_of_node(n)
            )
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _widen_float32_tensor(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(
            target, map_aggregate(args, _widen_float32_dtype), map_aggregate(kwargs, _widen_float32_dtype)
        )


def _estimated_float64_bytes_of_node(node: Any) -> int:
    """Return the estimated bytes of the arrays that a torch.fx node allocates in float64, from the
    shapes in its metadata.

    For a convolution, PyTorch in float64 copies the windows (im2col) of all images, for one group
    at a time.
    """
    node_value = node.meta.get("val")
    results = [
        v
        for v in (node_value if isinstance(node_value, (list, tuple)) else [node_value])
        if isinstance(v, torch.Tensor)
    ]
    sizes = [v.numel() * (8 if v.dtype == torch.float32 else v.element_size()) for v in results]
    if "convolution" in str(node.target) or ".conv" in str(node.target):
        weight = node.args[1].meta["val"]
        places = max(results[0][:, 0].numel(), node.args[0].meta["val"][:, 0].numel())
        return int(2 * sum(sizes) + 8 * places * weight.numel() // weight.shape[0])
    return int(EVALUATION_BYTES_PER_RESULT_BYTE * sum(sizes))


def _widen_float32_tensor(value: Any) -> Any:
    """Return a float32 tensor as float64, and any other value unchanged."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.double()
    return value


def _widen_float32_dtype(value: Any) -> Any:
    """Return torch.float64 for torch.float32, and any other value unchanged."""
    return torch.float64 if value is torch.float32 else value


def _run_exported_program(
    interpreter_class: Callable[[Any], torch.fx.Interpreter], program: Any, output_names: Sequence[str], inputs: Arrays
) -> Arrays:
    """Return the outputs of an exported program by name for inputs by name.

    Parameters and constants come from the program, as do inputs that are not in `inputs`. The new
    contents of buffers and inputs that the program changes follow its results.

    interpreter_class    class of the torch.fx interpreter, for instance the float64 one
    """
    state = {**program.constants, **program.state_dict}
    specs = program.graph_signature.output_specs
    kinds = (OutputKind.USER_OUTPUT,), (*_CHANGED_BUFFER_KINDS, OutputKind.USER_INPUT_MUTATION)
    ordered = [k for kind in kinds for k, spec in enumerate(specs) if spec.kind in kind]
    # an output with the new contents of a buffer has the name of the input of the imported module, and "_out"
    changed = {
        specs[k].target: name.removesuffix("_out")
        for k, name in zip(ordered, output_names, strict=True)
        if specs[k].kind in _CHANGED_BUFFER_KINDS
    }

    def argument_for_input_spec(spec: Any) -> Any:
        name = spec.arg.name if spec.kind == InputKind.USER_INPUT else changed.get(spec.target)
        if name in inputs:
            return torch.from_numpy(np.array(inputs[name]))
        if spec.kind == InputKind.USER_INPUT:
            return spec.arg.value
        return state[spec.target].clone() if spec.target in changed else state[spec.target]

    with torch.no_grad():
        values = interpreter_class(program.graph_module).run(
            *map(argument_for_input_spec, program.graph_signature.input_specs)
        )
    return {name: np.asarray(values[k]) for k, name in zip(ordered, output_names, strict=True)}
