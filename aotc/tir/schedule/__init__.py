# SPDX-License-Identifier: Apache-2.0
"""Scheduling: lower the tensor expressions of one fused function to one kernel of loop nests.

    >>> from aotc.tir import expr, target, te
    >>> x = te.placeholder((4, 8), "float32", "x")
    >>> y = te.compute((4, 8), lambda i, j: expr.maximum(x[i, j], 0.0), "relu")
    >>> kernel = schedule("relu", [x], [y], target.get_target("x86-64-v3"))
    >>> [(buffer.name, buffer.size) for buffer in kernel.params]
    [('x', 32), ('relu', 32)]
    >>> kernel.inplace                          # output 0 may overwrite input 0
    ((0, 0),)

`schedule` combines the packages below, each of which imports only packages listed before it:

    contraction   builds the register-tiled loop nest of one sum of products
    stages        decides which tensors are stored and which loops are shared, builds epilogues
    algorithms    Winograd convolution, attention and recurrent layers, built on both
"""

from collections.abc import Sequence

from aotc.ir.span import Span
from aotc.tir import Kernel, Target, memoized_kernel, te
from aotc.tir.schedule.kernel_lowering import Lowering
from aotc.tir.stmt import Number


def schedule(
    name: str,
    inputs: Sequence[te.Placeholder],
    outputs: Sequence[te.Tensor],
    target: Target,
    span: Span | None = None,
    numbers: Sequence[Number] = (),
) -> Kernel:
    """Return one kernel that computes `outputs` (at least one, of any kind of tensor) from
    `inputs`.

    The parameters of the kernel are `inputs`, then `outputs`, in the order given, then workspace, then
    those of `numbers` that it needs: the variables of the symbols (`variable_of_symbol`) in the shapes,
    with their intervals.

    Raise AotcError (code "schedule") if an output needs a placeholder that is not among the inputs.
    """
    source: tuple[object, ...] = (name, tuple(inputs), tuple(outputs), target)
    source = (*source, tuple(numbers)) if numbers else source
    return memoized_kernel(
        "schedule", source, span, lambda: Lowering(name, inputs, outputs, target, numbers).build_kernel()
    )
