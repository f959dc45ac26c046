# SPDX-License-Identifier: Apache-2.0
"""The data types that programs share.

mod = aotc.IRModule()
Prelude(mod)                                     # or mod.import_from_std("prelude.rly")
_, cons, nil = mod.get_type("List")
"""

from __future__ import annotations

from typing import Final

from aotc.ir import require_known
from aotc.relay.module import IRModule
from aotc.relay.text.parser import parse

TYPES: Final = """#[version = "0.0.5"]
type List[A] { Cons(A, List[A]), Nil, }
type Option[A] { Some(A), None, }
type Tree[A] { Rose(A, List[Tree[A]]), }
type nat { Z, S(nat), }
"""


class Prelude:
    """A module, which has the data types List, Option, Tree and nat from here on."""

    def __init__(self, mod: IRModule | None = None) -> None:
        self.mod = IRModule() if mod is None else mod
        for name, data in parse(TYPES).type_definitions.items():
            if name not in self.mod.type_definitions:
                self.mod[name] = data


def import_from_std(module: IRModule, name: str) -> None:
    """Relay's way to add the prelude's data types; AotcError for what is no part of the prelude."""
    require_known("type", "part of the prelude", name, ("prelude.rly", "nat.rly"))
    Prelude(module)
