# SPDX-License-Identifier: Apache-2.0
"""AlterOpLayout on all targets, and its budget of larger parameters; `alter_op_layout.test` has single cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotc.ir.dimensions import SymDim
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.ir.typical_sizes import use_typical_sizes
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call, Constant, Expr, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import dense, matmul
from aotc.relay.structural_equality import structural_equal
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.pack_constant_weights import AlterOpLayout
from aotc.relay.visitor import post_order
from aotc.tir.bare_metal_portable_and_small_targets import target_optimized_for_size
from aotc.tir.target import TARGETS, Target

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def alter(f: Function, target: Target) -> IRModule:
    with PassContext(opt_level=3):
        return AlterOpLayout(target)(IRModule({"main": f}))


def check(f: Function, target: Target, packed: bool) -> IRModule:
    """The rewritten module, after comparing its results with the original's."""
    before = IRModule({"main": f})
    after = FoldConstant()(alter(f, target))
    assert "layout_transform" not in list_op_freqs(after.main)
    assert structural_equal(after, before) is not packed
    assert str(after.main.checked_type) == str(f.checked_type)
    data = [array(*p.checked_type.static_shape) for p in f.params]  # type: ignore[union-attr]
    np.testing.assert_allclose(evaluate(after, *data), evaluate(before, *data), rtol=1e-5, atol=1e-5)
    return after


