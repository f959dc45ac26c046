# SPDX-License-Identifier: Apache-2.0
"""The ONNX front end: a .onnx file or ModelProto becomes a module
of the graph IR.

load      files and protos, checked: versions, duplicates, cycles, external data
signature inputs and their types, dynamic dimensions pinned
cut       the part of a model between given tensors
convert   the walk over the graph
ops_*     one converter per ONNX operator, in families; `table` lists them

    module = from_onnx("net.onnx", dims={"batch": 1})
"""

from aotc.relay.frontend.onnx.convert import from_onnx
from aotc.relay.frontend.onnx.converter_table import supported_ops
from aotc.relay.frontend.onnx.cut import cut_model
from aotc.relay.frontend.onnx.load import load_model

__all__ = ["cut_model", "from_onnx", "load_model", "supported_ops"]
