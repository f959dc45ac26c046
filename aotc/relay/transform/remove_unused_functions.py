# SPDX-License-Identifier: Apache-2.0
"""RemoveUnusedFunctions: drop the global functions that the entry functions do not reach.

def @main(%x) { @f(%x) }; def @f(%x) { exp(%x) }; def @g(%x) { log(%x) }
def @main(%x) { @f(%x) }; def @f(%x) { exp(%x) }
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aotc.ir import Pass, PassContext
from aotc.relay.analysis import global_uses
from aotc.relay.expr import Function
from aotc.relay.module import IRModule


def reachable(functions: Mapping[str, Function], entries: Iterable[str]) -> set[str]:
    """The names of functions that some function of `entries` uses, however indirectly; and the entries."""
    found: set[str] = set()
    stack = [name for name in entries if name in functions]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(n for n in global_uses(functions[name]) if n in functions)
    return found


@dataclass(frozen=True, repr=False)
class RemoveUnusedFunctions(Pass[IRModule]):
    """Keep what the entry functions need.

    entry_functions    names of functions to start from
    """

    entry_functions: Sequence[str] = ("main",)

    opt_level = 1

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        kept = reachable(module.functions, self.entry_functions)
        if len(kept) == len(module):
            return module
        return IRModule({name: f for name, f in module.functions.items() if name in kept}, module.attrs)
