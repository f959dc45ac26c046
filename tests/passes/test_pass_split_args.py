# SPDX-License-Identifier: Apache-2.0
"""SplitArgs on long concatenations and in compiled code; `split_args.test` has single cases."""

from __future__ import annotations

import json

import numpy as np
import pytest
from passes.graphs import checked, module_of, ops, random_inputs, var

from aotc import relay
from aotc.ir.diagnostics import AotcValueError
from aotc.ir.op import Op
from aotc.ir.transform import PassContext
from aotc.relay.expr import Call, Expr, Tuple, Var
from aotc.relay.module import IRModule
from aotc.relay.op.annotation import stop_fusion
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.elementwise_unary import exp, relu
from aotc.relay.transform import SplitArgs
from aotc.relay.visitor import post_order


def joined(count: int, axis: int = 1) -> IRModule:
    """A concatenation of tensors with 1, 2, 3, 1, 2, ... columns, with work after it."""
    inputs = [var(f"x{k}", 2, 1 + k % 3) for k in range(count)]
    return module_of(relu(concatenate(inputs, axis)), *inputs)


def widths(module: IRModule) -> list[int]:
    """How many tensors each concatenation joins."""
    calls = (n for n in post_order(module.main) if isinstance(n, Call) and isinstance(n.op, Op))
    return [len(n.args[0].fields) for n in calls if n.op.name == "concatenate" and isinstance(n.args[0], Tuple)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(40, 10, [9, 9, 9, 9, 4, 5]), (100, 5, [4] * 25 + [4] * 6 + [4, 3, 2]), (100, 0, [100])],
)
def test_numbers(count: int, limit: int, expected: list[int]) -> None:
    result = checked(SplitArgs(limit), joined(count))
    assert sorted(widths(result)) == sorted(expected)
    assert limit == 0 or max(widths(result)) < limit
    assert ops(result).get("annotation.stop_fusion", 0) == len(expected) - 1


def test_wrong_numbers() -> None:
    for number in (-1, 1, 2):
        with pytest.raises(AotcValueError, match="max_function_args"):
            SplitArgs(number)


def test_long_chains() -> None:
    x: Expr = var("x", 2, 3)
    body = x
    for _ in range(5_000):
        body = stop_fusion(relu(body))
    assert isinstance(x, Var)
    assert SplitArgs(3)(module_of(body, x)) is not None


def test_stop_fusion_copies_nothing() -> None:
    x = var("x", 2, 3)
    library = relay.build(module_of(relu(stop_fusion(exp(x))), x), "c")
    assert [n["name"] for n in json.loads(library.get_graph_json())["nodes"]] == ["x", "exp", "relu"]


@pytest.mark.parametrize("opt_level", [0, 3])
def test_compiled(opt_level: int) -> None:
    module = SplitArgs(5)(joined(9))
    inputs = random_inputs(module)
    with PassContext(opt_level=opt_level):
        got = relay.create_executor("aot", module, target="c").evaluate()(*inputs).numpy()
    np.testing.assert_array_equal(got, np.maximum(np.concatenate(inputs, 1), 0))
