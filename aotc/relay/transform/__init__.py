# SPDX-License-Identifier: Apache-2.0
"""Graph passes by name; `pipeline` lists the passes of each optimization level.

The stub `__init__.pyi` lists the module that defines each pass.
"""

from types import MappingProxyType

from aotc.ir import Pass
from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)

#: Every pass that the stub lists, by name.
PASSES = MappingProxyType(
    {p.name: p for p in map(__getattr__, __getattr__("__all__")) if isinstance(p, type) and issubclass(p, Pass)}
)
