# SPDX-License-Identifier: Apache-2.0
"""Sizes that are elements of a model's inputs, such as the new shape of a Reshape, and sizes that are
defined by formulas.

operand = SizeOperand("shape", 0, -1, 24)
operand.name                                    # "shape[0]+1": the size counts from the least value
str(operand.dim)                                # "'shape[0]+1'-1": the value of the element
operand.size_of(np.array([4, 6]))               # 5
size_operand_of_name("shape[0]+1", 25)          # SizeOperand("shape", 0, -1, 24)
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.dimensions import Dim, SymDim

#: Name of the module attribute that lists the operands of a model.
SIZE_OPERANDS_ATTRIBUTE: Final = "size_operands"
#: Name of the module attribute that lists the sizes of a model that formulas define.
SIZE_DEFINITIONS_ATTRIBUTE: Final = "size_definitions"
#: Name of the module attribute that lists the conditions on sizes that a model states.
SIZE_CONDITIONS_ATTRIBUTE: Final = "size_conditions"
_NAME_REGEX: Final = re.compile(r"(?:clip\()?(.*)\[(\d+)\](?:, (-?\d+), (-?\d+)\))?([+-]\d+)?", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class SizeOperand:
    """An element of an input that is a size, or another number that shapes depend on.

    input      name of the input, a tensor of integers, or floats that are truncated, of a static shape
    element    position in the input, in row-major order
    least      the smallest value
    most       the largest value
    clipped    True if other values count as the nearest one of these; False if they are refused
    """

    input: str
    element: int
    least: int
    most: int
    clipped: bool = False

    @property
    def name(self) -> str:
        """The name of the size, which is the value less the smallest one."""
        value = f"{self.input}[{self.element}]"
        if self.clipped:
            value = f"clip({value}, {self.least}, {self.most})"
        return value if self.least == 0 else f"{value}{-self.least:+d}"

    @property
    def dim(self) -> Dim:
        """The value of the element, as a formula of the size."""
        return SymDim(self.name, self.most - self.least) + self.least

    def size_of(self, values: Any) -> int:
        """Return the size for the values of the input; ValueError for a value that is refused."""
        element = np.asarray(values).reshape(-1)[self.element]
        if not np.isfinite(element):
            raise ValueError(f"element {self.element} of the input {self.input} is {element}")
        value = int(element)
        if self.clipped:
            value = min(max(value, self.least), self.most)
        if not self.least <= value <= self.most:
            text = f"element {self.element} of the input {self.input} is {value}, which is not"
            raise ValueError(f"{text} {self.least} to {self.most}")
        return value - self.least

    def size_of_value(self, value: int) -> int:
        """Return the size for a value, or for the nearest one that is not refused."""
        return min(max(value, self.least), self.most) - self.least

    @property
    def row(self) -> tuple[str, int, int, int, bool]:
        """The fields, as an item of the module attribute."""
        return self.input, self.element, self.least, self.most, self.clipped


#: Functions of formulas, by name.
_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "min": min,
    "max": max,
}


def size_operand_of_name(name: str, most: int) -> SizeOperand | None:
    """Return the operand whose size has a name and a largest value; None for other names."""
    match = _NAME_REGEX.fullmatch(name)
    if match is None or name.startswith("clip(") != (match[3] is not None):
        return None
    least = -int(match[5] or 0)
    return SizeOperand(match[1], int(match[2]), least, least + most, match[3] is not None)


@dataclass(frozen=True, slots=True)
class SizeDefinition:
    """A size that a formula of other sizes defines.

    name           name of the size
    formula        text of the formula
    least, most    the smallest value, which is at least 0, and the largest one
    node           name of the node of the model that needs it
    """

    name: str
    formula: str
    least: int
    most: int
    node: str = ""

    def value(self, symbols: Mapping[str, int]) -> int | None:
        """Return the value for those of all symbols; None if the formula divides by 0."""
        try:
            return formula_of_name(self.formula).compute(symbols.__getitem__, int, lambda f, a, b: _OPERATIONS[f](a, b))
        except ZeroDivisionError:
            return None

    @property
    def row(self) -> tuple[str, str, int, int, str]:
        """The fields, as an item of the module attribute."""
        return self.name, self.formula, self.least, self.most, self.node


def elements_of_operands(operands: Iterable[SizeOperand]) -> dict[tuple[str, int], list[SizeOperand]]:
    """Return the operands of each element of an input: operators may take different values of one element."""
    elements: dict[tuple[str, int], list[SizeOperand]] = {}
    for operand in operands:
        elements.setdefault((operand.input, operand.element), []).append(operand)
    return elements


def element_of_sizes(operands: Iterable[SizeOperand], sizes: Mapping[str, int]) -> int:
    """Return a value of an element of an input for the sizes of its operands."""
    values = [(o, o.least + sizes[o.name]) for o in operands]
    exact = [v for o, v in values if not o.clipped]
    # a value at an end of its interval may stand for values beyond
    inner = [v for o, v in values if o.least < v < o.most]
    return (exact or inner or [max((v for _, v in values), key=abs)])[0]


def arrays_with_operands(
    arrays: Mapping[str, np.ndarray[Any, Any]], operands: Iterable[SizeOperand], sizes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs by name in which the elements that are sizes have the values for `sizes`."""
    result = dict(arrays)
    for (name, element), at_element in elements_of_operands(operands).items():
        result[name] = result[name].copy() if result[name] is arrays[name] else result[name]
        result[name].reshape(-1)[element] = element_of_sizes(at_element, sizes)
    return result


def size_operands_of_rows(rows: Sequence[Sequence[Any]]) -> list[SizeOperand]:
    """Return the operands that a module attribute lists."""
    return [SizeOperand(str(i), int(e), int(low), int(high), bool(c)) for i, e, low, high, c in rows]


def size_definitions_of_rows(rows: Sequence[Sequence[Any]]) -> list[SizeDefinition]:
    """Return the definitions that a module attribute lists, each after those that it depends on."""
    return [SizeDefinition(str(n), str(text), int(low), int(high), str(node)) for n, text, low, high, node in rows]
