# SPDX-License-Identifier: Apache-2.0
"""Operands of a model that are sizes: integers in its inputs on which shapes depend, such as the input `shape` of
Reshape. Shapes of results are formulas of these elements.

with collect_size_operands(inputs, ranges) as operands:
    with operand_bounds(OperandBounds(0, 24)):
        size_values(concatenate((shape, [-1])))     # [shape[0], shape[1], -1]
operands.operands, operands.definitions             # elements that a run reads, and sizes that it computes from them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    Dim,
    DimRange,
    Op,
    SymDim,
    TensorType,
    current_span,
    frozen,
    interval_of_dim,
    option_text,
    require,
)
from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.size_operands import (
    SIZE_DEFINITIONS_ATTRIBUTE,
    SIZE_OPERANDS_ATTRIBUTE,
    SizeDefinition,
    SizeOperand,
    bits_of_float32,
)
from aotc.relay.graph_api import Call, Expr, TupleGetItem, Var, tensor_type_of

#: Name under which callers state one range for all elements and sizes that nothing else bounds.
ALL_OPERANDS: Final = "[*]"
#: Start of the names of sizes that a run finds; a number follows: found0, found1, ...
FOUND_SIZE_PREFIX: Final = "found"
#: Largest number of elements of an input that are sizes.
MAX_OPERAND_ELEMENTS: Final = 64


def is_name_of_found_size(name: str) -> bool:
    """Return True for a name that a size which a run finds may have, such as "found0"."""
    return name.startswith(FOUND_SIZE_PREFIX) and name.removeprefix(FOUND_SIZE_PREFIX).isdecimal()


def is_name_of_operand_range(name: str, inputs: Collection[str]) -> bool:
    """Return True for the name of an element of an input, such as "shape[0]", of all of its elements,
    "shape[*]", or of all elements of all inputs, "[*]".
    """
    owner, _, rest = name.rpartition("[")
    return rest.endswith("]") and (rest == "*]" or rest[:-1].isdecimal()) and (owner in inputs or name == "[*]")


@frozen
class OperandBounds:
    """The values that an operand may have where it is used.

    least      the smallest value; None if it is as far below 0 as the largest one is above
    most       the largest value; None if the caller of the compiler must state it
    clipped    True if other values count as the nearest one
    truncated  True if floats count as the integer next to them towards 0; else they are no sizes
    """

    least: int | None
    most: int | None
    clipped: bool = False
    truncated: bool = False


@dataclass
class SizeOperands:
    """The operands of a model that is being converted.

    inputs       inputs of the model, by name
    ranges       ranges that the caller of the compiler states: for one element of an input, named as "shape[0]"; for
                 all elements of an input that have no range of their own, "shape[*]"; for everything else that
                 nothing bounds, "[*]"; and for a size that a run finds, "found0"
    operands     elements of inputs that are sizes, by name of the size
    definitions  sizes that a run computes once from other sizes, each behind those that it depends on
    found        calls that find sizes in a run, by name of the size
    pending      names of sizes of a run whose calls are being made, or have been
    """

    inputs: Mapping[str, Var]
    ranges: Mapping[str, DimRange | int]
    operands: dict[str, SizeOperand] = field(default_factory=dict)
    definitions: list[SizeDefinition] = field(default_factory=list)
    found: dict[str, Expr] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)

    def values_of_input(self, variable: Var, bounds: OperandBounds | None) -> np.ndarray[Any, Any] | None:
        """Return the elements of an input as dimensions; None if they cannot be sizes."""
        ty = variable.checked_type
        if self.inputs.get(variable.name) is not variable or not isinstance(ty, TensorType) or not ty.is_static:
            return None
        is_truncated = bounds is not None and bounds.truncated and ty.dtype in ("float32", "float64")
        if not (ty.dtype.is_integer or is_truncated) or ty.dtype == "uint64" or ty.numel > MAX_OPERAND_ELEMENTS:
            return None
        values = np.empty(ty.static_shape, object)
        flat = [self._operand(variable.name, k, bounds) for k in range(ty.numel)]
        if any(v is None for v in flat):
            return None
        values.reshape(-1)[:] = flat
        return values

    def _operand(self, name: str, element: int, bounds: OperandBounds | None) -> Dim | None:
        stated = self.ranges.get(f"{name}[{element}]", self.ranges.get(f"{name}[*]"))
        if bounds is not None and bounds.most is not None and (stated is None or bounds.clipped):
            least, most = -bounds.most if bounds.least is None else bounds.least, bounds.most
        else:
            usual = self.ranges.get(ALL_OPERANDS)
            if stated is None and usual is None:
                if bounds is None:
                    return None
                raise _no_bound_error(name, element)
            least, most = _ends(stated if stated is not None else usual)
            if bounds is not None:
                # what bounds all operands does not say that they are not negative
                if bounds.least is None:
                    least = -most if stated is None else least
                else:
                    least = bounds.least if stated is None else max(least, bounds.least)
                most = most if bounds.most is None else min(most, bounds.most)
        is_clipped = bounds is not None and bounds.clipped
        if not is_clipped:
            # a run has no value that another operator refuses
            for other in self.operands.values():
                if (other.input, other.element) == (name, element) and not other.clipped and not other.is_bits:
                    least, most = max(least, other.least), min(most, other.most)
        if least > most:
            raise AotcError("graph-dim", f"element {element} of the input {name!r} has no value in its range")
        operand = SizeOperand(name, element, least, most, is_clipped)
        known = self.operands.get(operand.name)
        if known is None or operand.most < known.most:
            self.operands[operand.name] = operand
        return operand.dim

    def bits_of_float(self, variable: Var, element: int) -> Dim | None:
        """Return the bits of an element of a float32 input, whose values are not negative; None if it is no
        input of the model, or of another type.
        """
        ty = variable.checked_type
        if self.inputs.get(variable.name) is not variable or not isinstance(ty, TensorType) or not ty.is_static:
            return None
        if ty.dtype != "float32" or ty.numel > MAX_OPERAND_ELEMENTS:
            return None
        name = variable.name
        stated = self.ranges.get(f"{name}[{element}]", self.ranges.get(f"{name}[*]", self.ranges.get(ALL_OPERANDS)))
        if stated is None:
            raise _no_bound_error(name, element)
        least, most = map(bits_of_float32, _ends(stated))
        operand = SizeOperand(name, element, least, most, is_bits=True)
        self.operands[operand.name] = operand
        return operand.dim

    def define_by_function(self, function: str, bits: Dim, factor: Dim, least: int, most: int) -> Dim:
        """Return a size that a run computes once, from `least` to `most`, by a function of a float32.

        function    NUMERATOR, DENOMINATOR or PRODUCT of `aotc.ir.size_operands`
        bits        the bits of the float, as an integer
        factor      the integer by which PRODUCT multiplies the float; the other functions do not use it
        """
        formulas = [str(d) if isinstance(d, int) else d.name for d in (factor, bits)]
        return self._defined_size(formulas[0], least, most, function, formulas[1])

    def define(self, value: Dim, least: int, most: int) -> Dim:
        """Return a size that a run computes once, with a short name, in place of a formula whose values are
        known to be from `least` to `most`, which are at least 0, or of a size that may have other values. A run
        checks that it has one of these.
        """
        if not isinstance(value, SymDim) or not value.name:
            return value
        low, high = interval_of_dim(value)
        if formula_of_name(value.name).symbols == {value.name} and least <= low and high <= most:
            return value
        return self._defined_size(value.name, least, most)

    def _defined_size(self, formula: str, least: int, most: int, function: str = "", float_bits: str = "0") -> Dim:
        what = formula, function, float_bits
        known = next((d for d in self.definitions if (d.formula, d.function, d.float_bits) == what), None)
        if known is None:
            name = self._unused_name("s", len(self.definitions))
            span = current_span()
            node = "" if span is None else span.node
            known = SizeDefinition(name, formula, least, most, node, function, float_bits)
            self.definitions.append(known)
        return SymDim(known.name, most, least)

    def value_at_bounds(self, value: Dim) -> int | None:
        """Return a number for the largest sizes; None if not all of its sizes have bounds, or a run finds one."""
        if not isinstance(value, SymDim):
            return value
        dims = (d for v in self.inputs.values() for d in _symbolic_dims_of(v))
        sizes = {d.name: d.upper for d in dims if d.upper is not None and d.symbols == {d.name}}
        sizes.update((o.name, o.most - o.least) for o in self.operands.values())
        for definition in self.definitions:
            if definition.symbols <= sizes.keys() and (size := definition.value(sizes)) is not None:
                sizes[definition.name] = size
        is_known = bool(value.name) and value.symbols <= sizes.keys()
        return formula_of_name(value.name).evaluate(sizes) if is_known else None

    @property
    def bounded_sizes(self) -> set[str]:
        """The names of the sizes whose largest value is known."""
        dims = (d for v in self.inputs.values() for d in _symbolic_dims_of(v))
        of_inputs = {symbol for d in dims if d.upper is not None for symbol in d.symbols}
        return {*of_inputs, *self.operands, *self.found, *(d.name for d in self.definitions)}

    @property
    def module_attributes(self) -> dict[str, tuple[Any, ...]]:
        """The attributes of the module that state the operands, and the sizes that a run computes from others."""
        return {
            SIZE_OPERANDS_ATTRIBUTE: tuple(operand.row for operand in self.operands.values()),
            SIZE_DEFINITIONS_ATTRIBUTE: tuple(definition.row for definition in self.definitions),
        }

    def _unused_name(self, prefix: str, number: int) -> str:
        """Return a name for a size that no size of the inputs has."""
        taken = (
            {s for v in self.inputs.values() for s in _symbols_of(v)}
            | set(self.operands)
            | set(self.found)
            | self.pending
        )
        taken.update(d.name for d in self.definitions)
        return next(n for k in range(number, number + len(taken) + 1) if (n := f"{prefix}{k}") not in taken)

    def find(self, most: int | None, call: Callable[[SymDim], Expr]) -> None:
        """Add a size that a call finds in each run.

        most    the largest value; None if the caller of the compiler must state a range for the name of the size. A
                range that the caller states also makes a known largest value smaller.
        call    function that returns the call that finds the size, for the new size from 0 to its largest value

        Raise AotcError (code "graph-operand-bound") if nothing bounds the size, and (code "graph-dim") for a
        range that does not begin at 0.
        """
        name = self._unused_name(FOUND_SIZE_PREFIX, len(self.found))
        stated = self.ranges.get(name)
        if stated is None and most is None:
            stated = self.ranges.get(ALL_OPERANDS)
            if stated is None:
                hint = "give its range, for example: " + option_text("dims", {name: (0, 64)})
                raise AotcError("graph-operand-bound", f"nothing bounds the size {name}, which a run finds", hint=hint)
        elif stated is not None:
            is_range = isinstance(stated, DimRange) and (stated.least, stated.step) == (0, 1)
            hint = "for example: " + option_text("dims", {name: (0, 64)})
            text = f"the range of the size {name}, which a run finds, must begin at 0, it is {stated}"
            require("graph-dim", is_range, text, hint=hint)
        if stated is not None:
            bound = _ends(stated)[1]
            most = bound if most is None else min(most, bound)
        self.pending.add(name)  # the call may find further sizes
        self.found[name] = call(SymDim(name, most))

    def require_known_names_of_found_sizes(self) -> None:
        """Raise AotcError (code "graph-dim") if the caller of the compiler states the range of a size that no call
        finds.
        """
        for name in self.ranges:
            if is_name_of_found_size(name) and name not in self.found:
                hint = f"sizes that a run finds: {', '.join(self.found)}" if self.found else ""
                raise AotcError("graph-dim", f"no operator finds a size called {name!r}", hint=hint)


def _ends(allowed: DimRange | int | None) -> tuple[int, int]:
    if isinstance(allowed, DimRange):
        return allowed.least, allowed.most
    assert allowed is not None
    return allowed, allowed


def _symbolic_dims_of(variable: Var) -> list[SymDim]:
    ty = variable.checked_type
    return [d for d in ty.shape if isinstance(d, SymDim)] if isinstance(ty, TensorType) else []


def _symbols_of(variable: Var) -> frozenset[str]:
    return frozenset(s for d in _symbolic_dims_of(variable) for s in d.symbols)


def _no_bound_error(name: str, element: int) -> AotcError:
    text = f"nothing bounds element {element} of the input {name!r}, on which a shape depends"
    hint = "give its range, for example: " + option_text("dims", {f"{name}[{element}]": (0, 64)})
    return AotcError("graph-operand-bound", text, hint=hint)


def unbounded_size_error(dim: SymDim) -> AotcError:
    """Return the error for an operator that needs the largest value of a size without an upper bound."""
    operands = _OPERANDS.get()
    names = sorted(dim.symbols - (set() if operands is None else operands.bounded_sizes))
    text = f"nothing bounds the size {dim.name}, of which this operator needs the largest value"
    hint = "give the range, for example: " + option_text("dims", dict.fromkeys(names, (1, 64))) if names else ""
    return AotcError("graph-operand-bound", text, hint=hint)


_OPERANDS: Final[ContextVar[SizeOperands | None]] = ContextVar("aotc_size_operands", default=None)
_BOUNDS: Final[ContextVar[OperandBounds | None]] = ContextVar("aotc_operand_bounds", default=None)


@contextmanager
def collect_size_operands(inputs: Mapping[str, Var], ranges: Mapping[str, DimRange | int]) -> Iterator[SizeOperands]:
    """Context manager: yield the operands that are found while a model is converted."""
    operands = SizeOperands(inputs, ranges)
    token = _OPERANDS.set(operands)
    try:
        yield operands
    finally:
        _OPERANDS.reset(token)


@contextmanager
def without_size_operands() -> Iterator[None]:
    """Return a context in which elements of inputs are not treated as sizes of a run."""
    token = _OPERANDS.set(None)
    try:
        yield
    finally:
        _OPERANDS.reset(token)


@contextmanager
def operand_bounds(bounds: OperandBounds | None) -> Iterator[None]:
    """Context manager: elements of inputs are operands with these bounds."""
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


def are_floats_truncated() -> bool:
    """Return True where elements of inputs of float types are operands by their truncated values."""
    bounds = _BOUNDS.get()
    return bounds is not None and bounds.truncated


def operand_values(variable: Var, moved_only: bool) -> np.ndarray[Any, Any] | None:
    """Return the elements of an input of the model as dimensions; None for other variables.

    moved_only    False if something is computed of the elements, so that bounds do not concern them
    """
    operands = _OPERANDS.get()
    if operands is None:
        return None
    return operands.values_of_input(variable, _BOUNDS.get() if moved_only else None)


def define_size(value: Dim, least: int, most: int) -> Dim:
    """Return a size with a short name in place of a formula; see `SizeOperands.define`."""
    operands = _OPERANDS.get()
    return value if operands is None else operands.define(value, least, most)


def value_at_bounds(value: Dim) -> int | None:
    """Return a number for the largest sizes; see `SizeOperands.value_at_bounds`."""
    operands = _OPERANDS.get()
    return None if operands is None else operands.value_at_bounds(value)


def find_size(most: int | None, call: Callable[[SymDim], Expr]) -> None:
    """Add a size that a call finds in each run; see `SizeOperands.find`. Raise AotcError (code "graph-dynamic") if
    the sizes of this model must be known when it is compiled.
    """
    operands = _OPERANDS.get()
    if operands is None:
        text = "the shape of the result depends on values that are computed at run time, which is not supported"
        hint = "export the module by torch.export, or compute a result whose shape is known"
        raise AotcError("graph-dynamic", text, hint=hint)
    operands.find(most, call)


def follows_from_found_sizes(dim: Dim) -> bool:
    """Return True for an extent that is known only once a run has found a size: it has no value before."""
    if not isinstance(dim, SymDim):
        return False
    operands = _OPERANDS.get()
    names = set() if operands is None else set(operands.found)
    for definition in () if operands is None else operands.definitions:
        names |= {definition.name} if definition.symbols & names else set()
    return not dim.name or bool(dim.symbols & names)


@contextmanager
def sizes_of_trial() -> Iterator[list[bool]]:
    """Context manager for a conversion whose result may not be used: sizes that it finds or computes are forgotten at
    the end, unless the block appends True to the list that it gets.
    """
    operands = _OPERANDS.get()
    found = {} if operands is None else dict(operands.found)
    definitions = [] if operands is None else list(operands.definitions)
    pending = set() if operands is None else set(operands.pending)
    is_used: list[bool] = []
    try:
        yield is_used
    finally:
        if operands is not None and not is_used:
            operands.found, operands.definitions, operands.pending = found, definitions, pending


def number_of_nonzeros(flags: Expr) -> Dim | None:
    """Return the size that a run finds by the positions of the elements of a tensor of bools that are not 0; None if
    no call has found these positions.
    """
    operands = _OPERANDS.get()
    found = [] if operands is None else operands.found.values()
    return next((known for call in found if (known := _number_of_rows_at_nonzeros(call, flags)) is not None), None)


def _number_of_rows_at_nonzeros(call: Expr, flags: Expr) -> Dim | None:
    match call:
        case Call(args=(_, TupleGetItem(tuple_value=Call(op=Op(name="nonzero_positions"), args=(tested,))))):
            is_same = _without_reshapes(tested) is _without_reshapes(flags)
            return tensor_type_of(call).shape[0] if is_same else None
    return None


def _without_reshapes(expr: Expr) -> Expr:
    while isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == "reshape":
        expr = expr.args[0]
    return expr


def bits_of_float_operand(variable: Var, element: int) -> Dim | None:
    """Return the bits of an element of an input; see `SizeOperands.bits_of_float`."""
    operands = _OPERANDS.get()
    return None if operands is None else operands.bits_of_float(variable, element)


def define_by_function(function: str, bits: Dim, factor: Dim, least: int, most: int) -> Dim:
    """Return a size that is a function of a float; see `SizeOperands.define_by_function`."""
    if isinstance(bits, int) and isinstance(factor, int):
        known = SizeDefinition("", str(factor), least, most, "", function, str(bits)).value({})
        text = f"a size is {known}, not {least} to {most}"
        require("graph-dim", known is not None and least <= known <= most, text)
        assert known is not None
        return known
    operands = _OPERANDS.get()
    if operands is None:
        raise AotcError("graph-dim", "a size that is a function of a float is not known when the model is compiled")
    return operands.define_by_function(function, bits, factor, least, most)
