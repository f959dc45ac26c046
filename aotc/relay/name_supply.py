# SPDX-License-Identifier: Apache-2.0
"""Supplies of unique names, and of global variables with unique names.

names = NameSupply("net")
names.fresh_name("f"), names.fresh_name("f")       # "net_f", "net_f_1"
GlobalVarSupply(module).fresh_global("main")       # GlobalVar("main_1")
"""

from collections.abc import Sequence

from aotc.relay.graph_api import GlobalVar, IRModule, unused_name


class NameSupply:
    """Supply of unique names; names begin with `prefix` and an underscore unless `add_prefix` is
    False.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._used_names: set[str] = set()

    def _prefixed_name(self, name: str, add_prefix: bool) -> str:
        return f"{self.prefix}_{name}" if add_prefix and self.prefix else name

    def reserve_name(self, name: str, add_prefix: bool = True) -> str:
        """Mark a name as used and return it with its prefix."""
        whole = self._prefixed_name(name, add_prefix)
        self._used_names.add(whole)
        return whole

    def fresh_name(self, name: str, add_prefix: bool = True) -> str:
        """Return an unused name: the prefixed name, with a number appended if it is used. It is
        then marked as used.
        """
        return self.reserve_name(unused_name(self._prefixed_name(name, add_prefix), self._used_names), False)

    def contains_name(self, name: str, add_prefix: bool = True) -> bool:
        """Return True if the prefixed name is used."""
        return self._prefixed_name(name, add_prefix) in self._used_names


class GlobalVarSupply:
    """Supply of global variables with names from a NameSupply; the names in the given modules count
    as used.
    """

    def __init__(self, value: NameSupply | IRModule | Sequence[IRModule] | None = None) -> None:
        self.name_supply = value if isinstance(value, NameSupply) else NameSupply()
        self._global_var_by_name: dict[str, GlobalVar] = {}
        modules = [value] if isinstance(value, IRModule) else value if isinstance(value, Sequence) else []
        for var in (v for module in modules for v in module.get_global_vars()):
            self.reserve_global(var)

    def reserve_global(self, var: GlobalVar) -> None:
        """Mark the name of a variable as used, without a prefix."""
        self._global_var_by_name[self.name_supply.reserve_name(var.name, False)] = var

    def unique_global_for(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """Return the variable of a name: the existing one, or a new one."""
        whole = self.name_supply.reserve_name(name, add_prefix)
        return self._global_var_by_name.setdefault(whole, GlobalVar(whole))

    def fresh_global(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """Return a new variable, with a number appended to its name if that is used."""
        return self.unique_global_for(self.name_supply.fresh_name(name, add_prefix), False)