def call_of(module: IRModule, name: str) -> Call:
    (found,) = (n for n in post_order(module.main) if isinstance(n, Call) and getattr(n.op, "name", "") == name)
    return found


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
@pytest.mark.parametrize("channels", [16, 37, 64])
@pytest.mark.parametrize("units_given", [True, False])
def test_convolutions(target: Target, channels: int, units_given: bool) -> None:
    x = Var("x", TensorType((1, 8, 9, 9)))
    extra = {"channels": channels, "kernel_size": (3, 3)} if units_given else {}
    f = Function((x,), conv2d(x, Constant(array(channels, 8, 3, 3)), strides=(2, 2), padding=(1, 1), **extra))  # type: ignore[arg-type]
    module = check(f, target, packed=True)
    call = call_of(module, "nn.conv2d")
    layout = dict(call.attrs.items())["kernel_layout"]
    block = int(layout.removeprefix("OIHW").removesuffix("o"))
    weight = call.args[1]
    assert isinstance(weight, Constant) and weight.data.shape == (-(-channels // block), 8, 3, 3, block)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_a_weight_that_is_read_in_two_layouts(target: Target) -> None:
    x, w = Var("x", TensorType((64, 64))), Constant(array(64, 64) / 8)
    check(Function((x,), dense(matmul(x, w), w)), target, packed=True)
    x, w = Var("x", TensorType((1, 8, 9, 9))), Constant(array(8, 8, 8, 8) / 8)
    f = Function((x,), add(conv2d(x, w), conv2d(x, w, kernel_layout="HWIO")))
    check(f, target, packed=not target.gpu)


PACKED = [
    *((target, shape) for target in TARGETS.values() if not target.gpu for shape in ((1, 24), (5, 24), (2, 3, 24))),
    (TARGETS["cuda"], (40, 24)),  # thin products read the weights as they are
]


@pytest.mark.parametrize(("target", "shape"), PACKED, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: dense(x, Constant(array(40, 24)), units=40),
        lambda x: dense(x, Constant(array(40, 24))),
        lambda x: matmul(x, Constant(array(24, 40))),
        lambda x: matmul(x, Constant(array(40, 24)), transpose_b=True),
    ],
)
def test_products(target: Target, make: object, shape: tuple[int, ...]) -> None:
    x = Var("x", TensorType(shape))
    f = Function((x,), make(x))  # type: ignore[operator]
    module = check(f, target, packed=True)
    assert isinstance(call_of(module, "nn.contrib_dense_pack").args[1], Constant)


V4 = TARGETS["x86-64-v4"]


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
@pytest.mark.parametrize("kernel", ["OIHW", "HWIO"])
def test_channels_last(target: Target, kernel: str) -> None:
    x = Var("x", TensorType((1, 8, 9, 16)))
    weight = Constant(array(*({"O": 40, "I": 16, "H": 3, "W": 3}[c] for c in kernel)))
    body = conv2d(x, weight, data_layout="NHWC", kernel_layout=kernel, padding=(1, 1))
    layout = call_of(check(Function((x,), body), target, packed=True), "nn.conv2d").attrs.kernel_layout  # type: ignore[attr-defined]
    assert layout.startswith("OHWI") and layout.endswith("o")


def test_a_weight_above_the_folding_limit_is_packed_at_once() -> None:
    x = Var("x", TensorType((1, 512)))
    w = Constant(np.broadcast_to(np.float32(1), (40_001, 512)).copy())
    module = alter(Function((x,), dense(x, w)), V4)
    assert list_op_freqs(module.main) == {"nn.contrib_dense_pack": 1}


def winograd_tiles(module: IRModule) -> list[int]:
    name = "nn.contrib_conv2d_winograd_without_weight_transform"
    nodes = post_order(module.main)
    return [n.attrs.tile_size for n in nodes if isinstance(n, Call) and getattr(n.op, "name", "") == name]


def stack(*channels: int, size: int = 28) -> Function:
    """3x3 convolutions, one after the other."""
    x: Expr = Var("x", TensorType((1, channels[0], size, size)))
    y = x
    for before, after in itertools.pairwise(channels):
        y = conv2d(y, Constant(array(after, before, 3, 3) * 0.1), padding=(1, 1))
    return Function((x,), y)  # type: ignore[arg-type]


@pytest.mark.parametrize(("typical", "tiles"), [({}, [4]), ({"h": 40, "w": 64}, [4]), ({"h": 2, "w": 2}, [])])
def test_images_of_run_time_size_have_the_algorithm_for_a_typical_size(
    typical: dict[str, int], tiles: list[int]
) -> None:
    x = Var("x", TensorType((1, SymDim("h", 64), SymDim("w", 64), 64)))
    f = Function((x,), conv2d(x, Constant(array(64, 64, 3, 3)), padding=(1, 1), data_layout="NHWC"))
    with use_typical_sizes(typical):
        assert winograd_tiles(alter(f, TARGETS["x86-64-v3"])) == tiles


@pytest.mark.parametrize(("least", "tiles"), [(7, [2]), (1, [])])
def test_tiles_of_run_time_size_must_not_slow_down_small_images(least: int, tiles: list[int]) -> None:
    """At 1x1 pixel, a convolution takes the time of reading its weights, which are 1.8 times as large with tiles of 2;
    at 7x7 pixels, it takes three quarters of the time.
    """
    x = Var("x", TensorType((1, SymDim("h", 8, lower=least), SymDim("w", 8, lower=least), 512)))
    f = Function((x,), conv2d(x, Constant(array(512, 512, 3, 3)), padding=(1, 1), data_layout="NHWC"))
    with use_typical_sizes({"h": 7, "w": 7}):
        assert winograd_tiles(alter(f, TARGETS["x86-64-v3"])) == tiles


@pytest.mark.parametrize(("growth", "tiles"), [(1.0, []), (1.5, [2]), (4.5, [4, 4])])
def test_parameters_grow_no_further_than_allowed(growth: float, tiles: list[int]) -> None:
    with PassContext(opt_level=3, config={"relay.AlterOpLayout.max_growth": growth}):
        after = AlterOpLayout(TARGETS["x86-64-v4"])(IRModule({"main": stack(32, 32, 32)}))
    assert winograd_tiles(after) == tiles


def test_small_networks_may_grow_by_a_megabyte_if_nobody_says_otherwise() -> None:
    small, large = stack(32, 32, 32), stack(*[128] * 5)  # 72 KiB, 2.25 MiB
    v4 = TARGETS["x86-64-v4"]
    assert winograd_tiles(AlterOpLayout(v4)(IRModule({"main": small}))) == [4, 4]
    assert sorted(winograd_tiles(AlterOpLayout(v4)(IRModule({"main": large})))) == [2, 2, 2, 4]


def test_a_larger_tile_has_to_save_cycles_for_its_bytes() -> None:
    """256 channels of 14x14: tiles of 4 save hardly more than tiles of 2, for 7.1 MB instead of 1.8."""
    deep, v4 = stack(256, 256, size=14), TARGETS["x86-64-v4"]
    for least, tiles in ((0.0, [4]), (None, [2]), (1.0, [2]), (5.0, [])):
        config = {"relay.AlterOpLayout.max_growth": 9.0}
        config |= {} if least is None else {"relay.AlterOpLayout.min_saving": least}
        with PassContext(opt_level=3, config=config):
            assert winograd_tiles(AlterOpLayout(v4)(IRModule({"main": deep}))) == tiles, least


def test_targets_that_are_small_have_no_larger_weights() -> None:
    before = IRModule({"main": stack(32, 32, 48)})
    assert winograd_tiles(alter(before.main, TARGETS["x86-64-v4"])) == [4, 4]
    small = target_optimized_for_size(TARGETS["x86-64-multi"])
    assert all(version.small for version in small.versions)
    after = alter(before.main, small)
    assert winograd_tiles(after) == []
    data = array(1, 32, 28, 28)
    np.testing.assert_allclose(evaluate(after, data), evaluate(before, data), rtol=1e-4, atol=1e-4)
