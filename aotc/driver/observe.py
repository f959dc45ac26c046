# SPDX-License-Identifier: Apache-2.0
"""Instruments that the driver and the command line attach to a compilation.

passes = PassList()
compile(model, instruments=[passes]); passes.names       # ("InferType", "DeadCodeElimination", ...)
"""

from __future__ import annotations

from typing import Any

from aotc.ir.instrument import PassInstrument
from aotc.ir.transform import PassInfo
from aotc.relay.instrument.dump import dump_ir

__all__ = ["PassList", "dump_ir"]


class PassList(PassInstrument):
    """Keeps the names of the pipeline's passes that ran, in order; passes inside these are left out."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._depth = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        if self._depth == 1:  # 0 is the pipeline itself
            self._names.append(info.name)
        self._depth += 1

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        self._depth -= 1

    def pass_failed(self, info: PassInfo) -> None:
        self._depth -= 1
