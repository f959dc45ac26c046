# SPDX-License-Identifier: Apache-2.0
"""Graph passes by name; `pipeline` puts them in order.

The stub beside this file, `__init__.pyi`, says in which module each pass lives.
"""

from types import MappingProxyType

from aotc.ir import Pass
from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)

#: Every pass that the stub lists, by name.
PASSES = MappingProxyType(
    {p.name: p for p in map(__getattr__, __getattr__("__all__")) if isinstance(p, type) and issubclass(p, Pass)}
)
