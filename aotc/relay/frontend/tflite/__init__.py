# SPDX-License-Identifier: Apache-2.0
"""The TFLite front end: .tflite files become modules of the graph IR.

load      files as data: tensors, operators, buffers, all checked
node      what a converter is given of an operator
rounding  whose integers: those of TFLite Micro, or of LiteRT
ops_*     one converter per builtin operator, in families; `table` lists them
convert   the walk over the operators

    module = from_tflite("net.tflite", rounding="litert")

Importing this package needs `tflite`, the schema of the format.
"""

from aotc.relay.frontend.tflite.convert import from_tflite
from aotc.relay.frontend.tflite.converter_table import CONVERTERS
from aotc.relay.frontend.tflite.load import read_model

__all__ = ["CONVERTERS", "from_tflite", "read_model"]
