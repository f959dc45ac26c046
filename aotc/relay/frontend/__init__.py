# SPDX-License-Identifier: Apache-2.0
"""Front ends: other people's models become modules of the graph IR.

from aotc.relay.frontend.onnx import from_onnx
module = from_onnx("net.onnx", dims={"batch": 1})

The package itself is a door: `relay.frontend.from_onnx`, `from_pytorch` and `from_exported_program` give
a module and parameters, as Relay does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay.frontend import onnx as onnx
    from aotc.relay.frontend import pytorch as pytorch
    from aotc.relay_api.frontend import from_exported_program as from_exported_program
    from aotc.relay_api.frontend import from_onnx as from_onnx
    from aotc.relay_api.frontend import from_pytorch as from_pytorch

__getattr__, __dir__ = lazy_names(
    __name__, {"aotc.relay_api.frontend": "from_exported_program from_onnx from_pytorch"}, submodules="onnx pytorch"
)
