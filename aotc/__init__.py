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

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aotc import contrib as contrib
    from aotc import instrument as instrument
    from aotc import ir as ir
    from aotc import nd as nd
    from aotc import relay as relay
    from aotc import runtime as runtime
    from aotc import target as target
    from aotc import testing as testing
    from aotc import transform as transform
    from aotc.driver.compile import CompiledModel as CompiledModel
    from aotc.driver.compile import compile as compile
    from aotc.ir.device import Device as Device
    from aotc.ir.device import cpu as cpu
    from aotc.ir.device import cuda as cuda
    from aotc.ir.device import device as device
    from aotc.ir.diagnostics import AotcError as AotcError
    from aotc.relay.module import IRModule as IRModule
    from aotc.runtime.session import Session as Session
    from aotc.runtime.session import load as load

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aotc.driver.compile": "CompiledModel compile",
        "aotc.ir.device": "Device cpu cuda device",
        "aotc.ir.diagnostics": "AotcError",
        "aotc.relay.module": "IRModule",
        "aotc.runtime.session": "Session load",
    },
    submodules="contrib instrument ir nd relay runtime target testing transform",
)
