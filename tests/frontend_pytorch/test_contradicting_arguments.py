# SPDX-License-Identifier: Apache-2.0
"""Arguments that contradict shapes, and numbers too large for any tensor, which only damaged programs have, give one
error each with the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from aotc.ir import AotcError, TensorType
from aotc.ir.compilation_work_and_memory_limits import running_or_new_budget_scope
from aotc.relay.frontend import from_exported_program
from aotc.relay.frontend.pytorch.operator_conversion import convert_operator_call
from aotc.relay.graph_api import Var, tensor_type_of
from aotc.relay.type_inference import infer_module

A = torch.ops.aten
INT32_MAX = 2**31 - 1
NAMES = {torch.float32: "float32", torch.int64: "int64"}


def t(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def index(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def lstm(hidden: int, inner: int) -> list[torch.Tensor]:
    return [t(4 * hidden, inner), t(4 * hidden, hidden), t(4 * hidden), t(4 * hidden)]


_HEADS = [t(1, 5, 12), t(1, 5, 12), t(1, 5, 12), 12, 3, t(36, 12), t(36), t(12, 12), t(12)]
_STATE = [t(1, 2, 4), t(1, 2, 4)]
#: Operator, arguments that fit, and by position arguments that do not.
Case = tuple[Any, Sequence[Any], Mapping[int, Sequence[Any]]]
CASES: list[Case] = [
    (A.convolution.default, [t(1, 4, 5, 5), t(6, 4, 3, 3), t(6), [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
     {3: ([0, 1], [-1, 1], [1, 1, 1], []), 4: ([-1, 0], [0, 0, 0]), 5: ([0, 1], [-1, 1], [1, 1, 1]), 7: ([-1, 0],),
      8: (0, -1, 2, 3, INT32_MAX), 1: (t(6, 3, 3, 3), t(6, 4, 3)), 2: (t(5), t(6, 1))}),
    (A.convolution.default, [t(1, 4, 5, 5), t(4, 2, 3, 3), t(4), [2, 2], [1, 1], [1, 1], True, [1, 1], 2],
     {3: ([0, 1],), 7: ([2, 1], [-1, 0], [1, 1, 1], [INT32_MAX, 0]), 8: (0, -1, 3, INT32_MAX), 1: (t(6, 2, 3, 3),),
      2: (t(5),)}),
    (A.conv2d.default, [t(1, 4, 5, 5), t(6, 2, 3, 3), t(6), [1, 1], [0, 0], [1, 1], 2], {6: (1, 4, 0, 3, INT32_MAX)}),
    (A.max_pool2d.default, [t(1, 4, 5, 5), [2, 2], [2, 2], [0, 0], [1, 1]],
     {1: ([0, 2], [-1, 2], [6, 6], [2, 2, 2]), 2: ([0, 1], [-1, 1], [1, 1, 1]), 3: ([2, 2], [-1, 0], [INT32_MAX, 0]),
      4: ([0, 1], [5, 5])}),
    (A.avg_pool2d.default, [t(1, 4, 5, 5), [2, 2], [2, 2], [0, 0], False, True, None],
     {1: ([0, 2], [6, 6]), 2: ([0, 1],), 3: ([2, 2], [-1, 0]), 6: (0,)}),
    (A.adaptive_avg_pool2d.default, [t(1, 4, 5, 5), [2, 2]], {1: ([-1, 2], [2, 2, 2])}),
    (A.upsample_nearest2d.default, [t(1, 4, 5, 5), [7, 7], None, None], {1: ([0, 2], [-1, 2], [7], [7, 7, 7])}),
    (A.upsample_nearest2d.vec, [t(1, 4, 5, 5), None, [2.0, 2.0]], {2: ([0.0, 1.0], [-1.0, 1.0], [2.0])}),
    (A.grid_sampler.default, [t(1, 4, 5, 5), t(1, 3, 3, 2), 0, 0, False], {1: (t(1, 3, 3, 3), t(2, 3, 3, 2))}),
    (A.im2col.default, [t(1, 4, 5, 5), [3, 3], [1, 1], [0, 0], [1, 1]],
     {1: ([0, 3], [6, 6], [-1, 3]), 2: ([0, 1],), 3: ([-1, 0],), 4: ([0, 1],)}),
    (A.group_norm.default, [t(2, 6, 4), 3, t(6), t(6), 1e-5, False], {1: (0, -1, 4, INT32_MAX), 2: (t(5),),
     3: (t(3),)}),
    (A.native_group_norm.default, [t(2, 6, 4), t(6), t(6), 2, 6, 4, 3, 1e-5],
     {3: (1, 3), 4: (5, 7, 0), 5: (3, 5), 6: (4, 5, INT32_MAX), 1: (t(5),), 2: (t(3),)}),
    (A.layer_norm.default, [t(2, 3, 4), [3, 4], t(3, 4), t(3, 4)],
     {1: ([4], [4, 3], [12], [2, 2, 3, 4], [INT32_MAX]), 2: (t(12), t(4, 3))}),
    (A.native_layer_norm.default, [t(2, 3, 4), [4], t(4), t(4), 1e-5], {1: ([3], [2, 3], []), 2: (t(3),), 3: (t(5),)}),
    (A.rms_norm.default, [t(2, 3, 4), [4], t(4)], {1: ([3], [2, 3, 4, 5], [INT32_MAX]), 2: (t(3),)}),
    (A.batch_norm.default, [t(2, 3, 4), t(3), t(3), t(3), t(3), False, 0.1, 1e-5, False], {1: (t(4),), 3: (t(2),)}),
    (A.softmax.int, [t(2, 3), 1], {1: (2, -3, INT32_MAX)}),
    (A.linear.default, [t(2, 3), t(4, 3), t(4)], {0: (t(2, 6), t(4, 3, 6)), 1: (t(4, 2),), 2: (t(3),)}),
    (A.addmm.default, [t(4), t(2, 3), t(3, 4)], {0: (t(3),), 1: (t(2, 4),)}),
    (A.bmm.default, [t(2, 3, 4), t(2, 4, 5)], {1: (t(3, 4, 5), t(1, 4, 5), t(4, 5), t(2, 5, 4))}),
    (A.mm.default, [t(3, 4), t(4, 5)], {1: (t(5, 4), t(4))}),
    (A.scaled_dot_product_attention.default, [t(1, 6, 5, 4), t(1, 6, 7, 4), t(1, 6, 7, 4), None],
     {1: (t(1, 3, 7, 4), t(1, 6, 7, 3)), 2: (t(1, 3, 7, 4),), 3: (t(5, 6), t(2, 7, 7))}),
    (A._native_multi_head_attention.default, _HEADS,
     {3: (11, 6, 24, 0, INT32_MAX), 4: (5, 24, INT32_MAX), 5: (t(24, 12), t(36, 11)), 6: (t(35),), 7: (t(12, 11),),
      8: (t(11),)}),
    (A.lstm.input, [t(3, 2, 5), _STATE, lstm(4, 5), True, 1, 0.0, False, False, False],
     {4: (0, 2, INT32_MAX), 7: (True,), 1: ([t(1, 2, 4)],), 2: (lstm(4, 5)[:3],)}),
    (A.lstm_cell.default, [t(2, 5), [t(2, 4), t(2, 4)], *lstm(4, 5)],
     {1: ([t(2, 3), t(2, 3)], [t(2, 4)]), 2: (t(15, 5),), 3: (t(16, 3),), 4: (t(15),)}),
    (A.view.default, [t(2, 6), [3, 4]], {1: ([3, 5], [-1, -1], [-2, 6], [INT32_MAX, INT32_MAX], [0, -1], [5, -1])}),
    (A.flatten.using_ints, [t(2, 3, 4), 0, 1], {1: (2, 3, -4), 2: (3, -4)}),
    (A.unflatten.int, [t(2, 6), 1, [2, 3]], {1: (2, -3), 2: ([2, 4], [-1, 4], [-1, -1], [])}),
    (A.transpose.int, [t(2, 3), 0, 1], {1: (2, -3, INT32_MAX)}),
    (A.permute.default, [t(2, 3), [1, 0]], {1: ([0, 0], [0], [0, 2], [0, 1, 2])}),
    (A.movedim.intlist, [t(2, 3, 4), [0], [1]], {1: ([3], [0, 1], [0, 0]), 2: ([3], [1, 1])}),
    (A.squeeze.dims, [t(1, 3), [0]], {1: ([2], [0, 0])}),
    (A.unsqueeze.default, [t(1, 3), 0], {1: (3, -4)}),
    (A.expand.default, [t(1, 3), [2, 3]], {1: ([2, 4], [3], [-1, -1, 3], [-2, 3])}),
    (A.repeat.default, [t(1, 3), [2, 3]], {1: ([2], [-1, 2])}),
    (A.repeat_interleave.self_int, [t(1, 3), 2, 1], {1: (-1,), 2: (2, -3)}),
    (A.cat.default, [[t(2, 3), t(2, 3)], 1], {0: ([t(2, 3), t(3, 4)], [], [t(2, 3), t(2, 3, 1)]), 1: (2, -3)}),
    (A.stack.default, [[t(2, 3), t(2, 3)], 1], {0: ([t(2, 3), t(2, 4)], []), 1: (3, -4)}),
    (A.split.Tensor, [t(2, 6), 2, 1], {1: (0, -1), 2: (2, -3)}),
    (A.split_with_sizes.default, [t(2, 6), [2, 4], 1], {1: ([2, 3], [-1, 7], [2, 5], [], [INT32_MAX, 4]), 2: (2,)}),
    (A.chunk.default, [t(2, 6), 2, 1], {1: (0, -1)}),
    (A.tensor_split.sections, [t(2, 6), 2, 1], {1: (0, -1), 2: (2,)}),
    (A.slice.Tensor, [t(4, 5), 1, 0, 3, 1], {1: (2, -3), 4: (0, -1)}),
    (A.select.int, [t(4, 5), 1, 2], {1: (2,), 2: (5, -6, INT32_MAX)}),
    (A.narrow.default, [t(4, 5), 1, 1, 2], {2: (6, -6), 3: (5, -1, INT32_MAX)}),
    (A.flip.default, [t(2, 3), [1]], {1: ([2], [0, 0])}),
    (A.roll.default, [t(2, 3), [1], [1]], {1: ([1, 2], []), 2: ([2], [0, 1])}),
    (A.constant_pad_nd.default, [t(2, 3), [1, 1], 0.0], {1: ([1], [1] * 6, [-4, 0])}),
    (A.reflection_pad1d.default, [t(2, 5), [1, 1]], {1: ([5, 1], [1], [1] * 4)}),
    (A.reflection_pad2d.default, [t(1, 2, 5, 5), [1] * 4], {1: ([5, 1, 1, 1], [1, 1], [-6, 0, 0, 0])}),
    (A.replication_pad1d.default, [t(2, 5), [1, 1]], {1: ([-6, 0], [1])}),
    (A.pad.default, [t(1, 2, 5), [1, 1], "circular"], {1: ([6, 1], [1]), 2: ("bogus",)}),
    (A.channel_shuffle.default, [t(1, 6, 2, 2), 3], {1: (0, -1, 4)}),
    (A.pixel_shuffle.default, [t(1, 8, 2, 2), 2], {1: (0, -1, 3)}),
    (A.pixel_unshuffle.default, [t(1, 1, 4, 6), 2], {1: (0, -1, 4)}),
    (A.unfold.default, [t(2, 6), 1, 3, 1], {1: (2,), 2: (7, -1, INT32_MAX), 3: (0, -1)}),
    (A.gather.default, [t(2, 3), 1, index(2, 2)], {1: (2,), 2: (index(3, 3), index(2), index(2, 2, 1))}),
    (A.scatter.src, [t(2, 3), 1, index(2, 2), t(2, 2)], {1: (2,), 2: (index(3, 3), index(2)), 3: (t(1, 1), t(2))}),
    (A.index_select.default, [t(2, 3), 1, index(2)], {1: (2,), 2: (index(2, 2),)}),
    (A.embedding.default, [t(5, 3), index(2)], {0: (t(5), t(5, 3, 2))}),
    (A.take_along_dim.default, [t(2, 3), index(2, 2), 1], {1: (index(3, 2), index(2)), 2: (2,)}),
    (A.diagonal.default, [t(3, 4), 0, 0, 1], {2: (1, 2)}),
    (A.sum.dim_IntList, [t(2, 3), [1], False], {1: ([2], [0, 0], [-3])}),
    (A.var.correction, [t(2, 3), [1]], {1: ([2], [0, 0])}),
    (A.argmax.default, [t(2, 3), 1], {1: (2,)}),
    (A.cumsum.default, [t(2, 3), 1], {1: (2,)}),
    (A.topk.default, [t(2, 3), 2, 1], {1: (4, -1, INT32_MAX), 2: (2,)}),
    (A.full.default, [[2, 3], 1.0], {0: ([-1, 2],)}),
    (A.arange.start_step, [0, 4, 1], {2: (0, -1)}),
    (A.eye.default, [3], {0: (-1,)}),
    (A.linspace.default, [0, 1, 5], {2: (-1,)}),
    (A.histc.default, [t(5), 3, 0, 1], {1: (0,), 3: (-1,)}),
    (A.glu.default, [t(2, 4), 1], {0: (t(2, 3),), 1: (2,)}),
    (A.prelu.default, [t(2, 3, 4), t(3)], {1: (t(4), t(2))}),
    (A.index_add.default, [t(3, 2), 0, index(2), t(2, 2)], {1: (2,), 3: (t(3, 2), t(2, 3))}),
    (A.select_scatter.default, [t(3, 2), t(2), 0, 1], {1: (t(3),), 2: (2,), 3: (3, -4)}),
    (A.slice_scatter.default, [t(3, 2), t(1, 2), 0, 1, 2, 1], {1: (t(2, 2),), 5: (0,)}),
]  # fmt: skip
#: What torch itself reads without a check, or has no meaning for.
UNCHECKED: list[tuple[Any, Sequence[Any]]] = [
    (A.grid_sampler.default, [t(1, 4, 5, 5), t(1, 3, 3, 2), 3, 0, False]),
    (A.grid_sampler.default, [t(1, 4, 5, 5), t(1, 3, 3, 2), 0, -1, False]),
    (A.im2col.default, [t(1, 4, 5, 5), [INT32_MAX, 3], [1, 1], [0, 0], [1, 1]]),
    (A._native_multi_head_attention.default, [*_HEADS[:4], 0, *_HEADS[5:]]),
    (A.upsample_nearest2d.vec, [t(1, 4, 5, 5), None, [float("nan"), 1.0]]),
    (A.upsample_nearest2d.vec, [t(1, 4, 5, 5), None, [float("inf"), 1.0]]),
    (A._native_batch_norm_legit_no_training.default, [t(2, 3, 4), t(4), t(3), t(3), t(3), 0.1, 1e-5]),
    *((A.lstm.input, [t(3, 2, 5), state, weights, biased, 1, 0.0, False, False, False])
      for state, weights, biased in (
          (_STATE, lstm(4, 5), False), ([t(1, 2, 3)] * 2, lstm(4, 5), True), ([t(2, 2, 4)] * 2, lstm(4, 5), True),
          ([t(1, 3, 4)] * 2, lstm(4, 5), True), (_STATE, lstm(3, 5), True), (_STATE, lstm(4, 4), True),
          (_STATE, [t(15, 5), *lstm(4, 5)[1:]], True))),
    *((A.full.default, [[INT32_MAX, INT32_MAX], 1.0]), (A.arange.start_step, [0, 1 << 62, 1]), (A.eye.default,
     [INT32_MAX])),
    (A.one_hot.default, [index(3), INT32_MAX]),
]  # fmt: skip


def converted(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Var("x", TensorType(tuple(value.shape), NAMES[value.dtype]))
    return [converted(v) for v in value] if isinstance(value, list) else value


def convert(operator: Any, args: Sequence[Any]) -> Any:
    with running_or_new_budget_scope():
        return convert_operator_call(operator._schema, [converted(a) for a in args], {})


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(list(value.shape))
    return f"[{', '.join(map(shown, value))}]" if isinstance(value, list) else str(value)


def check_error(operator: Any, args: Sequence[Any]) -> str:
    with pytest.raises(AotcError) as caught:
        convert(operator, args)
    (found,) = caught.value.diagnostics
    assert found.code != "internal" and len(found.message) < 600
    return found.message


WRONG = [
    pytest.param(operator, args, place, value, id=f"{operator.__name__}-{place}-{shown(value)}")
    for operator, args, wrong in CASES
    for place, values in wrong.items()
    for value in values
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0]._schema.name)
def test_arguments_that_fit_are_taken(case: Case) -> None:
    operator, args, _ = case
    convert(operator, args)
    operator(*args)


@pytest.mark.parametrize(("operator", "args", "place", "value"), WRONG)
def test_an_argument_that_contradicts_a_shape_is_an_error(
    operator: Any, args: Sequence[Any], place: int, value: Any
) -> None:
    """Here as in torch, and the message shows the value of a number."""
    given = [*args[:place], value, *args[place + 1 :]]
    if str(INT32_MAX) not in shown(value):
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)):
            operator(*given)
    message = check_error(operator, given)
    assert not isinstance(value, int) or isinstance(value, bool) or str(value) in message, message


@pytest.mark.parametrize(("operator", "args"), UNCHECKED)
def test_what_torch_does_not_check_is_an_error(operator: Any, args: Sequence[Any]) -> None:
    check_error(operator, args)


@pytest.mark.parametrize(
    ("net", "name", "place", "value", "message"),
    [
        (torch.nn.Conv2d(4, 6, 3), "conv2d", 3, [0, 1], "stride"),
        (torch.nn.GroupNorm(2, 4), "group_norm", 1, 3, "3 groups|num_groups"),
        (torch.nn.Flatten(1, 2), "flatten", 1, 3, "start_dim 3 is after end_dim 2"),
        (torch.nn.PixelShuffle(2), "pixel_shuffle", 1, 3, "blocksize 3"),
    ],
)
def test_exported_programs_name_the_node(net: Any, name: str, place: int, value: Any, message: str) -> None:
    program = torch.export.export(net.eval(), (t(1, 4, 6, 6),))
    (node,) = (n for n in program.graph.nodes if n.op == "call_function" and n.name.startswith(name))
    missing = [a.default_value for a in node.target._schema.arguments[len(node.args) : place + 1]]
    args = [*node.args, *missing]
    args[place] = value
    node.args = tuple(args)
    with pytest.raises(AotcError, match=message) as caught:
        from_exported_program(program)
    assert name in str(caught.value.diagnostics[0].span)


class _ProductOfDoubledBatches(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.cat([x, x]), y.repeat(2, 1, 1))


def test_dynamic_numbers_of_matrices_may_be_written_differently() -> None:
    """The extents b + b and 2 * b are equal."""
    batch = {0: torch.export.Dim("b", min=2, max=9)}
    program = torch.export.export(_ProductOfDoubledBatches(), (t(3, 4, 5), t(3, 5, 6)), dynamic_shapes=(batch, batch))
    module, _ = from_exported_program(program)
    assert tensor_type_of(infer_module(module).main.body).shape[1:] == (4, 6)
