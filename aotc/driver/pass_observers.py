# SPDX-License-Identifier: Apache-2.0
"""Instruments that the driver and the command line attach to a compilation.

passes = PassList()
compile(model, instruments=[passes]); passes.names       # ("InferType", "DeadCodeElimination", ...)
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from aotc.ir import ALL_LEVELS, AotcError, PassInfo, PassInstrument, did_you_mean_hint, installed_passes
from aotc.relay.instrument.dump_ir import dump_ir as dump_ir
from aotc.relay.instrument.dump_ir import module_to_text
from aotc.relay.instrument.numeric_check import NumericCheck as NumericCheck
from aotc.tir import TENSOR_PASS_NAMES
from aotc.tir import ProgramVerifier as ProgramVerifier


class PassList(PassInstrument):
    """Instrument that records the names of the pipeline's passes that ran, in order, without passes
    nested in them.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._depth = 0

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        if self._depth == 1:
            # 0 is the pipeline itself
            self.names = (*self.names, info.name)
        self._depth += 1

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        self._depth -= 1

    def pass_failed(self, info: PassInfo) -> None:
        self._depth -= 1


def require_known_passes(pass_names: Iterable[str]) -> None:
    """Raise AotcError (code "unknown-pass") listing all unknown pass names, with the nearest known
    name as a hint.
    """
    known = [*installed_passes(), *TENSOR_PASS_NAMES, "optimize"]
    unknown = [name for name in pass_names if name not in known]
    if unknown:
        text = f"there is no pass called {', '.join(map(repr, unknown))}"
        raise AotcError("unknown-pass", text, hint=did_you_mean_hint(unknown[0], known) or f"known: {', '.join(known)}")


@dataclass(eq=False)
class TextAfter(PassInstrument):
    """Instrument that passes the text of the program to `tell` after each run of the named passes.

    tell             called with the pass name and the text; its exceptions end the compilation
    missing          names of passes that have not run yet
    show_meta_data   include the values of constants in the text
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS
    names: Collection[str]
    tell: Callable[[str, str], object]
    show_meta_data: bool = False

    def __post_init__(self) -> None:
        self.missing = set(self.names)

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if info.name in self.names:
            self.missing.discard(info.name)
            self.tell(info.name, module_to_text(module, self.show_meta_data))
