# SPDX-License-Identifier: Apache-2.0
"""AlterOpLayout: constant weights are packed for the target, results stay what they were."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call, Constant, Expr, Function, TupleGetItem, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv1d, conv2d, conv3d
from aotc.relay.op.dense import dense, matmul
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.recurrent import gru, lstm, rnn
from aotc.relay.structural_equality import structural_equal
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.pack_constant_weights import AlterOpLayout
from aotc.relay.visitor import post_order
from aotc.tir.target import TARGETS, Target, target_optimized_for_size

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


@pytest.mark.parametrize(("convolve", "kernel", "layout"), [(conv1d, (3,), "OIW"), (conv3d, (3, 1, 2), "OIDHW")])
def test_convolutions_of_other_ranks(convolve: OpDef, kernel: tuple[int, ...], layout: str) -> None:
    x = Var("x", TensorType((2, 8, *(6 + k for k in kernel))))
    call = convolve(x, Constant(array(20, 8, *kernel)), padding=1, strides=2)
    module = check(Function((x,), call), TARGETS["x86-64-v3"], packed=True)
    attrs = dict(call_of(module, convolve.name).attrs.items())
    assert attrs["kernel_layout"].startswith(layout) and attrs["kernel_layout"] != layout


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


def unchanged(x: Var, body: Expr, *more: Var) -> None:
    f = Function((x, *more), body, body.checked_type)
    assert structural_equal(alter(f, V4).main, f)


def test_what_stays_as_it_is() -> None:
    x = Var("x", TensorType((1, 32, 8, 8)))
    w = Var("w", TensorType((32, 32, 3, 3)))
    unchanged(x, conv2d(x, w), w)  # a weight that is not known
    unchanged(x, conv2d(x, Constant(array(32, 1, 3, 3)), groups=32))  # depthwise
    unchanged(x, conv2d(x, Constant(array(32, 4, 3, 3)), groups=8))  # groups that are not whole blocks
    other = Var("x", TensorType((8, 8, 1, 32)))
    unchanged(other, conv2d(other, Constant(array(3, 3, 32, 32)), data_layout="HWNC", kernel_layout="HWIO"))
    m = Var("m", TensorType((24, 5)))
    unchanged(m, matmul(m, Constant(array(24, 40)), transpose_a=True))
    v = Var("v", TensorType((5, 24)))
    unchanged(v, dense(v, Constant(array(1, 24))))  # too few channels for a vector


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
@pytest.mark.parametrize("kernel", ["OIHW", "HWIO"])
def test_channels_last(target: Target, kernel: str) -> None:
    x = Var("x", TensorType((1, 8, 9, 16)))
    weight = Constant(array(*({"O": 40, "I": 16, "H": 3, "W": 3}[c] for c in kernel)))
    body = conv2d(x, weight, data_layout="NHWC", kernel_layout=kernel, padding=(1, 1))
    layout = call_of(check(Function((x,), body), target, packed=True), "nn.conv2d").attrs.kernel_layout  # type: ignore[attr-defined]
    assert layout.startswith("OHWI") and layout.endswith("o")


def test_depthwise_with_the_channels_last() -> None:
    x = Var("x", TensorType((1, 8, 9, 16)))
    body = conv2d(x, Constant(array(16, 1, 3, 3)), groups=16, data_layout="NHWC", kernel_layout="OIHW")
    assert call_of(check(Function((x,), body), V4, packed=True), "nn.conv2d").attrs.kernel_layout == "HWOI"  # type: ignore[attr-defined]


def test_groups_of_whole_blocks() -> None:
    x = Var("x", TensorType((1, 16, 6, 6)))
    check(Function((x,), conv2d(x, Constant(array(128, 8, 3, 3)), groups=2)), V4, packed=True)


@pytest.mark.parametrize("kernel", ["OIHW", "HWIO"])
@pytest.mark.parametrize("channels", [9, 23, 69])
def test_groups_are_padded_each_by_itself(channels: int, kernel: str) -> None:
    layout = "NCHW" if kernel == "OIHW" else "NHWC"
    x = Var("x", TensorType(tuple({"N": 2, "C": 15, "H": 5, "W": 4}[c] for c in layout)))
    weight = Constant(array(*({"O": 3 * channels, "I": 5, "H": 3, "W": 3}[c] for c in kernel)))
    body = conv2d(x, weight, groups=3, padding=(1, 1), data_layout=layout, kernel_layout=kernel)
    for target in (TARGETS["x86-64-v3"], V4):
        call = call_of(check(Function((x,), body), target, packed=True), "nn.conv2d")
        weight_shape = call.args[1].checked_type.static_shape  # type: ignore[union-attr]
        assert weight_shape[0] == 3 * -(-channels // weight_shape[-1])


@pytest.mark.parametrize(("size", "layout"), [(8, "OHWI32o"), (4, "OIHW32o"), (20, "OHWI32o")])
def test_weights_beyond_the_cache_lie_by_taps_but_for_fewest_positions(size: int, layout: str) -> None:
    x = Var("x", TensorType((1, 128, size, size)))
    f = Function((x,), conv2d(x, Constant(array(128, 128, 3, 3) / 30), strides=(2, 2), padding=(1, 1)))
    assert call_of(check(f, V4, packed=True), "nn.conv2d").attrs.kernel_layout == layout  # type: ignore[attr-defined]


def test_groups_are_not_padded_where_parameters_must_not_grow() -> None:
    x = Var("x", TensorType((1, 15, 5, 4)))
    f = Function((x,), conv2d(x, Constant(array(69, 5, 3, 3)), groups=3))
    assert structural_equal(alter(f, TARGETS["c"]).main, f)


def test_a_shared_weight_is_packed_once() -> None:
    x = Var("x", TensorType((1, 32, 8, 8)))
    w = Constant(array(32, 32, 3, 3))
    body = conv2d(conv2d(x, w, padding=(1, 1)), w, padding=(1, 1))
    assert list_op_freqs(alter(Function((x,), body), V4).main)["layout_transform"] == 1


def test_a_weight_above_the_folding_limit_is_packed_at_once() -> None:
    x = Var("x", TensorType((1, 512)))
    w = Constant(np.broadcast_to(np.float32(1), (40_001, 512)).copy())
    module = alter(Function((x,), dense(x, w)), V4)
    assert list_op_freqs(module.main) == {"nn.contrib_dense_pack": 1}


@pytest.mark.parametrize("hidden", [20, 37, 100])
@pytest.mark.parametrize(("layer", "gates"), [(lstm, 4), (gru, 3), (rnn, 1)])
def test_recurrent_weights_in_blocks_of_columns(layer: OpDef, gates: int, hidden: int) -> None:
    x, shape = Var("x", TensorType((3, 2, 6))), (2, hidden)
    weights = [Constant(array(rows, gates * hidden) / 8) for rows in (6, hidden)]
    rest = {4: [shape, shape], 3: [shape, (hidden,)], 1: [shape]}[gates]
    call = layer(x, *weights, Constant(array(gates * hidden)), *(Constant(array(*s)) for s in rest))
    f = Function((x,), TupleGetItem(call, 0))
    packed = call_of(check(f, V4, packed=True), layer.name).args[1:3]
    blocks = [w.checked_type.static_shape for w in packed]  # type: ignore[union-attr]
    assert all(parts == 1 and count == -(-gates * hidden // block) for count, _, parts, block in blocks)


def test_recurrent_weights_that_are_no_constants_leave_rows_as_they_are() -> None:
    x, h = Var("x", TensorType((3, 1, 6))), Var("h", TensorType((1, 37)))
    r = Var("r", TensorType((37, 37)))
    f = Function((x, r, h), TupleGetItem(rnn(x, Constant(array(6, 37)), r, Constant(array(37)), h), 0))
    assert structural_equal(alter(f, V4).main, f)


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


def test_winograd_where_it_pays() -> None:
    before = IRModule({"main": stack(32, 32, 48)})
    with PassContext(opt_level=3, config={"relay.AlterOpLayout.max_growth": 10.0}):
        after = FoldConstant()(AlterOpLayout(TARGETS["x86-64-v4"])(before))
    assert winograd_tiles(after) == [4, 4]
    assert "layout_transform" not in list_op_freqs(after.main)
    data = array(1, 32, 28, 28)
    np.testing.assert_allclose(evaluate(after, data), evaluate(before, data), rtol=1e-4, atol=1e-4)


def test_winograd_can_be_left_out() -> None:
    with PassContext(opt_level=3, config={"relay.AlterOpLayout.winograd": False}):
        assert winograd_tiles(AlterOpLayout(TARGETS["x86-64-v4"])(IRModule({"main": stack(32, 32)}))) == []
    assert winograd_tiles(alter(stack(32, 32), TARGETS["c"])) == []


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
