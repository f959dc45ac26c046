# SPDX-License-Identifier: Apache-2.0
"""Relay's Executor objects: the argument `executor` of `relay.build`.

Executor("aot", {"interface-api": "c"})["interface-api"]       # "c"

A compiled library supports the executors "graph" and "aot" alike, so the choice between them does
not change the result of a build. Values of options that a compiled library does not fulfill are
refused when the library is built.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from aotc.ir import AotcError

#: TVM's names for the types of option values.
_TVM_TYPE_NAMES = {bool: "IntImm", int: "IntImm", str: "runtime.String"}
_INTERFACE_OPTION_DEFAULTS: dict[str, Any] = {"interface-api": "packed", "unpacked-api": False}


class NamedVariant:
    """A named variant with options that have defaults; the base of Executor and Runtime.

    Raise AotcError for an unknown name, unknown options, and option values of a wrong type.
    """

    _options_by_variant_name: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Values of options, besides the defaults, that every compiled library fulfills.
    _values_of_every_library: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        class_name, types = type(self).__name__, self.list_registered_options(name)
        for key, value in (options or {}).items():
            if key not in types:
                raise AotcError("executor", f'Attribute "{key}" is not available on this {class_name}')
            if (given := _TVM_TYPE_NAMES.get(type(value), type(value).__name__)) != types[key]:
                text = f'Attribute "{key}" should have type "{types[key]}" but instead found "{given}"'
                raise AotcError("executor", text)
        self.name, self.attrs = name, {**self._options_by_variant_name[name], **(options or {})}

    def __contains__(self, name: object) -> bool:
        return name in self.attrs

    def __getitem__(self, name: str) -> Any:
        return self.attrs[name]

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self.name)

    def check_options_are_supported(self) -> None:
        """Raise AotcError (code "executor") if an option has a value that compiled libraries do not
        fulfill.
        """
        for option, value in self.attrs.items():
            default = self._options_by_variant_name[self.name][option]
            if value not in (default, self._values_of_every_library.get(option, default)):
                text = f"{type(self).__name__} {self.name!r}: the option {option!r} = {value!r} is not supported"
                raise AotcError("executor", text, hint=f"leave it out; {default!r} is supported")

    @classmethod
    def list_registered(cls) -> list[str]:
        """Return the names of the known variants."""
        return list(cls._options_by_variant_name)

    @classmethod
    def list_registered_options(cls, name: object) -> dict[str, str]:
        """Return the options of a name with TVM's names of their types; raise AotcError for an
        unknown name.
        """
        if (key := str(name)) not in cls._options_by_variant_name:
            hint = f"known: {', '.join(cls._options_by_variant_name)}"
            raise AotcError("executor", f'{cls.__name__} "{key}" is not defined', hint=hint)
        return {option: _TVM_TYPE_NAMES[type(default)] for option, default in cls._options_by_variant_name[key].items()}


class Executor(NamedVariant):
    """Relay's executor, "graph" or "aot", with its options."""

    _options_by_variant_name: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "graph": {"link-params": False},
        "aot": {"link-params": True, **_INTERFACE_OPTION_DEFAULTS, "workspace-byte-alignment": 16},
    }
    # parameters are part of every library
    _values_of_every_library: ClassVar[Mapping[str, Any]] = {"link-params": True}
