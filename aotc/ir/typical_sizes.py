# SPDX-License-Identifier: Apache-2.0
"""Typical sizes of dimensions that are known at run time only: those for which costs are compared.

with use_typical_sizes({"seq": 128}):
    typical_size(SymDim("seq", 512))         # 128
    typical_size(SymDim("batch*seq", 4096))  # 4096: nothing is known of the batch
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from aotc.ir.dimensions import Dim, SymDim, largest_size
from aotc.ir.temporary_context_value import temporarily_set_context_variable

_TYPICAL_SIZES: Final[ContextVar[Mapping[str, int]]] = ContextVar("typical sizes", default=MappingProxyType({}))


def use_typical_sizes(values: Mapping[str, int]) -> AbstractContextManager[object]:
    """Return a context in which symbols of dimensions have typical values, by name."""
    return temporarily_set_context_variable(_TYPICAL_SIZES, values)


def typical_size(dim: Dim) -> int:
    """Return the size of a dimension for which costs are compared, which is one of its sizes: its formula for the
    typical values of its symbols, or its largest size if they are not all known, or contradict its bounds.

    Raises TypeError if it has no name or no upper bound.
    """
    largest = largest_size(dim)
    if not isinstance(dim, SymDim):
        return largest
    try:
        size = dim.bind(_TYPICAL_SIZES.get())
    except ValueError:
        return largest
    return largest if isinstance(size, SymDim) else max(min(size, largest), dim.lower)
