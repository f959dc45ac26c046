# SPDX-License-Identifier: Apache-2.0
"""The tables of all TFLite converters: by the schema's names of builtin operators, and by the names of
custom operators.

CONVERTERS["CONV_2D"], CUSTOM_CONVERTERS["MaxUnpooling2D"]
"""

from typing import Final

from aotc.relay.frontend.tflite import (
    detection_postprocess,
    lstm,
    ops_control,
    ops_found_sizes,
    ops_math,
    ops_mediapipe,
    ops_nn,
    ops_random,
    ops_recurrent,
    ops_resize,
    ops_scatter,
    ops_shape,
    ops_signal,
    ops_stablehlo,
    ops_stablehlo_indexing,
    ops_stablehlo_windows,
)
from aotc.relay.frontend.tflite.node import Table

_CONVERTER_MODULES: Final = (
    *(lstm, ops_control, ops_found_sizes, ops_math, ops_nn),
    *(ops_resize, ops_scatter, ops_recurrent, ops_shape, ops_signal, ops_stablehlo),
    *(ops_random, ops_stablehlo_indexing, ops_stablehlo_windows),
)
CONVERTERS: Final[Table] = {name: c for family in _CONVERTER_MODULES for name, c in family.OPS.items()}
#: Converters of custom operators, by the names that files state.
CUSTOM_CONVERTERS: Final[Table] = {**detection_postprocess.CUSTOM_OPS, **ops_mediapipe.CUSTOM_OPS}
#: Operators whose converters compute with quantized integers (INTEGERS), and operators whose
#: converters move quantized integers unchanged, so that inputs and outputs must have equal scales
#: (MOVES).
INTEGERS: Final[frozenset[str]] = frozenset().union(*(family.INTEGERS for family in _CONVERTER_MODULES))
MOVES: Final[frozenset[str]] = frozenset().union(*(family.MOVES for family in _CONVERTER_MODULES))
#: Operators that dequantize quantized inputs.
DEQUANTIZING: Final[frozenset[str]] = frozenset(detection_postprocess.CUSTOM_OPS)
