# SPDX-License-Identifier: Apache-2.0
"""Layouts of packed weights on which several versions of a model agree, such as those for batches of 1 and of 8.

layouts = CommonWeightLayouts()
with use_common_weight_layouts(layouts):
    first = optimize(model_of_64_rows, target)
with use_common_weight_layouts(replace(layouts, is_complete=True)):
    second = optimize(model_of_one_row, target)

The first graph that is optimized chooses its layouts alone. Each later one takes them instead of its own choice if
parameters must not grow, on GPUs, whose memory holds all weights from the start, and for weights of matrix products
that exceed the second-level cache. Layouts of these differ in the width of their blocks, and a product of few rows
spends most of its time reading them.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aotc.ir import temporarily_set_context_variable
from aotc.relay.graph_api import Call, Constant, tensor_type_of
from aotc.tir import Target


@dataclass(frozen=True)
class CommonWeightLayouts:
    """Layouts of packed weights.

    chosen         layouts by contents of a weight, and by what else the choice depends on
    is_complete    False for the graph that chooses, True for those that take its layouts
    """

    chosen: dict[tuple[str, ...], str] = field(default_factory=dict)
    is_complete: bool = False

    def layout(self, weight: np.ndarray[Any, Any], kind: str, own: str, target: Target, is_product: bool) -> str:
        """Return the layout in which a graph stores a weight.

        kind         what else a layout is chosen for: types, layouts of data and weight, groups
        own          the layout that is best for this graph; "" to leave the weight as it is
        is_product   True for the weight of a matrix product, False for that of a convolution
        """
        digest = hashlib.sha256(np.ascontiguousarray(weight).view(np.uint8).data).hexdigest()
        key = (digest, str(weight.dtype), str(weight.shape), kind)
        if not self.is_complete:
            self.chosen[key] = own
            return own
        is_far = is_product and weight.nbytes > target.l2
        pays = target.budget.parameter_growth > 1.0 and not is_far and target.gpu is None
        return own if pays else self.chosen.get(key, own)


_COMMON_WEIGHT_LAYOUTS: Final[ContextVar[CommonWeightLayouts | None]] = ContextVar(
    "common_weight_layouts", default=None
)


def use_common_weight_layouts(layouts: CommonWeightLayouts) -> AbstractContextManager[object]:
    """Return a context in which graphs agree on layouts of weights."""
    return temporarily_set_context_variable(_COMMON_WEIGHT_LAYOUTS, layouts)


def common_weight_layout(call: Call, kind: str, own: str, target: Target, *, is_product: bool = False) -> str:
    """Return the layout in which a graph stores the weight of a call, its second operand: `own` outside of
    `use_common_weight_layouts`, and for a weight that is no constant.
    """
    layouts, weight = _COMMON_WEIGHT_LAYOUTS.get(), call.args[1]
    if layouts is None or not isinstance(weight, Constant):
        return own
    types = f"{tensor_type_of(call.args[0]).dtype} {tensor_type_of(call).dtype}"
    return layouts.layout(weight.data, f"{types} {kind}", own, target, is_product)
