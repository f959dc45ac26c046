# SPDX-License-Identifier: Apache-2.0
"""Which convolutions are worth Winograd's algorithm.  A function and a target in, tile sizes out.

choose_tiles(function, get_target("x86-64-v4"))             # {%1: 4, %5: 4, %9: 2}

Transformed weights are larger (16/9 for tiles of 2, 36/9 for tiles of 4), so that the choice is one of the whole
network: what saves most time for its bytes comes first, until the parameters have grown as far as they may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aotc.ir import is_static
from aotc.relay.expr import Call, Constant, Expr, Function, tensor_type_of
from aotc.relay.op.conv import Conv2DAttrs
from aotc.relay.transform.base import is_finite
from aotc.relay.visitor import children, post_order
from aotc.tir import TAPS, TILES, Target
from aotc.tir.schedule.algorithms.winograd import convolution_cost
from aotc.tir.schedule.contraction import pack_block

WORTH: Final = 0.95
"""The share of the direct algorithm's time that the estimate must be below."""


@dataclass(frozen=True, slots=True)
class _Option:
    """One tile size for the convolutions by one weight: cycles saved, bytes added."""

    weight: Constant
    tile: int
    saved: float
    added: int


def choose_tiles(function: Function, target: Target, growth: float | None = None) -> dict[Expr, int]:
    """The tile size of every convolution that gains by it; none where the target's parameters may not grow.

    growth    the parameters become at most so many times as large; None for what the target's budget says
    """
    limits = target.budget
    if limits.parameter_growth <= 1.0:
        return {}
    nodes = list(post_order(function))
    size = sum(n.data.nbytes for n in nodes if isinstance(n, Constant))
    budget = (
        max((limits.parameter_growth - 1.0) * size, limits.parameter_room) if growth is None else (growth - 1.0) * size
    )
    users: dict[Constant, list[Call]] = {}
    for node in nodes:
        if isinstance(node, Call) and _fits(node) and isinstance(node.args[1], Constant) and is_finite(node.args[1]):
            users.setdefault(node.args[1], []).append(node)
    uses = Counter(child for node in nodes for child in children(node) if isinstance(child, Constant))
    chosen: dict[Constant, _Option] = {}
    # the best value first; a larger tile replaces a smaller one while there is room
    options = [o for weight, calls in users.items() for o in _options(weight, calls, uses[weight], target)]
    for option in sorted(options, key=lambda o: (-o.saved / max(o.added, 1), o.tile)):
        before = chosen.get(option.weight)
        extra = option.added - (before.added if before else 0)
        if extra <= budget and option.saved > (before.saved if before else 0.0):
            chosen[option.weight] = option
            budget -= extra
    return {call: option.tile for weight, option in chosen.items() for call in users[weight]}


def _options(weight: Constant, calls: Sequence[Call], uses: int, target: Target) -> Iterator[_Option]:
    """The tile sizes that save time; the plain weight stays if others than the convolutions use it."""
    outputs, channels = weight.data.shape[:2]
    if pack_block(outputs, target, "float32") == 0:
        return
    direct = sum(_cost(call, channels, 0, target) for call in calls)
    for tile in TILES:
        cost = sum(_cost(call, channels, tile, target) for call in calls)
        if cost < WORTH * direct:
            size = (tile + TAPS - 1) ** 2 * outputs * channels * 4
            yield _Option(weight, tile, direct - cost, size - (weight.data.nbytes if uses == len(calls) else 0))


def _cost(call: Call, channels: int, tile: int, target: Target) -> float:
    images, outputs, height, width = tensor_type_of(call).static_shape
    return convolution_cost((images, outputs, height, width), channels, tile, target)


def _fits(call: Call) -> bool:
    """Whether a call is a float32 convolution with one group of 3x3 filters, stride and dilation 1, NCHW."""
    a = call.attrs
    return (
        isinstance(a, Conv2DAttrs)
        and (a.data_layout, a.kernel_layout) == ("NCHW", "OIHW")
        and a.out_layout in ("", "NCHW")
        and a.groups == 1
        and {*a.strides, *a.dilation} == {1}
        and is_static(tensor_type_of(call).shape)
        and 0 not in tensor_type_of(call).shape
        and all(tensor_type_of(x).dtype == "float32" for x in (*call.args, call))
        and tensor_type_of(call.args[1]).shape[2:] == (TAPS, TAPS)
    )
