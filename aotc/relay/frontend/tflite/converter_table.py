# SPDX-License-Identifier: Apache-2.0
"""The table of all TFLite converters, by the schema's names of builtin operators.

CONVERTERS["CONV_2D"]
"""

from typing import Final

from aotc.relay.frontend.tflite import lstm, ops_control, ops_math, ops_nn, ops_shape
from aotc.relay.frontend.tflite.node import Table

_CONVERTER_MODULES: Final = (lstm, ops_control, ops_math, ops_nn, ops_shape)
CONVERTERS: Final[Table] = {name: c for family in _CONVERTER_MODULES for name, c in family.OPS.items()}
#: Operators whose converters compute with quantized integers (INTEGERS), and operators whose
#: converters move quantized integers unchanged, so that inputs and outputs must have equal scales
#: (MOVES).
INTEGERS: Final[frozenset[str]] = frozenset().union(*(family.INTEGERS for family in _CONVERTER_MODULES))
MOVES: Final[frozenset[str]] = frozenset().union(*(family.MOVES for family in _CONVERTER_MODULES))
