# SPDX-License-Identifier: Apache-2.0
"""The passes that simplify, share and drop: each rewrite, its values, and its limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc import relay
from aotc.ir import PassContext
from aotc.ir.dtype import DTYPES, DType
from aotc.ir.transform import Pass
from aotc.relay.expr import Call, Constant, Expr, Function, Let, Tuple, TupleGetItem, Var, splat_constant
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, divide, greater, maximum, multiply, power, subtract, where
from aotc.relay.op.cast_clip_prelu import cast, clip
from aotc.relay.op.concat_split import concatenate, repeat, split, tile
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import bias_add, dense
from aotc.relay.op.elementwise_unary import copy, exp, logical_not, negative, relu
from aotc.relay.op.layout import layout_transform
from aotc.relay.op.normalization import batch_norm, dropout
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.pad import pad
from aotc.relay.op.pool import avg_pool2d, max_pool2d
from aotc.relay.op.qnn.requantize import dequantize
from aotc.relay.op.reduce import argmax, argmin
from aotc.relay.op.reshape_slice_cast_like import broadcast_to_like, cast_like, collapse_sum_like, reshape_like
from aotc.relay.op.shape import batch_flatten, broadcast_to, expand_dims, reshape, squeeze, transpose
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.sorting import argsort
from aotc.relay.op.tensor_creation import full, full_like, ones, ones_like, zeros, zeros_like
from aotc.relay.transform import (
    CanonicalizeOps,
    DeadCodeElimination,
    EliminateCommonSubexpr,
    ExpandOps,
    FoldConstant,
    FoldExplicitPadding,
    SimplifyExpr,
    SimplifyInference,
)
from aotc.relay.transform.simplify_expr import is_lossless_cast

Build = Callable[[Var], Expr]


def after(pass_: Pass[IRModule], body: Expr, *params: Var) -> list[str]:
    """The operators that are left, in order of first call."""
    return list(ops(checked(pass_, module_of(body, *params))))


# --- inference and canonical forms


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_batch_norm(axis: int, scale: bool, center: bool) -> None:
    x = var("x", 2, 3, 4, 3)
    vectors = [noise(3, seed=k, positive=k == 3) for k in range(4)]
    body = TupleGetItem(batch_norm(x, *vectors, axis=axis, epsilon=1e-3, center=center, scale=scale), 0)
    assert "nn.batch_norm" not in after(SimplifyInference(), body, x)
    module = checked(FoldConstant(), SimplifyInference()(module_of(body, x)))
    assert ops(module) == {"multiply": 1, "add": 1}


def test_other_results_of_batch_norm_stay() -> None:
    x = var("x", 2, 3)
    norm = batch_norm(x, *(noise(3, seed=k, positive=k == 3) for k in range(4)))
    names = after(SimplifyInference(), Tuple((TupleGetItem(norm, 0), TupleGetItem(norm, 1))), x)
    assert "nn.batch_norm" in names
    assert "multiply" in names


def test_dropout() -> None:
    x = var("x", 2, 3)
    assert after(SimplifyInference(), exp(dropout(x)), x) == ["exp"]


def test_bias_add() -> None:
    x, y = var("x", 1, 3, 2, 2), var("y", 2, 5)
    assert after(CanonicalizeOps(), bias_add(x, noise(3)), x) == ["expand_dims", "add"]
    assert after(CanonicalizeOps(), bias_add(dense(y, noise(4, 5)), noise(4), axis=-1), y) == ["nn.dense", "add"]


def test_expansion_reaches_a_fixpoint() -> None:
    x = var("x", 1, 4, 4, 4)
    module = module_of(relu(x), x)
    assert ExpandOps()(module) is module


# --- SimplifyExpr

X = (2, 3)
GONE: dict[str, Build] = {
    "x + 0": lambda x: add(x, const(0.0)),
    "0 + x": lambda x: add(splat_constant(0, (3,), "float32"), x),
    "x - 0": lambda x: subtract(x, const(0.0)),
    "x * 1": lambda x: multiply(const(1.0), x),
    "x / 1": lambda x: divide(x, splat_constant(1, X, "float32")),
    "x ^ 1": lambda x: power(x, const(1.0)),
    "copy": copy,
    "--x": lambda x: negative(negative(x)),
    "cast to its own type": lambda x: cast(x, "float32"),
    "cast there and back": lambda x: cast(cast(x, "float64"), "float32"),
    "where true": lambda x: where(const(True, "bool"), x, exp(x)),
    "reshape to its own shape": lambda x: reshape(x, X),
    "reshape there and back": lambda x: reshape(reshape(x, (6,)), X),
    "expand and squeeze": lambda x: squeeze(expand_dims(x, 1, 2)),
    "transpose there and back": lambda x: transpose(transpose(x, (1, 0)), (1, 0)),
    "transpose of nothing": lambda x: transpose(x, (0, 1)),
    "slice of everything": lambda x: strided_slice(x, (0, 0), (2, 3), (1, 1)),
    "pad of nothing": lambda x: pad(x, ((0, 0), (0, 0))),
    "one part joined": lambda x: concatenate([x]),
    "an empty part joined": lambda x: concatenate([x, const(np.zeros((0, 3)))]),
    "one part split": lambda x: TupleGetItem(split(x, 1), 0),
    "broadcast to its own shape": lambda x: broadcast_to(x, X),
    "tile once": lambda x: tile(x, (1, 1)),
    "repeat once": lambda x: repeat(x, 1, 0),
    "layout there and back": lambda x: layout_transform(layout_transform(x, "NC", "CN"), "CN", "NC"),
    "layout to itself": lambda x: layout_transform(x, "NC", "NC"),
}


@pytest.mark.parametrize("name", GONE)
def test_what_does_nothing_goes(name: str) -> None:
    x = var("x", *X)
    assert after(SimplifyExpr(), exp(GONE[name](x)), x) == ["exp"]
    if name != "one part split":
        assert after(SimplifyExpr(), GONE[name](x), x) == []


KEPT: dict[str, Build] = {
    "x + 0 that broadcasts": lambda x: add(x, splat_constant(0, (4, 2, 3), "float32")),
    "x * 0 (NaN)": lambda x: multiply(x, const(0.0)),
    "0 - x": lambda x: subtract(const(0.0), x),
    "1 / x": lambda x: divide(const(1.0), x),
    "reversed": lambda x: strided_slice(x, (1, 0), (-3, 3), (-1, 1)),
    "cast through less": lambda x: cast(cast(x, "float16"), "float32"),
    "cast through integers": lambda x: cast(cast(x, "int32"), "float32"),
    "x / 3": lambda x: divide(x, const(3.0)),
    "x ^ 4": lambda x: power(x, const(4.0)),
    "a root of what may be negative": lambda x: power(x + x, const(0.5)),
    "padding cut off": lambda x: layout_transform(x, "NC", "NC4c"),
    "tile twice": lambda x: tile(x, (2, 1)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_matters_stays(name: str) -> None:
    x = var("x", *X)
    module = module_of(KEPT[name](x), x)
    assert SimplifyExpr()(module) is module


@pytest.mark.parametrize("accuracy", ["fast", "strict", "reproducible"])
@pytest.mark.parametrize(
    ("build", "exact"),
    [
        (lambda x: add(x, const(0.0)), False),
        (lambda x: add(const(-0.0), x), True),
        (lambda x: subtract(x, const(0.0)), True),
        (lambda x: subtract(x, const(-0.0)), False),
    ],
)
def test_signs_of_zeros_stay_where_models_are_not_fast(build: Build, exact: bool, accuracy: str) -> None:
    x = var("x", *X)
    with PassContext(config={"compile.accuracy": accuracy}):
        gone = not ops(SimplifyExpr()(module_of(build(x), x)))
    assert gone == (exact or accuracy == "fast")


def test_zeros_go_from_integers() -> None:
    x = var("x", *X, dtype="int32")
    with PassContext(config={"compile.accuracy": "strict"}):
        module = module_of(add(const(0, "int32"), subtract(x, const(0, "int32"))), x)
        assert not ops(SimplifyExpr()(module))


SHORTER: dict[str, tuple[Build, list[str]]] = {
    "x / 8": (lambda x: divide(x, const(8.0)), ["multiply"]),
    "x ^ 3": (lambda x: power(x, const(3.0)), ["multiply"]),
    "x ^ -1": (lambda x: power(x, const(-1.0)), ["divide"]),
    "a root": (lambda x: power(multiply(x, x) + const(1e-6), const(0.5)), ["add", "multiply", "sqrt"]),
    "a root below": (lambda x: power(exp(x), const(-0.5)), ["exp", "rsqrt"]),
    "relu of relu": (lambda x: relu(relu(x)), ["nn.relu"]),
    "max(x, 0)": (lambda x: maximum(const(0.0), x), ["nn.relu"]),
    "clip of clip": (lambda x: clip(clip(x, -2, 6), 0, 9), ["clip"]),
    "views": (lambda x: expand_dims(batch_flatten(reshape(x, (2, 3, 1))), 0), ["expand_dims"]),
    "transposes": (lambda x: transpose(transpose(expand_dims(x, 0), (1, 2, 0)), (1, 0, 2)), ["reshape", "transpose"]),
    "a transpose of a one": (lambda x: transpose(expand_dims(x, 0), (1, 0, 2)), ["reshape"]),
    "casts": (lambda x: cast(cast(x, "float64"), "float16"), ["cast"]),
    "a broadcast operand": (lambda x: add(broadcast_to(const([1.0, 2.0, 3.0]), X), x), ["add"]),
    "both broadcast": (lambda x: add(broadcast_to(x, (4, 2, 3)), broadcast_to(x, (4, 2, 3))), ["broadcast_to", "add"]),
}


@pytest.mark.parametrize("name", SHORTER)
def test_what_can_be_shorter(name: str) -> None:
    build, names = SHORTER[name]
    x = var("x", *X)
    got = after(SimplifyExpr(), build(x), x)
    assert sorted(set(got)) == sorted(names)


def test_integers_regroup_and_floats_do_not() -> None:
    n = var("n", 3, dtype="int64")
    body = add(const(2, "int64"), add(n, const(3, "int64")))
    result = checked(FoldConstant(), checked(SimplifyExpr(), module_of(body, n)))
    assert ops(result) == {"add": 1}
    x = var("x", 3)
    module = module_of(add(add(x, const(1e8)), const(-1e8)), x)
    assert SimplifyExpr()(module) is module


def test_booleans() -> None:
    x = var("x", 3)
    flag = greater(x, const(0.0))
    assert after(SimplifyExpr(), logical_not(logical_not(flag)), x) == ["greater"]


@pytest.mark.parametrize("source", [d for d in DTYPES if d.bits <= 16 and not d.startswith(("float8", "float4"))])
@pytest.mark.parametrize("target", DTYPES)
def test_lossless_is_what_numpy_finds(source: DType, target: DType) -> None:
    if source.is_float:
        with np.errstate(invalid="ignore"):
            values = np.arange(1 << 16, dtype=np.uint16).view(source.numpy).astype(np.float64)
        values = values[np.isfinite(values)]
    else:
        values = np.arange(int(source.min), int(source.max) + 1).astype(np.int32 if target.is_integer else np.float64)
    with np.errstate(all="ignore"):
        exact = bool((values.astype(target.numpy).astype(np.float64) == values).all())
    # the smallest floats and bool as targets: not claimed, so never relied on
    assert (
        is_lossless_cast(source, target) == exact
        or (exact and target.startswith(("float8", "float4")))
        or target.is_bool
    )
    assert not is_lossless_cast(source, "bool") or source.is_bool


# --- explicit padding


PADDED: dict[str, tuple[Build, bool]] = {
    "conv": (lambda x: conv2d(pad(x, ((0, 0), (0, 0), (1, 2), (0, 1))), noise(2, 3, 3, 3), padding=(1, 0)), True),
    "conv NHWC": (
        lambda x: conv2d(
            pad(x, ((0, 0), (1, 1), (2, 2), (0, 0))), noise(3, 3, 6, 2), data_layout="NHWC", kernel_layout="HWIO"
        ),
        True,
    ),
    "two pads": (
        lambda x: conv2d(
            pad(pad(x, ((0, 0), (0, 0), (1, 0), (0, 0))), ((0, 0), (0, 0), (0, 0), (2, 1))), noise(2, 3, 3, 3)
        ),
        True,
    ),
    "channels": (lambda x: conv2d(pad(x, ((0, 0), (0, 1), (1, 1), (1, 1))), noise(2, 4, 3, 3)), False),
    "ones": (lambda x: conv2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), 1), noise(2, 3, 3, 3)), False),
    "reflection": (
        lambda x: conv2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), pad_mode="reflect"), noise(2, 3, 3, 3)),
        False,
    ),
    "crop": (lambda x: conv2d(pad(x, ((0, 0), (0, 0), (-1, 0), (1, 1))), noise(2, 3, 3, 3)), False),
    "average": (lambda x: avg_pool2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 0))), (2, 2), (2, 2)), True),
    "average, own padding not counted": (
        lambda x: avg_pool2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), padding=(1, 1)),
        False,
    ),
    "maximum": (lambda x: max_pool2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), float("-inf")), (2, 2)), True),
    "maximum with zeros": (lambda x: max_pool2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (2, 2)), False),
    "maximum of padding alone": (
        lambda x: max_pool2d(pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), float("-inf")), (2, 2)),
        False,
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding(name: str) -> None:
    build, folds = PADDED[name]
    x = var("x", 1, 3, 6, 6)
    names = after(FoldExplicitPadding(), build(x), x)
    assert ("nn.pad" not in names) == folds


@pytest.mark.parametrize(("value", "folds"), [(-7, True), (0, False)])
def test_padding_of_integers(value: int, folds: bool) -> None:
    """A quantized convolution pads with the zero point of its data."""
    x, w = var("x", 1, 3, 6, 6, dtype="int8"), Constant(np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3))
    pairs = const(-7, "int32"), const(0, "int32"), const(0.5), const(0.25)
    padded = pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), Constant(np.int8(value)))
    module = checked(FoldExplicitPadding(), module_of(relay.qnn.op.conv2d(padded, w, *pairs), x))
    assert ("nn.pad" not in ops(module)) == folds


# --- sharing and dead code


def test_equal_calls_are_shared() -> None:
    x = var("x", 2, 3)
    body = add(multiply(exp(x), const(2.0)), multiply(exp(x), const(2.0)))
    module = checked(EliminateCommonSubexpr(), module_of(body, x))
    assert ops(module) == {"exp": 1, "multiply": 1, "add": 1}


def test_different_calls_are_not_shared() -> None:
    x = var("x", 2, 3)
    body = Tuple((clip(x, 0.0, 1.0), clip(x, -0.0, 1.0), clip(x, 0.0, 2.0), add(x, const(1.0)), add(x, const(2.0))))
    module = module_of(body, x)
    assert EliminateCommonSubexpr()(module) is module


def test_sharing_can_be_forbidden() -> None:
    x = var("x", 2, 3)
    module = module_of(add(exp(x), exp(x)), x)
    keep = EliminateCommonSubexpr(fskip=lambda node: isinstance(node, Call) and str(node.op) == "exp")
    assert ops(keep(module))["exp"] == 2
    assert ops(EliminateCommonSubexpr()(module))["exp"] == 1


def test_fields_and_tuples_are_shared() -> None:
    x = var("x", 4, 3)
    one, two = split(x, 2), split(x, 2)
    body = Tuple((concatenate([TupleGetItem(one, 0), x]), concatenate([TupleGetItem(two, 0), x])))
    assert ops(checked(EliminateCommonSubexpr(), module_of(body, x))) == {"split": 1, "concatenate": 1}


def test_dead_lets_go_and_chains_of_them() -> None:
    x = var("x", 2, 3)
    a, b, c, used = Var("a"), Var("b"), Var("c"), Var("used")
    body = Let(a, exp(x), Let(b, relu(x), Let(used, negative(x), Let(c, copy(x), used))))
    result = checked(DeadCodeElimination(), module_of(body, x))
    assert ops(result) == {"negative": 1}
    chain = Let(a, exp(x), Let(b, Call(relu(x).op, (a,)), Let(c, Call(relu(x).op, (b,)), x)))
    assert ops(checked(DeadCodeElimination(), module_of(chain, x))) == {}


def test_lets_that_matter_stay() -> None:
    x = var("x", 2, 3)
    a, b = Var("a"), Var("b")
    module = module_of(Let(a, exp(x), Let(b, Call(relu(x).op, (a,)), b)), x)
    assert DeadCodeElimination()(module) is module
    f, p = Var("f"), var("p", 2, 3)
    closure = module_of(Let(a, exp(x), Let(f, Function((p,), Call(add(x, x).op, (p, a))), Call(f, (x,)))), x)
    assert DeadCodeElimination()(closure) is closure


# --- values that types and bounds tell


@pytest.mark.parametrize("make", [argmax, argmin, argsort])
def test_the_order_of_quantized_numbers(make: OpDef) -> None:
    def left(dtype: str, scale: object, **attrs: object) -> list[str]:
        x = var("x", 4, 5, dtype=dtype)
        data = dequantize(x, scale, const(3, "int32"), **attrs)
        return after(SimplifyExpr(), make(data, axis=1), x)

    assert left("int8", const(0.25)) == left("uint8", const(0.1)) == [make.name]
    kept = ["qnn.dequantize", make.name]
    assert left("int32", const(0.25)) == kept  # float32 makes numbers equal
    assert left("int8", const(1e-40)) == kept
    assert left("int8", const(np.linspace(1, 2, 5).astype("float32")), axis=1) == kept


def test_casts_of_clipped_numbers() -> None:
    def left(source: str, high: float, *dtypes: str) -> list[str]:
        x = var("x", 2, 3, dtype=source)
        body: Expr = clip(x, 0.0, high)
        for dtype in dtypes:
            body = cast(body, dtype)
        return after(SimplifyExpr(), body, x)

    assert left("int32", 255.0, "uint8", "int32") == ["clip"]
    assert left("int32", 255.0, "uint8", "int16", "int32") == ["clip"]
    for dtypes in (("uint8", "int16", "int32"), ("uint8", "int32")):
        module = SimplifyExpr()(module_of(cast(cast(clip(x := var("x", 2), 0.0, 255.0), dtypes[0]), dtypes[-1]), x))
        assert ops(module)["cast"] == 1
    for source, high, *dtypes in (("int32", 256.0, "uint8", "int32"), ("float32", 255.0, "uint8", "float32")):
        x = var("x", 2, dtype=source)
        body: Expr = clip(x, 0.0, high)
        assert ops(SimplifyExpr()(module_of(cast(cast(body, dtypes[0]), dtypes[1]), x)))["cast"] == 2


def test_clips_that_cut_nothing_off() -> None:
    x = var("x", 2, 3, dtype="uint8")
    assert after(SimplifyExpr(), clip(x, 0.0, 255.0), x) == []
    assert after(SimplifyExpr(), clip(x, 0.0, 254.0), x) == ["clip"]
    y = var("y", 2, 3)
    assert after(SimplifyExpr(), clip(y, -1e38, 1e38), y) == ["clip"]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_operands_of_one_value(dtype: str) -> None:
    x = var("x", 2, 3, dtype=dtype)
    two = full(const(2, dtype), (2, 3), dtype)
    for fill in (zeros((2, 3), dtype), zeros((3,), dtype), zeros_like(x)):
        assert after(SimplifyExpr(), add(fill, x), x) == after(SimplifyExpr(), subtract(x, fill), x) == []
    for fill in (ones((2, 3), dtype), ones_like(x)):
        assert after(SimplifyExpr(), multiply(x, fill), x) == []
    assert after(SimplifyExpr(), maximum(full_like(x, const(2, dtype)), x), x) == ["maximum"]
    assert after(SimplifyExpr(), subtract(two, x), x) == ["subtract"]
    assert after(SimplifyExpr(), add(zeros((4, 2, 3), dtype), x), x) == ["zeros", "add"]
    assert after(SimplifyExpr(), zeros_like(x), x) == ["zeros"]


def test_what_takes_the_shape_or_the_type_of_another_tensor_names_it() -> None:
    x, y = var("x", 2, 3), var("y", 3, 2)
    narrow, row = cast(y, "int8"), strided_slice(x, [0], [1])
    body = Tuple([
        reshape_like(x, y), broadcast_to_like(row, x), collapse_sum_like(x, row),
        cast_like(x, narrow), cast_like(x, y), reshape_like(x, y, lhs_begin=1, lhs_end=1, rhs_begin=2, rhs_end=2),
    ])  # fmt: skip
    names = after(SimplifyExpr(), body, x, y)
    assert not [name for name in names if name.endswith("_like")]
    assert {"reshape", "broadcast_to", "collapse_sum_to", "cast"} <= set(names)
