# SPDX-License-Identifier: Apache-2.0
"""The table of converters, by the names of PyTorch's operators
without `aten::`, and of quantized ones with their namespace.

converter_of("add_", "Tensor")          # in place or not, all overloads: the converter "add"
"""

import re
from typing import Final

from aotc.relay.frontend.pytorch import ops_conv, ops_create, ops_math, ops_nn, ops_quant, ops_shape
from aotc.relay.frontend.pytorch.converter_values import Converter, Table
from aotc.relay.frontend.pytorch.inplace_and_out_forms import functional_name

_FAMILIES: Final = (ops_conv, ops_create, ops_math, ops_nn, ops_quant, ops_shape)

#: Names that torch has for one and the same operator.
ALIASES: Final = {
    "absolute": "abs", "clip": "clamp", "divide": "div", "expit": "sigmoid", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "subtract": "sub", "true_divide": "div",
}  # fmt: skip
#: What stands before the name of an operator in others that compute what it computes: `_unsafe_view`, `arcsin`.
_VARIANTS: Final = re.compile(r"^(special_|sym_|_?unsafe_|_(?!_))|(?<=^a)rc(?=cos|sin|tan)")

CONVERTERS: Final[Table] = {name: c for family in _FAMILIES for name, c in family.OPS.items()}


def converter_of(name: str, overload: str) -> Converter | None:
    """The converter of an operator: that of the overload where it
    has its own, else that of the name.

    In-place variants compute what the functional ones do; None for
    unknown operators.
    """
    plain = functional_name(name)
    if plain not in CONVERTERS and f"{plain}.{overload}" not in CONVERTERS:
        plain = _VARIANTS.sub("", plain).removesuffix("_copy")
        plain = ALIASES.get(plain, plain)
    return CONVERTERS.get(f"{plain}.{overload}") or CONVERTERS.get(plain)
