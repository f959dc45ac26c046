# SPDX-License-Identifier: Apache-2.0
"""Relay's `vm`: programs with control flow, closures, recursion and varying shapes, compiled.

exe = relay.vm.compile(mod, "llvm")
aotc.runtime.vm.VirtualMachine(exe, aotc.cpu()).invoke("main", x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay_api.vm import compile as compile
    from aotc.runtime.vm import Executable as Executable

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay_api.vm": "compile", "aotc.runtime.vm": "Executable"})
