# SPDX-License-Identifier: Apache-2.0
"""Scheduling: the tensor expressions of one fused function in, one kernel of loop nests out.

x = te.placeholder((4, 8), "float32", "x")
y = te.compute((4, 8), lambda i, j: maximum(x[i, j], 0.0), "relu")
schedule("relu", [x], [y], target)                 # Kernel: for i in 0..32: relu[i] = max(x[i], 0)
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.span import Span
from aotc.tir import te
from aotc.tir.schedule.lower import Lowering
from aotc.tir.stmt import Kernel, remembered_kernel
from aotc.tir.target import Target


def schedule(
    name: str, inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor], target: Target, span: Span | None = None
) -> Kernel:
    """One kernel that computes `outputs` (at least one, of any kind of tensor) from `inputs`.

    Kernel parameters are `inputs`, then `outputs`, in the order given, then workspace.
    Raises AotcError (code "schedule") if an output needs a placeholder that is not among the inputs.
    """
    source = (name, tuple(inputs), tuple(outputs), target)
    return remembered_kernel("schedule", source, span, lambda: Lowering(name, inputs, outputs, target).kernel())
