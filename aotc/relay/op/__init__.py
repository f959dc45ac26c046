# SPDX-License-Identifier: Apache-2.0
"""The operators: one value each, in one file per family, listed here.

from aotc.relay.op import REGISTRY
REGISTRY["nn.conv2d"].pattern          # OpPattern.OUT_ELEMWISE_FUSABLE
add(x, y), get("add")                  # Relay's functions that build calls, and its table of operators
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from aotc.relay.op.opdef import OpDef

_FAMILIES = (
    "elementwise binary casts reduce shape layout join pad slice index places scatter create conv "
    "conv_transpose winograd dense packed_dense pool norm softmax resize rearrange grid sorts "
    "scan recurrent like mask loss sparse regions neighbors detection anchors bits signals "
    "einsum dyn grouping annotation "
    "qnn.rounded qnn.scale qnn.convolution qnn.product qnn.pointwise qnn.table qnn.join qnn.pool qnn.softmax qnn.lstm"
)
#: The files of operators, in the order in which tables list them.
FAMILIES = tuple(import_module(f"{__name__}.{family}") for family in _FAMILIES.split())


def operators_of(family: ModuleType) -> tuple[OpDef, ...]:
    """The operators that a file defines, in the order in which they are written; it imports none by name."""
    return tuple(value for value in vars(family).values() if isinstance(value, OpDef))


#: Every operator by name.
REGISTRY: Mapping[str, OpDef] = MappingProxyType({op.name: op for family in FAMILIES for op in operators_of(family)})


def __getattr__(name: str) -> Any:
    """Relay's names: the functions of operators without a prefix, and what `aotc.relay.op.op` has."""
    if name in ("nn", "image", "vision", "op"):
        return import_module(f"{__name__}.{name}")
    functions = import_module(f"{__name__}.functions").FUNCTIONS
    found = functions.get(name) if "." not in name else None
    found = found or vars(import_module(f"{__name__}.op")).get(name)
    if found is None or name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
