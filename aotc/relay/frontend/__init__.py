# SPDX-License-Identifier: Apache-2.0
"""Front ends: other people's models become modules of the graph IR.

from aotc.relay.frontend.onnx import from_onnx
module = from_onnx("net.onnx", dims={"batch": 1})

The package itself is a door: `relay.frontend.from_onnx`, `from_pytorch` and
`from_exported_program` give a module and parameters, as Relay does.
"""

from aotc.ir.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
