# SPDX-License-Identifier: Apache-2.0
"""The table of converters, by the names of PyTorch's operators
without `aten::`.

converter_of("add_", "Tensor")          # in place or not, all overloads: the converter "add"
"""

from __future__ import annotations

from typing import Final

from aotc.relay.frontend.pytorch import ops_conv, ops_create, ops_math, ops_nn, ops_shape
from aotc.relay.frontend.pytorch.values import Converter, Table

_FAMILIES: Final = (ops_conv, ops_create, ops_math, ops_nn, ops_shape)

#: Names that torch has for one and the same operator.
ALIASES: Final = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "divide": "div", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "special_expit": "sigmoid", "special_erf": "erf", "special_expm1": "expm1", "special_log1p": "log1p",
    "subtract": "sub", "true_divide": "div",
}  # fmt: skip

CONVERTERS: Final[Table] = {name: c for family in _FAMILIES for name, c in family.OPS.items()}


def converter_of(name: str, overload: str) -> Converter | None:
    """The converter of an operator: that of the overload where it
    has its own, else that of the name.

    In-place variants (a trailing underscore) compute what the plain
    ones do; None for unknown operators.
    """
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    plain = ALIASES.get(plain, plain).removesuffix("_copy") if plain not in CONVERTERS else plain
    return CONVERTERS.get(f"{plain}.{overload}") or CONVERTERS.get(plain)
