# SPDX-License-Identifier: Apache-2.0
"""The TFLite front end: import .tflite files as modules of the graph IR.

load               reads and validates files: tensors, operators, buffers
node               the interface through which a converter reads its operator
interpreter_integer_arithmetic  which reference kernels the integer results match: TFLite Micro's or LiteRT's
ops_*              one converter per builtin operator, by family; `converter_table` lists them
resource_variables  the variables that runs keep
convert            converts the operators in order

    from aotc.relay.frontend.tflite import from_tflite
    module = from_tflite("net.tflite", rounding="litert")

Importing this package requires the package `tflite`, the schema of the format.
"""

from aotc.relay.frontend.tflite.convert import from_tflite, import_tflite, input_types_of_tflite
from aotc.relay.frontend.tflite.converter_table import CONVERTERS, CUSTOM_CONVERTERS
from aotc.relay.frontend.tflite.load import read_model

__all__ = ["CONVERTERS", "CUSTOM_CONVERTERS", "from_tflite", "import_tflite", "input_types_of_tflite", "read_model"]
