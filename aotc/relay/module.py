# SPDX-License-Identifier: Apache-2.0
"""IRModule: global functions by name. Passes do not change modules but make new ones.

mod = IRModule.from_expr(relay.add(x, y))        # free variables become parameters of @main
mod["main"]; mod.with_function("main", f)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, overload

from aotc.ir import AotcError, AotcTypeError, DType, GlobalTypeVar, Quantization, did_you_mean_hint
from aotc.relay.graph_api import EMPTY_ATTRS, Expr, Function, GlobalVar, Printed, TypeData
from aotc.relay.visitor import free_vars

EMPTY_TYPE_DEFINITIONS: Final[Mapping[GlobalTypeVar, TypeData]] = MappingProxyType({})


class FunctionName(str):
    """The name of a function, as a key of its module."""

    __slots__ = ()
    name_hint = property(str, doc="Relay's word for the name.")


class IRModule(Printed, Mapping[str, Function]):
    """A module: a mapping from names to functions, with data type definitions and attributes.

    Setting an item raises AotcTypeError for a key that is neither a name nor a GlobalVar, and for a
    value that is not a function.
    """

    __slots__ = ("__weakref__", "_functions", "_types", "attrs", "typed")

    #: Adds the data types and functions of a standard library file; see
    #: `aotc.relay_api.prelude.import_from_std`.
    import_from_std: ClassVar[Callable[[Any, str], None]]

    def __init__(
        self,
        functions: Mapping[str, Function] | Mapping[GlobalVar, Function] | None = None,
        attrs: Mapping[str, Any] = EMPTY_ATTRS,
        type_definitions: Mapping[GlobalTypeVar, TypeData] = EMPTY_TYPE_DEFINITIONS,
    ) -> None:
        #: True if type inference has processed everything in the module.
        self.typed = False
        self._functions: dict[str, Function] = {}
        self._types = dict(type_definitions)
        for name, function in (functions or {}).items():
            self[name] = function
        self.attrs: Mapping[str, Any] = MappingProxyType(dict(attrs))

    @classmethod
    def from_expr(cls, expr: Expr) -> IRModule:
        """Return a module whose @main is `expr`; the free variables of a bare expression become
        parameters.
        """
        main = expr if isinstance(expr, Function) else Function(free_vars(expr), expr)
        return cls({"main": main})

    @overload
    def __getitem__(self, name: str | GlobalVar) -> Function: ...

    @overload
    def __getitem__(self, name: GlobalTypeVar) -> TypeData: ...

    def __getitem__(self, name: str | GlobalVar | GlobalTypeVar) -> Function | TypeData:
        if isinstance(name, GlobalTypeVar):
            if name not in self._types:
                raise AotcError(
                    "type", f"no data type {name}", hint=did_you_mean_hint(name.name, map(str, self._types))
                )
            return self._types[name]
        key = name.name if isinstance(name, GlobalVar) else name
        if key not in self._functions:
            raise AotcError("unknown-function", f"no function @{key}", hint=did_you_mean_hint(key, self._functions))
        return self._functions[key]

    def __setitem__(self, name: str | GlobalVar | GlobalTypeVar, value: Function | TypeData) -> None:
        """Add or replace a function or a data type in place, for users who build modules; passes
        make new modules.

        Raise AotcTypeError for a value that is not one of these, or a key that does not fit it.
        """
        self.typed = False
        if isinstance(value, TypeData) and isinstance(name, GlobalTypeVar):
            self._types[name] = value
            return
        key = name.name if isinstance(name, GlobalVar) else name
        if isinstance(value, Expr) and not isinstance(value, Function):
            value = Function(free_vars(value), value)
        if not isinstance(value, Function):
            raise AotcTypeError("module", f"a module holds functions, not {type(value).__name__}")
        if not isinstance(key, str):
            raise AotcTypeError("module", f"a function goes by a name or a GlobalVar, not by {type(key).__name__}")
        self._functions[FunctionName(key)] = value

    update_func = __setitem__

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: object) -> bool:
        return (name.name if isinstance(name, GlobalVar) else name) in self._functions

    @property
    def functions(self) -> Mapping[str, Function]:
        return MappingProxyType(self._functions)

    def get_global_vars(self) -> list[GlobalVar]:
        """Return the GlobalVars of all functions."""
        return [GlobalVar(name) for name in self]

    def get_global_var(self, name: str) -> GlobalVar:
        """Return the GlobalVar of a function; raise AotcError if there is none of this name."""
        self[name]
        return GlobalVar(name)

    @property
    def type_definitions(self) -> Mapping[GlobalTypeVar, TypeData]:
        return MappingProxyType(self._types)

    def get_type(self, name: str) -> list[Any]:
        """Return the GlobalTypeVar of a data type, followed by its constructors; raise AotcError if
        there is none of this name.
        """
        data = self[GlobalTypeVar(name)]
        return [data.header, *data.constructors]

    def get_constructor(self, tag: int) -> Any:
        """Return the data type constructor with a tag; raise AotcError if there is none."""
        matches = [c for data in self._types.values() for c in data.constructors if c.tag == tag]
        if not matches:
            raise AotcError("type", f"no constructor of an algebraic data type has the tag {tag}")
        return matches[0]

    def get_global_type_var(self, name: str) -> GlobalTypeVar:
        """Return the GlobalTypeVar of a data type; raise AotcError if there is none of this name."""
        return self[GlobalTypeVar(name)].header

    def update(self, other: Mapping[str, Function] | Mapping[GlobalVar, Function]) -> None:
        """Add the functions and data types of another module, or a mapping of functions; equal
        names are replaced.
        """
        self.typed = False
        self._types.update(other._types if isinstance(other, IRModule) else {})
        for name, function in other.items():
            self[name] = function

    @property
    def main(self) -> Function:
        """The entry function of the module, `main`."""
        return self["main"]

    def with_attr(self, key: str, value: Any) -> IRModule:
        """Return a module with one attribute added or replaced."""
        attrs = {**self.attrs, key: value}
        return IRModule(self._functions, attrs, self._types)

    def with_functions(self, updates: Mapping[str, Function]) -> IRModule:
        """Return a module with some functions added or replaced; the same object if nothing
        differs.
        """
        if all(self._functions.get(name) is f for name, f in updates.items()):
            return self
        return IRModule({**self._functions, **updates}, self.attrs, self._types)

    def without_functions(self, names: Collection[str]) -> IRModule:
        """Return a module without the functions of these names."""
        return IRModule({n: f for n, f in self._functions.items() if n not in names}, self.attrs, self._types)

    def with_function(self, name: str, function: Function) -> IRModule:
        """Return a module with one function added or replaced."""
        return self.with_functions({name: function})


def output_names_or_default(module: IRModule, count: int) -> Sequence[str]:
    """Return the names of the results of @main: the module attribute "output_names" if it is set,
    else default names.
    """
    usual = ["output"] if count == 1 else [f"output{k}" for k in range(count)]
    return module.attrs.get("output_names") or usual


def quantizations_of_inputs_or_outputs(module: IRModule, input_or_output: str, count: int) -> list[Quantization | None]:
    """Return the quantization of each input or output, from the module attributes
    "input_quantization" and "output_quantization".

    input_or_output    "input" or "output"
    count              number of inputs or outputs; the result has None where the quantization is not known
    """
    rows = module.attrs.get(f"{input_or_output}_quantization") or [None] * count
    return [row and Quantization(DType(row[0]), tuple(row[1]), tuple(row[2]), row[3]) for row in rows]


def unused_name(base_name: str, used_names: Collection[str]) -> str:
    """Return the name `base_name`, with a number appended if it is already used (an element of
    `used_names`).
    """
    number, name = 0, base_name
    while name in used_names:
        number += 1
        name = f"{base_name}_{number}"
    return name
