# SPDX-License-Identifier: Apache-2.0
"""Front ends: import ONNX, PyTorch and TFLite models as modules of the graph IR.

from aotc.relay.frontend.onnx import from_onnx
module = from_onnx("net.onnx", dims={"batch": 1})

All front ends build graphs with the functions of `op_calls`. `converter_signatures` reads from the
signature of a converter which inputs and attributes it takes, and `error_collection` reports all
problems of a model in one error. Builders that several front ends share are `conv_pool`,
`matmul_einsum`, `normalization`, `activations`, `reductions`, `recurrent`, `quantization` and
`slice_pad_depth_to_space`. A front end is a table of converters, one per operator, that call these
modules.

`relay.frontend.from_onnx`, `from_pytorch`, `from_exported_program` and `from_tflite` return a
module and its parameters, as the functions of TVM's Relay do.
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
