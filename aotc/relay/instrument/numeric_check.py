# SPDX-License-Identifier: Apache-2.0
"""Instrument that finds the pass that changes a program's results, by interpreting the program
after every pass.

with PassContext(opt_level=3, instruments=[NumericCheck({"x": x})]):
    optimize(module, target)             # AotcError: FoldScaleAxis changes the result: ...
"""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from aotc.ir import AotcError, DType, PassInfo, PassObserver, TensorType, TupleType, Type, flatten_nested_tuple
from aotc.relay.graph_api import IRModule, evaluate, type_of
from aotc.relay.op.infer_valid_model_input_values import infer_input_domains
from aotc.relay.valid_input_values_and_random_arrays import UNCONSTRAINED_DOMAIN, ValueDomain, random_array_in_domain

Array = np.ndarray[Any, Any]
#: Tolerances by dtype, relative to the largest value of the result; integers and bools must be
#: equal.
RELATIVE_TOLERANCE_BY_DTYPE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
#: Tolerance of 8- and 4-bit floats, relative to the largest value of the result.
NARROW_FLOAT_TOLERANCE = 0.3
#: Number of programs whose verdict is cached: the input of a pass is the output of the pass before
#: it.
MAX_CACHED_VERDICTS = 8


class NumericCheck(PassObserver):
    """Instrument that compares the result of @main after every pass with that of the program before
    the first pass.

    A program that is not the output of the last pass starts a new comparison, so one context may
    compile several programs.

    inputs      values of @main's parameters by name; missing ones are random, from `seed`
    tolerance   largest difference relative to the largest value of a result; None for the dtype's
                (RELATIVE_TOLERANCE_BY_DTYPE)

    Raise AotcError (code "numeric-check") after the first pass whose input is right and whose
    output is wrong; of nested passes, the innermost one. A program that the interpreter cannot run
    is an error, too.
    """

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, seed: int = 0, tolerance: float | None = None):
        super().__init__()
        self.inputs = dict(inputs or {})
        self.seed = seed
        self.tolerance = tolerance
        self._drawn: dict[str, Any] = {}
        self._expected: list[Array] = []
        self._outputs_by_module: dict[int, tuple[IRModule, list[str]]] = {}
        self.reset_observations()

    def reset_observations(self) -> None:
        self._last: IRModule | None = None  # the result of the last outermost pass

    def observe_pass(self, module: IRModule, info: PassInfo) -> Generator[None, IRModule, None]:
        outermost = not self.running
        if outermost and module is not self._last:
            self._record_expected_results(module)
        right = not self._differences_from_expected_results(module)
        new_module = yield
        problems = self._differences_from_expected_results(new_module)
        if right and problems:
            text = f"{info.name} changes the result: {'; '.join(problems)}"
            hint = f"dump_ir shows the program before and after it; inputs not given are random, of seed {self.seed}"
            raise AotcError("numeric-check", text, hint=hint)
        if outermost:
            self._last = new_module

    def _record_expected_results(self, module: IRModule) -> None:
        """Interpret a new program and store its results as those that every pass must preserve."""
        rng = np.random.default_rng(self.seed)
        random_params = [p for p in module.main.params if p.name not in self.inputs]
        domains = infer_input_domains(module.main)
        self._drawn = {
            p.name: _random_value_of_type(type_of(p), rng, domains.get(p.name, UNCONSTRAINED_DOMAIN))
            for p in random_params
        }
        self._outputs_by_module = {}
        self._expected = _evaluate_module_outputs(module, {**self._drawn, **self.inputs})

    def _differences_from_expected_results(self, module: IRModule) -> list[str]:
        """Return descriptions of the differences between a program's results and the expected ones.

        The verdicts on the last few programs are cached.
        """
        if id(module) not in self._outputs_by_module:
            values = {**self._drawn, **self.inputs}  # a pass may have bound some parameters
            left = {p.name: values[p.name] for p in module.main.params if p.name in values}
            expected, actual = self._expected, _evaluate_module_outputs(module, left)
            pairs = enumerate(zip(expected, actual, strict=False))
            differences = [problem for k, pair in pairs if (problem := self._describe_tensor_difference(k, *pair))]
            if len(actual) != len(expected):
                differences.append(f"it gives {len(actual)} tensors instead of {len(expected)}")
            self._outputs_by_module[id(module)] = (module, differences)
            while len(self._outputs_by_module) > MAX_CACHED_VERDICTS:
                del self._outputs_by_module[next(iter(self._outputs_by_module))]
        return self._outputs_by_module[id(module)][1]

    def _describe_tensor_difference(self, output_index: int, expected: Array, actual: Array) -> str:
        """Return the difference between an expected and an actual tensor; "" if it is within the
        tolerance.
        """
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            was, now = (TensorType(a.shape, DType.from_numpy(a)) for a in (expected, actual))
            return f"output {output_index} is {now} instead of {was}"
        dtype = DType.from_numpy(expected)
        if not dtype.is_float:
            wrong = int(np.count_nonzero(expected != actual))
            return f"{wrong} of {expected.size} elements of output {output_index} differ" if wrong else ""
        a, b = expected.astype(np.float64), actual.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(all="ignore"):
            difference = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
        scale = float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0)) or 1.0
        error = float(np.max(difference, initial=0.0)) / scale
        limit = (
            self.tolerance
            if self.tolerance is not None
            else RELATIVE_TOLERANCE_BY_DTYPE.get(dtype, NARROW_FLOAT_TOLERANCE)
        )
        return f"output {output_index} differs by {error:.1e} of its largest value" if error > limit else ""


def _evaluate_module_outputs(module: IRModule, params: Mapping[str, Any]) -> list[Array]:
    with np.errstate(all="ignore"):
        return [*map(np.asarray, flatten_nested_tuple(evaluate(module, params=params)))]


def _random_value_of_type(ty: Type, rng: np.random.Generator, domain: ValueDomain) -> Any:
    """Return a random value of a type, with tensor elements from the domain of the parameter."""
    match ty:
        case TupleType(fields=fields):
            return tuple(_random_value_of_type(f, rng, domain) for f in fields)
        case TensorType() if ty.is_static:
            return random_array_in_domain(rng, ty, domain)
        case _:
            raise AotcError("numeric-check", f"cannot draw a random value of type {ty}", hint="give the input")
