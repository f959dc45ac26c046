# SPDX-License-Identifier: Apache-2.0
"""aotc: an ahead-of-time compiler from neural networks to self-contained C.

    import aotc
    model = aotc.compile("model.onnx", output="build/model")
    session = aotc.load(model.library)
    outputs = session.run(None, {"input": array})

This module is a door: it re-exports public names lazily, so that `aotc.load` pulls in neither onnx nor
the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aotc.driver.compile import CompiledModel, compile
    from aotc.ir.diagnostics import AotcError
    from aotc.relay.module import IRModule
    from aotc.runtime.session import Session, load

_HOME = {
    "AotcError": "aotc.ir.diagnostics",
    "CompiledModel": "aotc.driver.compile",
    "IRModule": "aotc.relay.module",
    "Session": "aotc.runtime.session",
    "compile": "aotc.driver.compile",
    "load": "aotc.runtime.session",
}
__all__ = ["AotcError", "CompiledModel", "IRModule", "Session", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'aotc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
