# SPDX-License-Identifier: Apache-2.0
"""Constants of `.test` files: `$normal(8, 3, seed=1)` in place of 24 numbers.

In a module, `$GENERATOR(ARGUMENTS)` stands for a constant; each text is one constant, however often
it occurs. `GENERATORS` lists the generators. In the module after the passes, a constant that they
computed is written as its values if it has up to eight elements, and otherwise as
`$computed(float32, 8, 3)`: the comparison of results proves its values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, DType
from aotc.relay.expr import Constant

Array: TypeAlias = "np.ndarray[Any, Any]"
MAX_WRITTEN_ELEMENTS: Final = 8
_START_REGEX: Final = re.compile(r"\$(\w+)\(")
_NUMBERS_BY_NAME: Final = {"inf": float("inf"), "nan": float("nan")}


class ConstantTextError(Exception):
    """A `$GENERATOR(ARGUMENTS)` that is not well formed; `offset` is its position in the text."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


def _normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(DType(dtype).numpy)


def _uniform(low: float, high: float, *shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Uniformly distributed numbers from `low` to `high`."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(DType(dtype).numpy)


def _integers(low: int, high: int, *shape: int, seed: int = 0, dtype: str = "int32") -> Array:
    """Uniformly distributed integers from `low` to `high`, `high` included."""
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(DType(dtype).numpy)


def _full(value: float, *shape: int, dtype: str = "float32") -> Array:
    """One value, which is stored once."""
    return np.broadcast_to(np.asarray(value, DType(dtype).numpy), shape)


def _arange(stop: int, *shape: int, dtype: str = "float32") -> Array:
    """The integers from 0 to below `stop`, in the given shape."""
    return np.arange(stop).astype(DType(dtype).numpy).reshape(shape or (-1,))


def _linspace(start: float, stop: float, *shape: int, dtype: str = "float32") -> Array:
    """Equidistant numbers from `start` to `stop`, both included, in the given shape."""
    return np.linspace(start, stop, int(np.prod(shape))).astype(DType(dtype).numpy).reshape(shape)


def _repeated(times: int, *values: float, dtype: str = "float32") -> Array:
    """A vector that has each of the given values `times` times."""
    return np.repeat(np.asarray(values), times).astype(DType(dtype).numpy)


def _array(values: Any, dtype: str = "float32") -> Array:
    """The given values: a number, or nested lists of numbers."""
    with np.errstate(over="ignore"):
        return np.asarray(values, DType(dtype).numpy)


GENERATORS: Final[dict[str, Callable[..., Array]]] = {
    "normal": _normal,
    "uniform": _uniform,
    "integers": _integers,
    "full": _full,
    "arange": _arange,
    "linspace": _linspace,
    "repeated": _repeated,
    "array": _array,
}


class ConstantTable:
    """The constants of one case, by their texts."""

    def __init__(self) -> None:
        self._constants: dict[str, Constant] = {}

    @property
    def constants(self) -> list[Constant]:
        """The constants in the order in which they were first read; meta[relay.Constant][k] refers
        to the k-th.
        """
        return list(self._constants.values())

    def replace_by_references(self, text: str) -> str:
        """Return `text` with every `$GENERATOR(...)` replaced by meta[relay.Constant][k]; raise
        ConstantTextError.
        """
        pieces, end = [], 0
        for start, stop in _spans_of_constants(text):
            self.constant(text[start:stop], start)
            position = list(self._constants).index(_canonical_text(text[start:stop], start))
            pieces += [text[end:start], f"meta[relay.Constant][{position}]"]
            end = stop
        return "".join([*pieces, text[end:]])

    def constant(self, text: str, offset: int = 0) -> Constant:
        """Return the constant for a text `$GENERATOR(ARGUMENTS)`.

        Raise ConstantTextError with this offset for an unknown generator and wrong arguments.
        """
        canonical = _canonical_text(text, offset)
        if canonical not in self._constants:
            self._constants[canonical] = Constant(_generate(canonical, offset))
        return self._constants[canonical]

    def text_of(self, constant: Constant) -> str:
        """Return the text of a constant of the table, or one that describes a constant which a pass
        computed.
        """
        for text, known in self._constants.items():
            if known is constant or _is_identical(known.data, constant.data):
                return text
        return _computed_text(constant.data)


def _spans_of_constants(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each `$GENERATOR(...)` in a text."""
    for match in _START_REGEX.finditer(text):
        depth = 0
        for position in range(match.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[position], 0)
            if depth == 0:
                yield match.start(), position + 1
                break
        else:
            raise ConstantTextError(match.start(), f"the parenthesis after {match[0][:-1]} is not closed")


def _canonical_text(text: str, offset: int) -> str:
    """Return a constant's text with uniform blanks, by which equal texts are found."""
    try:
        return f"${ast.unparse(ast.parse(text[1:], mode='eval'))}"
    except SyntaxError as error:
        raise ConstantTextError(offset, f"malformed constant {text}: {error.msg}") from None


def _generate(text: str, offset: int) -> Array:
    call = ast.parse(text[1:], mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    make = GENERATORS.get(call.func.id)
    if make is None:
        raise ConstantTextError(
            offset, f"there is no generator ${call.func.id}; generators are {', '.join(GENERATORS)}"
        )
    try:
        return make(*map(_value, call.args), **{k.arg: _value(k.value) for k in call.keywords if k.arg is not None})
    except (AotcError, TypeError, ValueError, OverflowError) as error:
        raise ConstantTextError(offset, f"wrong arguments of {text}: {error}") from None


def _value(node: ast.expr) -> Any:
    """Return a literal's value; names are `inf`, `nan` and data types."""
    match node:
        case ast.List():
            return [_value(item) for item in node.elts]
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.Name():
            return _NUMBERS_BY_NAME.get(node.id, node.id)
        case _:
            return ast.literal_eval(node)


def _is_identical(lhs: Array, rhs: Array) -> bool:
    """Return True if two arrays have equal types, shapes and bits; splats are compared by one
    element.
    """
    if lhs.dtype != rhs.dtype or lhs.shape != rhs.shape:
        return False
    if lhs.size > 1 and not any(lhs.strides):
        return not any(rhs.strides) and lhs.flat[0].tobytes() == rhs.flat[0].tobytes()
    return any(rhs.strides) == any(lhs.strides) and lhs.tobytes() == rhs.tobytes()


def _computed_text(data: Array) -> str:
    dtype, shape = str(DType.from_numpy(data)), ", ".join(map(str, data.shape))
    suffix = "" if dtype == "float32" else f", dtype={dtype}"
    if data.size == 0 or (data.size > 1 and not any(data.strides)):
        return f"$full({_element_text(data.flat[0]) if data.size else 0}, {shape}{suffix})"
    if data.size <= MAX_WRITTEN_ELEMENTS:
        return f"$array({_nested_text(data)}{suffix})"
    return f"$computed({dtype}, {shape})"


def _nested_text(data: Array) -> str:
    return f"[{', '.join(map(_nested_text, data))}]" if data.ndim else _element_text(data)


def _element_text(value: Any) -> str:
    """Return an element as text: six digits of a real number."""
    return f"{float(value):.6g}" if np.asarray(value).dtype.kind not in "iub" else str(value.item())
