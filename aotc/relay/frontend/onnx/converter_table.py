# SPDX-License-Identifier: Apache-2.0
"""The table of all ONNX converters, by operator domain and operator name.

converter_of("", "Conv")                # a converter
supported_ops()                         # {"": ("Abs", ...), "ai.onnx.ml": (...)}
"""

from collections.abc import Mapping
from typing import Final

from aotc.relay.frontend.onnx import (
    microsoft_operator_schemas,
    ops_categories,
    ops_classical_ml,
    ops_control,
    ops_conv,
    ops_found_sizes,
    ops_fourier,
    ops_legacy,
    ops_loops,
    ops_low_bit_weights,
    ops_math,
    ops_matmul_norm_recurrent,
    ops_microsoft_attention,
    ops_microsoft_decoder_attention,
    ops_microsoft_fused,
    ops_microsoft_grouped_attention,
    ops_ngrams,
    ops_quant,
    ops_random,
    ops_resize_grids,
    ops_run_time_sequences,
    ops_scans,
    ops_sequences,
    ops_shape,
    ops_string_casts,
    ops_strings,
    ops_training,
    ops_tree_ensemble,
)
from aotc.relay.frontend.onnx.node import Converter, Table

_CONVERTER_MODULES = (
    ops_control,
    ops_conv,
    ops_fourier,
    ops_legacy,
    ops_loops,
    ops_math,
    ops_matmul_norm_recurrent,
    ops_ngrams,
    ops_quant,
    ops_random,
    ops_scans,
    ops_sequences,
    ops_found_sizes,
    ops_shape,
    ops_string_casts,
    ops_resize_grids,
)

_CONVERTERS_BY_DOMAIN: Final[Mapping[str, Table]] = {
    "": {name: converter for family in _CONVERTER_MODULES for name, converter in family.OPS.items()},
    "ai.onnx.ml": {**ops_categories.OPS, **ops_classical_ml.OPS, **ops_tree_ensemble.OPS},
    ops_training.DOMAIN: ops_training.OPS,
    microsoft_operator_schemas.DOMAIN: {
        **ops_quant.MICROSOFT_OPS,
        **ops_low_bit_weights.OPS,
        **ops_microsoft_attention.OPS,
        **ops_microsoft_fused.OPS,
        **ops_microsoft_decoder_attention.OPS,
        **ops_microsoft_grouped_attention.OPS,
    },
    microsoft_operator_schemas.CHANNELS_LAST_DOMAIN: ops_microsoft_fused.CHANNELS_LAST_OPS,
}


#: Converters of operators some of whose inputs are strings.
_CONVERTERS_OF_STRINGS: Final[Mapping[str, Table]] = {
    "": ops_strings.OPS,
    "ai.onnx.ml": ops_strings.ML_OPS,
    microsoft_operator_schemas.DOMAIN: ops_strings.MICROSOFT_OPS,
}


def converter_of_run_time_sequences(domain: str, op_type: str) -> Converter | None:
    """Return the converter function of an ONNX operator some of whose inputs are sequences of run-time length, or
    None if the front end has none for it.
    """
    return None if domain else ops_run_time_sequences.OPS.get(op_type)


def converter_of(domain: str, op_type: str, *, of_strings: bool = False) -> Converter | None:
    """Return the converter function of an ONNX operator, or None if the front end has none for it.

    of_strings    True if an input is a tensor of strings
    """
    return (_CONVERTERS_OF_STRINGS if of_strings else _CONVERTERS_BY_DOMAIN).get(domain, {}).get(op_type)


def supported_ops() -> dict[str, tuple[str, ...]]:
    """Return the names of the ONNX operators that have a converter, by domain, in alphabetical
    order.
    """
    return {
        domain: tuple(sorted({*table, *_CONVERTERS_OF_STRINGS.get(domain, {})}))
        for domain, table in _CONVERTERS_BY_DOMAIN.items()
    }
