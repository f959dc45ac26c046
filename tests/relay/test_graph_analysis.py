# SPDX-License-Identifier: Apache-2.0
"""Analyses of graphs: well-formedness, blocks, layers, multiply-accumulate counts, fused functions."""

from __future__ import annotations

import pytest
from passes.graphs import const, module_of, noise, ops, var

from aotc.ir.diagnostics import AotcError
from aotc.relay.analysis import (
    check_basic_block_normal_form,
    count_layers,
    extract_fused_functions,
    get_total_mac_number,
    global_uses,
    list_op_freqs,
    well_formed,
)
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, Var
from aotc.relay.op.binary_elementwise import add, greater, multiply
from aotc.relay.op.conv import conv1d, conv2d
from aotc.relay.op.conv_transpose import conv2d_transpose
from aotc.relay.op.dense import batch_matmul, dense, matmul
from aotc.relay.op.elementwise_unary import exp, negative, relu
from aotc.relay.op.reduce import sum as sum_of
from aotc.relay.testing import resnet
from aotc.relay.transform import FuseOps, ToBasicBlockNormalForm
from aotc.relay.type_inference import infer_module


def test_well_formed() -> None:
    x, y, z = var("x", 2), var("y", 2), var("z", 2)
    assert well_formed(Let(y, exp(x), add(y, y)))
    assert well_formed(add(x, y))  # free variables are none of its business
    assert not well_formed(Let(y, exp(x), Let(y, exp(x), y)))
    assert not well_formed(Tuple((Let(y, exp(x), y), negative(y))))
    assert not well_formed(Function((x, x), x))
    inner = Function((z,), add(z, x))
    assert well_formed(Function((x,), Call(inner, (x,))))
    assert not well_formed(Function((x,), add(Call(inner, (x,)), z)))
    assert not well_formed({"f": Function((x,), x), "g": Function((x,), x)})
    assert well_formed({"f": Function((x,), x), "g": Function((y,), y)})


def test_recursive_lets_are_well_formed() -> None:
    x, f, n = var("x", 2), Var("f"), var("n", 2)
    assert well_formed(Let(f, Function((n,), Call(f, (n,))), Call(f, (x,))))
    assert not well_formed(Let(n, exp(n), n))


def test_well_formed_with_shared_nodes_in_and_out_of_scope() -> None:
    x, y = var("x", 2), var("y", 2)
    shared = exp(y)
    assert not well_formed(Tuple((Let(y, x, shared), shared)))


def test_basic_blocks() -> None:
    x = var("x", 3)
    shared = exp(x)
    both = If(greater(sum_of(x), const(0.0)), relu(shared), negative(shared))
    assert not check_basic_block_normal_form(both)
    assert check_basic_block_normal_form(If(greater(sum_of(x), const(0.0)), exp(x), exp(x)))
    assert check_basic_block_normal_form(add(shared, shared))
    assert check_basic_block_normal_form(ToBasicBlockNormalForm()(module_of(both, x)).main)


def test_basic_blocks_with_a_shared_let() -> None:
    x, y = var("x", 3), Var("y")
    shared = Let(y, exp(x), relu(y))
    both = If(greater(sum_of(x), const(0.0)), shared, negative(shared))
    module = module_of(both, x)
    assert not check_basic_block_normal_form(module.main)
    result = ToBasicBlockNormalForm()(module)
    assert check_basic_block_normal_form(result.main)
    assert ops(result)["exp"] == ops(result)["nn.relu"] == 1


MACS: dict[str, tuple[Expr, int]] = {
    "conv2d": (conv2d(var("x", 2, 3, 8, 8), noise(5, 3, 3, 3), padding=(1, 1)), 2 * 5 * 8 * 8 * 3 * 9),
    "groups": (conv2d(var("x", 1, 4, 8, 8), noise(4, 1, 3, 3), groups=4, padding=(1, 1)), 4 * 64 * 9),
    "NHWC": (
        conv2d(var("x", 1, 8, 8, 3), noise(1, 1, 3, 5), data_layout="NHWC", kernel_layout="HWIO"), 5 * 64 * 3,
    ),
    "conv1d": (conv1d(var("x", 1, 3, 9), noise(4, 3, 2)), 4 * 8 * 3 * 2),
    "transposed": (conv2d_transpose(var("x", 1, 3, 4, 4), noise(3, 2, 2, 2), strides=(2, 2)), 2 * 64 * 3 * 4),
    "dense": (dense(var("x", 7, 4), noise(5, 4)), 7 * 5 * 4),
    "matmul": (matmul(var("x", 4, 7), noise(4, 5), transpose_a=True), 7 * 5 * 4),
    "batch_matmul": (batch_matmul(var("x", 2, 3, 4), noise(2, 5, 4)), 2 * 3 * 5 * 4),
    "other": (exp(var("x", 3)), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MACS)
def test_multiplications(name: str) -> None:
    expr, count = MACS[name]
    assert get_total_mac_number(expr) == count
    assert get_total_mac_number(relu(expr)) == count


def test_multiplications_of_a_network() -> None:
    module, _ = resnet.get_workload()
    usual, projection = 1_814_073_344, 64 * 64 * 56 * 56  # this ResNet-18 has one 1x1 convolution more
    assert get_total_mac_number(infer_module(module).main) == usual + projection


def test_multiplications_need_types() -> None:
    x = Var("x")
    with pytest.raises(AotcError, match="no type"):
        get_total_mac_number(Call(dense(var("y", 1, 2), noise(1, 2)).op, (x, noise(1, 2))))


def test_layers() -> None:
    x, y = var("x", 4, 4), Var("y")
    twice = dense(relu(dense(x, noise(4, 4))), noise(4, 4))
    assert count_layers(twice, ["nn.dense"]) == 2
    assert count_layers(twice, ["nn.dense", "nn.relu"]) == 3
    assert count_layers(add(twice, dense(x, noise(4, 4))), ["nn.dense"]) == 2
    assert count_layers(Let(y, twice, dense(y, noise(4, 4))), ["nn.dense"]) == 3
    assert count_layers(Function((x,), exp(x)), ["nn.dense"]) == 0


def test_fused_functions() -> None:
    x = var("x", 4, 4)
    w = var("w", 4, 4)
    module = module_of(dense(relu(dense(relu(dense(x, w)), w)), w), x, w)
    assert len(extract_fused_functions(module)) == 2
    functions = extract_fused_functions(FuseOps(fuse_opt_level=0)(module))
    assert sorted(next(iter(_names(f))) for f in functions.values()) == ["nn.dense", "nn.relu"]
    assert all(f.is_primitive and len(name) == 16 for name, f in functions.items())


def _names(function: Function) -> dict[str, int]:
    return list_op_freqs(function)


def test_global_uses() -> None:
    x = var("x", 2)
    f, g = GlobalVar("f"), GlobalVar("g")
    assert global_uses(multiply(Call(f, (x,)), Call(g, (Call(f, (x,)),)))) == ["f", "g"]
