# SPDX-License-Identifier: Apache-2.0
"""Relay's `vm` module: compile programs with control flow, closures, recursion and dynamic shapes
to bytecode.

exe = relay.vm.compile(mod, "llvm")
aotc.runtime.vm.VirtualMachine(exe, aotc.cpu()).invoke("main", x)
"""

from aotc.relay_api.vm_compiler import compile as compile
from aotc.runtime.vm import Executable as Executable
