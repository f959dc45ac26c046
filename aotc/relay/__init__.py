# SPDX-License-Identifier: Apache-2.0
"""The graph IR under Relay's names: expressions, operators, passes, the text format, and `build`.

from aotc import relay
x = relay.var("x", shape=(1, 3))
lib = relay.build(aotc.IRModule.from_expr(relay.nn.relu(x)), "llvm")
"""

import importlib
import typing as _typing

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.ir.op import Op as _Op
from aotc.relay.module import IRModule as _IRModule
from aotc.relay.printable_as_text_base_class import Printed as _Printed
from aotc.relay.text import printer as _printer

_Printed.astext = _Op.astext = _printer.astext
_Printed.to_text = _printer.to_text


def _operator_functions_by_name() -> _typing.Mapping[str, _typing.Any]:
    """Return Relay's operator functions by name; the import registers operators and passes."""
    op_functions: _typing.Mapping[str, _typing.Any] = importlib.import_module(
        "aotc.relay_api.expr"
    ).op_functions_with_prefix("")
    return op_functions


def _import_from_std(module: _IRModule, name: str) -> None:
    """Add the data types and functions of the prelude to a module: see `aotc.relay_api.prelude`."""
    importlib.import_module("aotc.relay_api.prelude").import_from_std(module, name)


_IRModule.import_from_std = _import_from_std

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__, extra_names=_operator_functions_by_name)
