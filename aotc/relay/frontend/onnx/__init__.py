# SPDX-License-Identifier: Apache-2.0
"""The ONNX front end: import a .onnx file or ModelProto as a module of the graph IR.

load          reads and validates files: versions, duplicate names, cycles, external data
model_inputs  names and types of the inputs, with dynamic dimensions fixed to the caller's values
cut           extracts the part of a model between given tensors
convert       converts the nodes in topological order
ops_*         one converter per ONNX operator, by family; `converter_table` lists them

    from aotc.relay.frontend.onnx import from_onnx
    module = from_onnx("net.onnx", dims={"batch": 1})
"""

from aotc.relay.frontend.onnx.convert import from_onnx
from aotc.relay.frontend.onnx.converter_table import supported_ops
from aotc.relay.frontend.onnx.cut import cut_model
from aotc.relay.frontend.onnx.load import load_model

__all__ = ["cut_model", "from_onnx", "load_model", "supported_ops"]
