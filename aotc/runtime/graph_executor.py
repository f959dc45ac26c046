# SPDX-License-Identifier: Apache-2.0
"""Relay's executor interface over a compiled library: set inputs, run the model, get outputs.

module = GraphModule(library["default"](aotc.cpu()))
module.set_input("data", array)
module.run()
module.get_output(0).numpy()
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    AotcTypeError,
    Device,
    NDArray,
    TensorType,
    convert_argument_to_array,
    frozen,
    require_usable_device,
)
from aotc.runtime.kernel_by_kernel_execution import GraphMachine
from aotc.runtime.module import CompiledLibrary
from aotc.runtime.params import load_param_dict
from aotc.runtime.session import Session
from aotc.runtime.tensor_info import TensorInfo, convert_and_check_inputs, diagnose_unknown_names, raise_if_problems

_STATISTICS_NAMES: Final = ("mean", "median", "max", "min", "std")


@frozen
class BenchmarkResult:
    """Times of repeated runs.

    results   seconds per run, one value for each repetition
    mean, median, max, min, std   statistics over the repetitions; std is the standard deviation
    """

    results: tuple[float, ...]
    mean = property(lambda self: statistics.fmean(self.results))
    median = property(lambda self: statistics.median(self.results))
    max = property(lambda self: max(self.results))
    min = property(lambda self: min(self.results))
    std = property(lambda self: statistics.pstdev(self.results))

    def __str__(self) -> str:
        heads = " ".join(f"{name} (ms)".center(12) for name in _STATISTICS_NAMES)
        values = " ".join(f"{1e3 * getattr(self, name):.4f}".center(12) for name in _STATISTICS_NAMES)
        return f"Execution time summary:\n{heads}\n{values}\n"


class BuiltInConstant(NDArray):
    """A constant of a compiled library under its name in the graph; setting it as an input has no
    effect.
    """

    def copyfrom(self, source: Any) -> NDArray:
        """Raise AotcError: constants of a compiled library cannot be changed."""
        raise AotcError("ndarray", "constants of a compiled library cannot be changed", hint="build the model anew")


def _convert_integer_input(value: Any, info: TensorInfo) -> Any:
    """Convert an integer array to the input's type if it can hold all values; return other values
    unchanged.
    """
    return (
        convert_argument_to_array(value, TensorType(info.shape, info.dtype)) if hasattr(value, "__array__") else value
    )


def create(graph_json_str: str, libmod: CompiledLibrary, device: Device) -> GraphModule:
    """Return the executor of a library; its schedule is compiled in, so the graph text is not read.

    Raises AotcTypeError if `libmod` is not a compiled library.
    """
    if not isinstance(libmod, CompiledLibrary):
        raise AotcTypeError("executor", f"expected a compiled library, not {type(libmod).__name__}")
    return GraphModule(libmod[libmod.name](device))


class GraphModule:
    """A model with buffers for its inputs and outputs, in Relay's interface.

    Inputs keep their values between runs.  Raises AotcTypeError if `module` is not an executor.
    """

    def __init__(self, module: Session | GraphMachine) -> None:
        if not isinstance(module, (Session, GraphMachine)):
            hint = 'GraphModule(lib["default"](device))'
            raise AotcTypeError("executor", f"expected an executor, not {type(module).__name__}", hint=hint)
        self._inputs = module.get_inputs()
        self._outputs = module.get_outputs()
        self._arrays = {i.name: np.zeros(i.shape, i.dtype.numpy) for i in self._inputs}
        self._binding = module.bind(self._arrays)
        self._missing = dict.fromkeys(self._arrays)
        self._has_run = False

    def set_input(self, key: str | int | None = None, value: Any = None, /, **params: Any) -> None:
        """Set one input, by name or position, and those given as keywords; values are copied.

        An integer input accepts another integer type if its values fit.  Constants from
        `get_params` are ignored, because the library contains them.  On any error nothing is set,
        and AotcError lists unknown names and wrong shapes and dtypes.
        """
        given = dict(params)
        if key is not None:
            name = key if isinstance(key, str) else _require_tensor_info_at("input", self._inputs, key).name
            if name in given:
                raise AotcError("input", f"input {name!r} is given twice")
            given[name] = value
        self._check_and_set_inputs(given)

    def load_params(self, params_bytes: bytes) -> None:
        """Set inputs from values saved by `save_param_dict`; raises AotcError as `set_input` does."""
        self._check_and_set_inputs(load_param_dict(params_bytes))

    def _check_and_set_inputs(self, values_by_name: Mapping[str, Any]) -> None:
        known = [i for i in self._inputs if i.name in values_by_name]
        arrays, problems = convert_and_check_inputs(
            {i.name: _convert_integer_input(values_by_name[i.name], i) for i in known}, known
        )
        names = [name for name, value in values_by_name.items() if not isinstance(value, BuiltInConstant)]
        raise_if_problems([*diagnose_unknown_names("input", names, self._inputs), *problems])
        for info, array in zip(known, arrays, strict=True):
            np.copyto(self._arrays[info.name], array)
            self._missing.pop(info.name, None)

    def run(self, **inputs: Any) -> None:
        """Set the given inputs and run the model; AotcError if an input was never set."""
        self.run_with_inputs(inputs)

    def run_with_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Set inputs from a mapping and run the model; unlike `run`, this allows any input names."""
        self._check_and_set_inputs(inputs)
        if self._missing:
            names = ", ".join(map(repr, self._missing))
            raise AotcError("input-missing", f"not set: {names}", hint="set_input(name, value), or run(name=value)")
        self._binding.run()
        self._has_run = True

    def get_output(self, index: int, out: NDArray | None = None) -> NDArray:
        """Return an output of the model's last run, as a new tensor or copied into `out` (equal
        shape and dtype).
        """
        info = _require_tensor_info_at("output", self._outputs, index)
        if not self._has_run:
            raise AotcError("not-run", "the model has no outputs before its first run")
        return _copy_to_ndarray(self._binding.outputs[info.name], out)

    def get_input(self, index: int | str, out: NDArray | None = None) -> NDArray:
        """Return the value of an input, by position or name; AotcError if it was never set."""
        name = index if isinstance(index, str) else _require_tensor_info_at("input", self._inputs, index).name
        raise_if_problems(list(diagnose_unknown_names("input", [name], self._inputs)))
        if name in self._missing:
            raise AotcError("input-missing", f"not set: {name!r}")
        return _copy_to_ndarray(self._arrays[name], out)

    def get_num_inputs(self) -> int:
        """Return the number of inputs of the model."""
        return len(self._inputs)

    def get_num_outputs(self) -> int:
        """Return the number of outputs of the model."""
        return len(self._outputs)

    def get_input_index(self, name: str) -> int:
        """Return the position of a model input by name; -1 if there is none of that name."""
        return next((k for k, info in enumerate(self._inputs) if info.name == name), -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return two dicts with the shapes and the dtypes of the model's inputs by name."""
        return {i.name: tuple(i.shape) for i in self._inputs}, {i.name: str(i.dtype) for i in self._inputs}

    def benchmark(
        self,
        device: Device | None = None,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float | None = None,
        end_to_end: bool = False,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Time the model on the inputs set before and those given here.

        repeat          number of repetitions, each of which gives one time
        number          runs per repetition, increased until one takes `min_repeat_ms` milliseconds
        end_to_end      include setting the given inputs and copying the outputs in the time

        Raises AotcError for counts below 1, a `func_name` other than "run", and a device that does
        not exist.
        """
        require_usable_device(device, allow_cuda=True)
        if func_name != "run":
            raise AotcError("benchmark", f"there is no function {func_name!r} to time", hint='only "run"')
        require_positive_counts(repeat, number)
        self.run(**inputs)

        def set_run_and_get_outputs() -> None:
            self.run(**inputs)
            for k in range(self.get_num_outputs()):
                self.get_output(k)

        return benchmark_function(
            set_run_and_get_outputs if end_to_end else self._binding.run, repeat, number, min_repeat_ms
        )


def require_positive_counts(repeat: int, number: int) -> None:
    """Raise AotcError (code "benchmark") if the number of repetitions or of runs is below 1."""
    if repeat < 1 or number < 1:
        raise AotcError("benchmark", f"repeat and number must be at least 1, not {repeat} and {number}")


def benchmark_function(
    function: Callable[[], object], repeat: int, number: int, min_repeat_ms: float | None = None
) -> BenchmarkResult:
    """Time a function `repeat` times; each time is the average over `number` calls.

    `number` is increased until the calls take `min_repeat_ms` milliseconds.  Raises AotcError for
    counts below 1.
    """
    require_positive_counts(repeat, number)

    def time_all_calls_in_seconds() -> float:
        start = time.perf_counter()
        for _ in range(number):
            function()
        return time.perf_counter() - start

    if min_repeat_ms:
        once = max(time_all_calls_in_seconds() / number, 1e-9)
        number = max(number, math.ceil(min_repeat_ms / 1e3 / once))
    return BenchmarkResult(tuple(time_all_calls_in_seconds() / number for _ in range(repeat)))


def _require_tensor_info_at(role: str, infos: list[TensorInfo], index: object) -> TensorInfo:
    if isinstance(index, bool) or not isinstance(index, int):
        raise AotcTypeError(f"{role}-index", f"the position of an {role} is an integer, not {type(index).__name__}")
    if not 0 <= index < len(infos):
        raise AotcError(f"{role}-index", f"there is no {role} {index}: the model has {len(infos)}")
    return infos[index]


def _copy_to_ndarray(array: np.ndarray[Any, Any], out: NDArray | None) -> NDArray:
    if out is not None and not isinstance(out, NDArray):
        raise AotcTypeError("ndarray", f"out must be an NDArray, not {type(out).__name__}")
    return NDArray(array) if out is None else out.copyfrom(array)
