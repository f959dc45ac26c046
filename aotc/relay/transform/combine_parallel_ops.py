# SPDX-License-Identifier: Apache-2.0
"""CombineParallelConv2D, CombineParallelDense, CombineParallelBatchMatmul: calls on the same data as one.

CombineParallelDense(min_num_branches=3, to_batch=False)
nn.dense(%x, %a), nn.dense(%x, %b), nn.dense(%x, %c)
%0 = nn.dense(%x, concatenate((%a, %b, %c)))          # and a strided_slice of %0 for each

In: typed functions.  Out: the same values from fewer, larger calls; see `combine_parallel`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from aotc.relay.expr import Call, Expr, Function, tensor_type_of
from aotc.relay.op.binary import add
from aotc.relay.op.conv import ConvAttrs
from aotc.relay.op.dense import BiasAddAttrs, batch_matmul
from aotc.relay.op.join import stack
from aotc.relay.op.shape import expand_dims, reshape, squeeze
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.window import full_padding, spread
from aotc.relay.transform.base import FunctionPass, recall
from aotc.relay.transform.combine_parallel import (
    Combination,
    Concatenation,
    Group,
    Step,
    combine,
    is_static,
    same_value,
)


def _same_windows(a: ConvAttrs) -> Hashable | None:
    if a.groups != 1 or not a.kernel_layout.isalpha():  # packed kernels have blocks to fill
        return None
    window = (spread(a.strides, 2), full_padding(a.padding, 2), spread(a.dilation, 2))
    return (window, a.data_layout, a.kernel_layout, a.out_layout or a.data_layout, a.out_dtype)


_CONVOLUTIONS: Final = Concatenation(
    "nn.conv2d",
    _same_windows,
    lambda a, _: (a.out_layout or a.data_layout).index("C"),
    lambda a: a.kernel_layout.index("O"),
    "channels",
)
_DENSES: Final = Concatenation("nn.dense", lambda a: a.out_dtype, lambda _, rank: rank - 1, lambda _: 0, "units")
_BATCH_MATMULS: Final = Concatenation(
    "nn.batch_matmul", lambda a: a, lambda _, rank: 2, lambda a: 1 if a.transpose_b else 2
)


class _DenseBatch(Combination):
    """Dense products of equal sizes as the matrices of one batch: results of (M, N) become one of (B, M, N)."""

    name = "nn.dense"

    def key(self, node: Call) -> Hashable | None:
        weight = tensor_type_of(node.args[1])
        static = tensor_type_of(node).rank == 2 and is_static(node.args[1])
        return (node.attrs["out_dtype"], weight.shape, str(weight.dtype)) if static else None

    def joint(self, group: Group, args: Sequence[Sequence[Expr]]) -> Expr:
        out_dtype = group.anchors[0].attrs["out_dtype"]
        return batch_matmul(expand_dims(args[0][0], 0), stack([a[1] for a in args]), out_dtype)

    def accepts(self, step: Step, group: Group) -> bool:
        first = step.nodes[0]
        if isinstance(first.attrs, BiasAddAttrs) and (first.attrs.axis not in (1, -1) or step.position != 0):
            return False
        columns = list(zip(*(node.args for node in step.nodes), strict=True))
        return all(
            k == step.position or same_value(c) or len({str(tensor_type_of(e)) for e in c}) == 1
            for k, c in enumerate(columns)
        )

    def step(self, step: Step, group: Group, value: Expr, operands: Sequence[Sequence[Expr]]) -> Expr:
        first = step.nodes[0]
        args = [value if k == step.position else _stacked(c) for k, c in enumerate(zip(*operands, strict=True))]
        return add(*args) if isinstance(first.attrs, BiasAddAttrs) else recall(first, args)

    def parts(self, value: Expr, group: Group) -> list[Expr]:
        numbers = range(len(group.anchors))
        return [squeeze(strided_slice(value, (k,), (k + 1,), axes=(0,)), 0) for k in numbers]


def _stacked(operands: Sequence[Expr]) -> Expr:
    """Operands that broadcast to matrices as one that broadcasts to the batch of them."""
    if same_value(operands):
        return operands[0]
    shape = tensor_type_of(operands[0]).static_shape
    matrix = (*(1,) * (2 - len(shape)), *shape)
    return stack([o if shape == matrix else reshape(o, matrix) for o in operands])


@dataclass(frozen=True, repr=False)
class _CombineParallel(FunctionPass):
    """Calls as `how` says; fewer than `min_num_branches` stay."""

    opt_level = 4

    min_num_branches: int = 3

    how: ClassVar[Combination]

    def rewritten(self, function: Function) -> Function:
        return combine(function, self.how, self.min_num_branches)


class CombineParallelConv2D(_CombineParallel):
    """Convolutions of one group on the same data, with the same windows and layouts, as one with all their channels.

    Elementwise operators that follow in all branches are combined too.  Fewer than `min_num_branches` stay.
    """

    how = _CONVOLUTIONS


@dataclass(frozen=True, repr=False)
class CombineParallelDense(_CombineParallel):
    """Dense products of the same data as one.

    to_batch   True: weights of one shape are stacked, for one nn.batch_matmul (data of rank 2); False: any numbers of
               units, concatenated for one nn.dense
    """

    to_batch: bool = True

    def rewritten(self, function: Function) -> Function:
        return combine(function, _DenseBatch() if self.to_batch else _DENSES, self.min_num_branches)


class CombineParallelBatchMatmul(_CombineParallel):
    """Batched products with the same first operand as one, the second operands' columns side by side."""

    how = _BATCH_MATMULS
