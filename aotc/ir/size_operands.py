# SPDX-License-Identifier: Apache-2.0
"""Sizes that are elements of a model's inputs, such as the new shape of a Reshape, and sizes that are
defined by formulas.

operand = SizeOperand("shape", 0, -1, 24)
operand.name                                    # "shape[0]+1": the size counts from the least value
str(operand.dim)                                # "'shape[0]+1'-1": the value of the element
operand.size_of(np.array([4, 6]))               # 5
size_operand_of_name("shape[0]+1", 25)          # SizeOperand("shape", 0, -1, 24)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from aotc.ir.dimension_formulas import Formula, constant, formula_of_name
from aotc.ir.dimensions import Dim, SymDim

#: Name of the module attribute that lists the operands of a model.
SIZE_OPERANDS_ATTRIBUTE: Final = "size_operands"
#: Name of the module attribute that lists the sizes of a model that formulas define.
SIZE_DEFINITIONS_ATTRIBUTE: Final = "size_definitions"
#: Name of the module attribute that lists the conditions on sizes that a model states.
SIZE_CONDITIONS_ATTRIBUTE: Final = "size_conditions"
_NAME_REGEX: Final = re.compile(r"(?:clip\()?(.*)\[(\d+)\](?:, (-?\d+), (-?\d+)\))?([+-]\d+)?", re.DOTALL | re.ASCII)
_BITS_REGEX: Final = re.compile(r"bits\((.*)\[(\d+)\]\)([+-]\d+)?", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class SizeOperand:
    """An element of an input that is a size, or another number that shapes depend on.

    input      name of the input, a tensor of integers, or floats that are truncated, of a static shape
    element    position in the input, in row-major order
    least      the smallest value
    most       the largest value
    clipped    True if other values count as the nearest one of these; False if they are refused
    is_bits    True for a float32 whose bits, as an integer, are the value: from a float of at least 0 on, its
               value is greater if its bits are
    """

    input: str
    element: int
    least: int
    most: int
    clipped: bool = False
    is_bits: bool = False

    @property
    def name(self) -> str:
        """The name of the size, which is the value less the smallest one."""
        value = self.element_name
        if self.is_bits:
            value = f"bits({value})"
        if self.clipped:
            value = f"clip({value}, {self.least}, {self.most})"
        return value if self.least == 0 else f"{value}{-self.least:+d}"

    @property
    def element_name(self) -> str:
        """The element as text, such as "shape[0]"."""
        return f"{self.input}[{self.element}]"

    @property
    def dim(self) -> Dim:
        """The value of the element, as a formula of the size."""
        return SymDim(self.name, self.most - self.least) + self.least

    def size_of(self, values: Any) -> int:
        """Return the size for the values of the input; ValueError for a value that is refused."""
        element = np.asarray(values).reshape(-1)[self.element]
        if not np.isfinite(element):
            raise ValueError(f"element {self.element} of the input {self.input} is {element}")
        value = bits_of_float32(element) if self.is_bits else int(element)
        if self.clipped:
            value = min(max(value, self.least), self.most)
        if not self.least <= value <= self.most:
            given = element if self.is_bits else value
            text = f"element {self.element} of the input {self.input} is {given}, which is not"
            raise ValueError(f"{text} {self.range_text}")
        return value - self.least

    @property
    def range_text(self) -> str:
        """The values of the element that are not refused, as text."""
        least, most = self.limits_of_element
        return f"{self._text_of_value(least)} to {self._text_of_value(most)}"

    def text_of_size(self, size: int) -> str:
        """Return the element and its value for the size, as text."""
        return f"{self.element_name} {self._text_of_value(self.value_of_size(size))}"

    def _text_of_value(self, value: float) -> str:
        return f"{value:g}" if self.is_bits else str(value)

    @property
    def limits_of_element(self) -> tuple[float, float]:
        """The least and the greatest value of the element itself."""
        return (float32_of_bits(self.least), float32_of_bits(self.most)) if self.is_bits else (self.least, self.most)

    def size_of_value(self, value: float) -> int:
        """Return the size for a value of the element, or for the nearest one that is not refused."""
        number = bits_of_float32(value) if self.is_bits else int(value)
        return min(max(number, self.least), self.most) - self.least

    def value_of_size(self, size: int) -> float:
        """Return the value of the element for the size."""
        value = self.least + size
        return float32_of_bits(value) if self.is_bits else value

    @property
    def row(self) -> tuple[str, int, int, int, bool, bool]:
        """The fields, as an item of the module attribute."""
        return self.input, self.element, self.least, self.most, self.clipped, self.is_bits


def bits_of_float32(value: float) -> int:
    """Return the bits of a float32 as an integer; -1 for a negative number, which has none of these sizes."""
    return -1 if value < 0 else int(np.float32(abs(value)).view(np.int32))


def float32_of_bits(bits: int) -> float:
    """Return the float32 of at least 0 that has these bits."""
    return float(np.int32(bits).view(np.float32))


def size_operand_of_name(name: str, most: int) -> SizeOperand | None:
    """Return the operand whose size has a name and a largest value; None for other names."""
    bits = _BITS_REGEX.fullmatch(name)
    if bits is not None:
        least = -int(bits[3] or 0)
        return SizeOperand(bits[1], int(bits[2]), least, least + most, is_bits=True)
    match = _NAME_REGEX.fullmatch(name)
    if match is None or name.startswith("clip(") != (match[3] is not None):
        return None
    least = -int(match[5] or 0)
    return SizeOperand(match[1], int(match[2]), least, least + most, match[3] is not None)


#: Functions of a float whose values are sizes: numerator and denominator of the fraction nearest to the float among
#: those with denominators of at most MAX_DENOMINATOR, as `fractions.Fraction.limit_denominator` computes it; and the
#: product of the float and a formula, rounded to a float32 and then down to an integer.
NUMERATOR: Final = "numerator"
DENOMINATOR: Final = "denominator"
PRODUCT: Final = "product"
#: Largest denominator of the fractions that approximate floats.
MAX_DENOMINATOR: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SizeDefinition:
    """A size that a formula of other sizes defines.

    name           name of the size
    formula        text of the formula
    least, most    the smallest value, which is at least 0, and the largest one
    node           name of the node of the model that needs it
    function       NUMERATOR, DENOMINATOR or PRODUCT, if that is the size; "" if it is the value of the formula
    float_bits     formula of the bits of the float of this function
    """

    name: str
    formula: str
    least: int
    most: int
    node: str = ""
    function: str = ""
    float_bits: str = "0"

    @property
    def symbols(self) -> frozenset[str]:
        """The sizes that the definition depends on."""
        return _formula_of_text(self.formula).symbols | _formula_of_text(self.float_bits).symbols

    def value(self, symbols: Mapping[str, int]) -> int | None:
        """Return the value for those of all symbols; None if the formula divides by 0."""
        number = _formula_of_text(self.formula).evaluate(symbols)
        if not self.function or number is None:
            return number
        bits = _formula_of_text(self.float_bits).evaluate(symbols)
        return None if bits is None else _value_of_float_function(self.function, float32_of_bits(bits), number)

    def __str__(self) -> str:
        """Return the value as text: the formula, or the function of a number or of an element of an input."""
        if not self.function:
            return self.formula
        value = _text_of_float(self.float_bits)
        factor = self.formula if self.formula.isalnum() else f"({self.formula})"
        return f"floor({value} * {factor})" if self.function == PRODUCT else f"{self.function}({value})"

    @property
    def row(self) -> tuple[str, str, int, int, str, str, str]:
        """The fields, as an item of the module attribute."""
        return self.name, self.formula, self.least, self.most, self.node, self.function, self.float_bits


@dataclass(frozen=True, slots=True)
class SizeRequirement:
    """A condition on sizes that a model states: a formula is equal to another one, or at least as large.

    left, right    texts of the formulas
    relation       "==" or ">="
    node           name of the node of the model that needs it
    """

    left: str
    relation: str
    right: str
    node: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        """The sizes that the condition depends on."""
        return _formula_of_text(self.left).symbols | _formula_of_text(self.right).symbols

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the condition holds for values of all sizes; False if a formula divides by 0."""
        left, right = (_formula_of_text(text).evaluate(sizes) for text in (self.left, self.right))
        if left is None or right is None:
            return False
        return left == right if self.relation == "==" else left >= right

    def __str__(self) -> str:
        where = f"node {self.node}: " if self.node else ""
        return f"{where}{self.left} {self.relation} {self.right}"


