# SPDX-License-Identifier: Apache-2.0
"""Names that are not taken yet, and global variables that have them.

names = NameSupply("net")
names.fresh_name("f"), names.fresh_name("f")       # "net_f", "net_f_1"
GlobalVarSupply(module).fresh_global("main")       # GlobalVar("main_1")
"""

from collections.abc import Sequence

from aotc.relay.graph_api import GlobalVar, IRModule, fresh_name


class NameSupply:
    """Names, each given once; `prefix` and an underscore stand before them unless `add_prefix` is false."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._taken: set[str] = set()

    def _whole(self, name: str, add_prefix: bool) -> str:
        return f"{self.prefix}_{name}" if add_prefix and self.prefix else name

    def reserve_name(self, name: str, add_prefix: bool = True) -> str:
        """The whole name, which is taken from now on."""
        whole = self._whole(name, add_prefix)
        self._taken.add(whole)
        return whole

    def fresh_name(self, name: str, add_prefix: bool = True) -> str:
        """The whole name, with a number where it is taken; it is taken from now on."""
        return self.reserve_name(fresh_name(self._whole(name, add_prefix), self._taken), False)

    def contains_name(self, name: str, add_prefix: bool = True) -> bool:
        """Whether the whole name is taken."""
        return self._whole(name, add_prefix) in self._taken


class GlobalVarSupply:
    """Global variables of names from a supply; those of modules are taken."""

    def __init__(self, value: NameSupply | IRModule | Sequence[IRModule] | None = None) -> None:
        self.name_supply = value if isinstance(value, NameSupply) else NameSupply()
        self._known: dict[str, GlobalVar] = {}
        modules = [value] if isinstance(value, IRModule) else value if isinstance(value, Sequence) else []
        for var in (v for module in modules for v in module.get_global_vars()):
            self.reserve_global(var)

    def reserve_global(self, var: GlobalVar) -> None:
        """Take the variable's name, without a prefix."""
        self._known[self.name_supply.reserve_name(var.name, False)] = var

    def unique_global_for(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """The variable of a name: the one that is known, else a new one."""
        whole = self.name_supply.reserve_name(name, add_prefix)
        return self._known.setdefault(whole, GlobalVar(whole))

    def fresh_global(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """A new variable, its name with a number where it is taken."""
        return self.unique_global_for(self.name_supply.fresh_name(name, add_prefix), False)
