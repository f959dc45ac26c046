# SPDX-License-Identifier: Apache-2.0
"""The table of all PyTorch converters, by operator names without `aten::`; operators of other
namespaces have their namespace in the name.

converter_of("add_", "Tensor")          # in place or not, all overloads: the converter "add"
"""

import re
from typing import Final

from aotc.relay.frontend.pytorch import (
    ops_conv,
    ops_create,
    ops_found_sizes,
    ops_math,
    ops_norm_attention_recurrent,
    ops_quant,
    ops_scatter,
    ops_shape,
    ops_special,
)
from aotc.relay.frontend.pytorch.inplace_and_out_forms import functional_operator_name
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Converter, Table

_CONVERTER_MODULES: Final = (
    ops_conv, ops_create, ops_found_sizes, ops_math, ops_norm_attention_recurrent, ops_quant, ops_scatter, ops_shape,
    ops_special,
)  # fmt: skip

#: Alternative names in PyTorch for operators that have a converter, and the name of the converter.
ALIASES: Final = {
    "absolute": "abs", "clip": "clamp", "divide": "div", "expit": "sigmoid", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "subtract": "sub", "true_divide": "div",
}  # fmt: skip
#: Prefixes that PyTorch adds to the names of operators without changing their result, as in
#: `_unsafe_view`, and the letters "rc" of names such as `arcsin`, whose converter is that of `asin`.
_VARIANT_PREFIX: Final = re.compile(r"^(special_|sym_|_?unsafe_|_(?!_))|(?<=^a)rc(?=cos|sin|tan)")

CONVERTERS: Final[Table] = {name: c for family in _CONVERTER_MODULES for name, c in family.OPS.items()}


def converter_of(name: str, overload: str) -> Converter | None:
    """Return the converter of a PyTorch operator: the one for the overload if there is one,
    otherwise the one for the name; None for an unknown operator.

    An in-place operator has the converter of its functional operator.
    """
    plain = plain_operator_name(name, overload)
    return CONVERTERS.get(f"{plain}.{overload}") or CONVERTERS.get(plain)


def plain_operator_name(name: str, overload: str) -> str:
    """Return the name under which the table lists a PyTorch operator: without the marks of in-place
    forms, of views and of private variants, unless it is listed with them.
    """
    plain = functional_operator_name(name)
    if plain in CONVERTERS or f"{plain}.{overload}" in CONVERTERS:
        return plain
    plain = _VARIANT_PREFIX.sub("", plain).removesuffix("_copy")
    return ALIASES.get(plain, plain)