def _formula_of_text(text: str) -> Formula:
    digits = text.removeprefix("-")
    return constant(int(text)) if digits.isascii() and digits.isdigit() else formula_of_name(text)


def _text_of_float(bits: str) -> str:
    """Return a float as text, of which a formula gives the bits: the element of an input, such as "scales[0]", or a
    number.
    """
    formula = _formula_of_text(bits)
    names = [operand.element_name for s in formula.symbols if (operand := size_operand_of_name(s, 0)) is not None]
    return f"{float32_of_bits(formula.constant_term):g}" if not names else names[0]


def _value_of_float_function(function: str, value: float, factor: int) -> int:
    if function == PRODUCT:
        return int(np.float32(value) * np.float32(factor))
    fraction = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    return fraction.numerator if function == NUMERATOR else fraction.denominator


def elements_of_operands(operands: Iterable[SizeOperand]) -> dict[tuple[str, int], list[SizeOperand]]:
    """Return the operands of each element of an input: operators may take different values of one element."""
    elements: dict[tuple[str, int], list[SizeOperand]] = {}
    for operand in operands:
        elements.setdefault((operand.input, operand.element), []).append(operand)
    return elements


def element_of_sizes(operands: Iterable[SizeOperand], sizes: Mapping[str, int]) -> float:
    """Return a value of an element of an input for the sizes of its operands."""
    values = [(o, o.value_of_size(sizes[o.name])) for o in operands]
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
    return [SizeOperand(str(i), int(e), int(low), int(high), *map(bool, flags)) for i, e, low, high, *flags in rows]


def size_definitions_of_rows(rows: Sequence[Sequence[Any]]) -> list[SizeDefinition]:
    """Return the definitions that a module attribute lists, each after those that it depends on."""
    return [SizeDefinition(str(n), str(f), int(low), int(high), *map(str, rest)) for n, f, low, high, *rest in rows]


def size_conditions_of_rows(rows: Sequence[Sequence[Any]]) -> list[SizeRequirement]:
    """Return the conditions that a module attribute lists."""
    return [SizeRequirement(*map(str, row)) for row in rows]
