# SPDX-License-Identifier: Apache-2.0
"""Passes of Relay's `transform` module that inspect a module without changing it.

Sequential([FoldConstant(), PrintIR("after folding")])(module)
"""

from dataclasses import dataclass
from typing import ClassVar

from aotc.ir.transform import Pass, PassContext
from aotc.relay.module import IRModule
from aotc.relay.text.printer import astext


@dataclass(frozen=True)
class PrintIR(Pass[IRModule]):
    """A pass that prints the module as text and returns it unchanged.

    header            text to print first
    show_meta_data    True to print the values of large constants
    """

    name: ClassVar[str] = "PrintIR"
    opt_level: ClassVar[int] = 0
    header: str = ""
    show_meta_data: bool = False

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        print(f"PrintIR({self.header}):\n{astext(module, self.show_meta_data)}")
        return module
