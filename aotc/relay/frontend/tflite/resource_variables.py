# SPDX-License-Identifier: Apache-2.0
"""Resource variables of a TFLite model: tensors that operators read and assign, and that runs keep.

variables = ResourceVariables({"x"})
k = variables.number("", "stream/states")           # as VAR_HANDLE does
variables.initial[k] = zeros
variables.assign(k, g.concat([variables.read(k), x], 1))
variables.state(["y"])       # a variable of @main, its last contents, and their names
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from aotc.ir import AotcError, Array, DType, TensorType, require
from aotc.relay.frontend.tflite.load import TfliteOperator, TfliteSubgraph
from aotc.relay.graph_api import Expr, Var, tensor_type_of
from aotc.relay.state_pair import StatePair


def container_and_name(handle: TfliteOperator) -> tuple[str, str]:
    """Return the container and the name of the variable to which an operator VAR_HANDLE refers."""

    def text(option: str) -> str:
        value = handle.option_value(option)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

    return text("Container"), text("SharedName")


def assigned_variables(graph: TfliteSubgraph) -> set[tuple[str, str]]:
    """Return the containers and names of the variables that operators of a subgraph assign."""
    handles = {op.outputs[0]: container_and_name(op) for op in graph.operators if op.name == "VAR_HANDLE"}
    assigned = (op.inputs[0] for op in graph.operators if op.name == "ASSIGN_VARIABLE")
    return {handles[tensor] for tensor in assigned if tensor in handles}


@dataclass
class ResourceVariables:
    """The resource variables of one conversion, by number.

    used_names    names of parameters of @main, which variables must not have
    initial       contents before the first run
    """

    used_names: set[str]
    initial: dict[int, Array] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _contents: dict[int, Expr] = field(default_factory=dict)
    _parameters: dict[int, Var] = field(default_factory=dict)

    def number(self, container: str, name: str) -> int:
        """Return the number of a variable by its container and name; equal names are one variable."""
        return self._numbers.setdefault((container, name), len(self._numbers))

    @property
    def count(self) -> int:
        """The number of variables."""
        return len(self._numbers)

    def name(self, number: int) -> str:
        """Return the name of a variable in the file."""
        return next(name for (_, name), k in self._numbers.items() if k == number)

    def types(self) -> dict[int, TensorType]:
        """Return the types of the variables that have contents."""
        first = {k: TensorType(array.shape, DType.from_numpy(array)) for k, array in self.initial.items()}
        return first | {k: tensor_type_of(x) for k, x in self._contents.items()}

    def read(self, number: int) -> Expr:
        """Return the contents of a variable: what was assigned last, or a parameter of @main for the
        contents before a run. Raises AotcError (code "tflite-variable") if there are none.
        """
        if number in self._contents:
            return self._contents[number]
        if number not in self.initial:
            text = f"resource variable {self.name(number)!r} is read before a value is assigned to it"
            hint = "convert the model with a signature that initializes its variables"
            raise AotcError("tflite-variable", text, hint=hint)
        if number not in self._parameters:
            # a * in the option --state stands for any text
            name = _unused_name(self.name(number).replace("*", "_") or "variable", self.used_names)
            self._parameters[number] = Var(name, self.types()[number])
        return self._parameters[number]

    def assign(self, number: int, value: Expr) -> None:
        """Replace the contents of a variable. Raises AotcError (code "tflite-variable") if their type
        changes.
        """
        before, after = self.types().get(number), tensor_type_of(value)
        text = f"resource variable {self.name(number)!r} holds {before}, but {after} is assigned to it"
        require("tflite-variable", before in (None, after), text)
        self._contents[number] = value

    def contents(self) -> dict[int, Expr]:
        """Return what has been assigned to variables so far, by number."""
        return dict(self._contents)

    def exchange_contents(self, new: Mapping[int, Expr]) -> dict[int, Expr]:
        """Replace all that has been assigned to variables, and return what it was."""
        before, self._contents = self._contents, dict(new)
        return before

    def initialize(self, assigned: Mapping[int, Array]) -> None:
        """Set the contents before the first run. Raises AotcError (code "tflite-variable") for a
        variable that was used or initialized before.
        """
        for number, array in assigned.items():
            used = number in self.initial or number in self._contents
            text = f"resource variable {self.name(number)!r} is initialized after its first use"
            require("tflite-variable", not used, text)
            self.initial[number] = array

    def parameters(self) -> list[Var]:
        """Return the parameters of @main for the contents of variables before a run."""
        return list(self._parameters.values())

    def unchanged_parameters(self) -> dict[str, Array]:
        """Return the contents of the parameters that no operator assigns, by name: they are
        constants.
        """
        return {self._parameters[k].name: self.initial[k] for k in self._unchanged_numbers()}

    def unchanged_variables(self) -> set[tuple[str, str]]:
        """Return the containers and names of the variables that operators read, but do not assign."""
        unchanged = set(self._unchanged_numbers())
        return {key for key, number in self._numbers.items() if number in unchanged}

    def _unchanged_numbers(self) -> Iterator[int]:
        return (k for k, v in self._parameters.items() if self._contents.get(k, v) is v)

    def state(self, output_names: Collection[str]) -> Iterator[tuple[Var, Expr, StatePair]]:
        """Yield the parameter, the contents after a run, and the state pair of each variable that
        runs change. `output_names` are the names of the model's outputs, which the names of the new
        contents differ from.
        """
        outputs = set(output_names)
        for number, variable in sorted(self._parameters.items()):
            last, initial = self._contents.get(number, variable), self.initial[number]
            if last is not variable:
                present = _unused_name(f"{variable.name}_out", outputs)
                yield variable, last, StatePair(variable.name, present, initial if initial.any() else None)


def _unused_name(name: str, used: set[str]) -> str:
    candidate, count = name, 1
    while candidate in used:
        count += 1
        candidate = f"{name}_{count}"
    used.add(candidate)
    return candidate
