# SPDX-License-Identifier: Apache-2.0
"""Relay's operators: one OpDef each, defined in one file per family and collected in
OPERATORS_BY_NAME.

from aotc.relay.op import OPERATORS_BY_NAME, add, get
OPERATORS_BY_NAME["nn.conv2d"].pattern          # OpPattern.OUT_ELEMWISE_FUSABLE
add(x, y), get("add")                  # Relay's functions that build calls, and its operator registry
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from aotc.relay.op.opdef import OpDef

_OPERATOR_MODULE_NAMES = (
    "elementwise_unary",
    "binary_elementwise",
    "cast_clip_prelu",
    "reduce",
    "shape",
    "run_time_permutation",
    "layout",
    "concat_split",
    "pad",
    "slice",
    "gather",
    "advanced_indexing",
    "scatter",
    "tensor_creation",
    "conv",
    "conv_transpose",
    "winograd_conv",
    "dense",
    "packed_dense",
    "packed_integer_dense",
    "pool",
    "normalization",
    "softmax",
    "resize",
    "space_to_depth_and_batch",
    "grid_sample",
    "sorting",
    "cumulative",
    "recurrent",
    "reshape_slice_cast_like",
    "sequence_mask_set_diagonal",
    "loss",
    "sparse_coordinates",
    "roi_ops",
    "morphology_correlation",
    "non_max_suppression",
    "anchor_boxes",
    "bitcast_fixed_point_multiply",
    "sliding_window_dft_stft",
    "einsum",
    "dyn",
    "unique_and_segments",
    "found_sizes",
    "selected_boxes",
    "unique_rows",
    "tree_ensemble",
    "compact_tree_ensemble",
    "pairwise_coupling",
    "matrix_determinant",
    "automaton",
    "annotation",
    "qnn.target_independent_rounding",
    "qnn.requantize",
    "qnn.convolution",
    "qnn.dense_batch_matmul",
    "qnn.add_subtract_mul",
    "qnn.lookup_table",
    "qnn.concatenate",
    "qnn.pool",
    "qnn.softmax",
    "qnn.lstm",
)
#: Modules that define operators, in the order in which tables of operators list them.
OPERATOR_MODULES = tuple(import_module(f"{__name__}.{family}") for family in _OPERATOR_MODULE_NAMES)


def operators_defined_in(module: ModuleType) -> tuple[OpDef, ...]:
    """Return the operators that a module defines, in source order."""
    return tuple(value for value in vars(module).values() if isinstance(value, OpDef))


#: All operators by name.
OPERATORS_BY_NAME: Mapping[str, OpDef] = MappingProxyType(
    {op.name: op for family in OPERATOR_MODULES for op in operators_defined_in(family)}
)


def __getattr__(name: str) -> Any:
    """Return a name of Relay's API: a builder function of an operator without prefix, or a name of
    `aotc.relay.op.op`.
    """
    if name in ("nn", "image", "vision", "op"):
        return import_module(f"{__name__}.{name}")
    functions = import_module(f"{__name__}.call_builders").FUNCTIONS
    value = functions.get(name) if "." not in name else None
    value = value or vars(import_module(f"{__name__}.op")).get(name)
    if value is None or name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return value
