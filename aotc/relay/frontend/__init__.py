# SPDX-License-Identifier: Apache-2.0
"""Front ends: other people's models become modules of the graph IR.

from aotc.relay.frontend.onnx import from_onnx
module = from_onnx("net.onnx", dims={"batch": 1})

`graph` is the vocabulary in which all of them build, `arguments`
reads what a converter asks for, `problems` collects what is wrong
with a model; beside them lie builders by idea: `windows`,
`products`, `normalization`, `activations`, `reductions`,
`recurrent`, `quantization`, `shapes`.  A front end is a table of
converters on top of these.

The package itself is a door: `relay.frontend.from_onnx`,
`from_pytorch`, `from_exported_program` and `from_tflite` give a module and
parameters, as Relay does.
"""

from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
