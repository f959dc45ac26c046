# SPDX-License-Identifier: Apache-2.0
"""DefuseOps undoes FuseOps; CanonicalizeCast gives every elementwise user its own widening cast."""

from __future__ import annotations

from hypothesis import given, settings
from passes.graphs import checked, module_of, noise, ops, var
from passes.test_fuse_ops import groups
from relay.programs import functions

from aotc.ir.transform import PassContext, Sequential
from aotc.relay.expr import Call, Expr, Function, Let, Tuple, Var
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import exp, negative, relu
from aotc.relay.op.softmax import softmax
from aotc.relay.structural_equality import assert_structural_equal
from aotc.relay.testing import squeezenet
from aotc.relay.transform import CanonicalizeCast, DefuseOps, EliminateCommonSubexpr, FuseOps
from aotc.relay.type_inference import infer_module

# --- DefuseOps


@settings(max_examples=80, deadline=None)
@given(functions())
def test_defusing_is_the_inverse_of_fusing(function: Function) -> None:
    module = infer_module(IRModule({"main": function}))
    fused = FuseOps()(module)
    assert_structural_equal(DefuseOps()(fused), module)


def test_a_network_fused_and_defused() -> None:
    module, _ = squeezenet.get_workload(1)
    with PassContext(opt_level=3):
        fused = FuseOps()(module)
        back = Sequential([DefuseOps()])(fused)
    assert len(groups(fused.main)) < sum(ops(module).values())
    assert not groups(back.main)
    assert_structural_equal(back, module)


def test_shared_kernels_are_written_out_at_each_call() -> None:
    x, p = var("x", 2, 3), var("p0", 2, 3)
    kernel = Function((p,), relu(exp(p)), attrs={"Primitive": 1})
    body = Call(kernel, (Call(kernel, (x,)),))
    result = checked(DefuseOps(), infer_module(IRModule({"main": Function((x,), body)})))
    assert_structural_equal(result, module_of(relu(exp(relu(exp(x)))), x))


def test_other_functions_stay() -> None:
    x, p, f = var("x", 2, 3), var("p", 2, 3), Var("f")
    body = Let(f, Function((p,), relu(p)), Call(f, (Call(Function((p,), exp(p)), (x,)),)))
    module = infer_module(IRModule({"main": Function((x,), body)}))
    assert DefuseOps()(module) is module


def test_a_long_chain_of_kernels() -> None:
    x = var("x", 2)
    body: Expr = x
    for _ in range(10_000):
        body = negative(body)
    module = module_of(body, x)
    assert_structural_equal(DefuseOps()(FuseOps(fuse_opt_level=0)(module)), module)


# --- CanonicalizeCast

X = var("x", 1, 4, 5, 5, dtype="int8")


def casts(module: IRModule) -> int:
    return ops(checked(CanonicalizeCast(), module)).get("cast", 0)


def test_every_elementwise_user_gets_its_own_cast() -> None:
    wide = cast(X, "float32")
    body = Tuple((add(wide, noise(5)), relu(wide), multiply(noise(4, 1, 1), wide)))
    module = module_of(body, X)
    assert casts(module) == 3
    with PassContext(opt_level=3):
        fused = Sequential([CanonicalizeCast(), FuseOps()])(module)
        assert groups(fused.main) == ["cast+add", "cast+nn.relu", "cast+multiply"]
        assert ops(EliminateCommonSubexpr()(CanonicalizeCast()(module)))["cast"] == 1


def test_one_user_needs_one_cast() -> None:
    wide = cast(X, "int32")
    module = module_of(add(wide, wide), X)
    assert CanonicalizeCast()(module) is module


def test_narrowing_and_reinterpreting_casts_are_shared() -> None:
    x = var("x", 1, 4, 5, 5, dtype="int32")
    for dtype in ("int8", "float32"):
        narrow = cast(x, dtype)
        assert casts(module_of(Tuple((negative(narrow), relu(narrow))), x)) == 1


def test_other_users_share_the_cast() -> None:
    wide = cast(X, "float32")
    body = Tuple((conv2d(wide, noise(2, 4, 3, 3)), softmax(wide), relu(wide)))
    assert casts(module_of(body, X)) == 1


def test_a_cast_of_a_cast() -> None:
    wider = cast(cast(X, "int16"), "int32")
    both = Tuple((negative(wider), relu(wider)))
    assert casts(module_of(both, X)) == 3  # the outer one twice, over one inner one
