# SPDX-License-Identifier: Apache-2.0
"""DynamicToStatic on all operators, types of dynamic operators, and execution of shapes that remain unknown."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import const, module_of, ops, var

from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.expr import Call, Constant, Expr, Var, typed_op_call
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME, dyn, operators_defined_in
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.op.shape import shape_of
from aotc.relay.transform import DynamicToStatic
from tests.ops.harness import assert_agrees, flat, type_of_value


def static(module: IRModule) -> IRModule:
    with PassContext(instruments=[Verifier()]):
        return DynamicToStatic()(module)


def vector(*values: int) -> Constant:
    return const(values, "int64")


CASES = [(op, sample) for op in operators_defined_in(dyn) for sample in op.samples()]


@pytest.mark.parametrize(("op", "sample"), CASES, ids=[f"{op.name}-{k}" for k, (op, _) in enumerate(CASES)])
def test_every_operator(op: OpDef, sample: Sample) -> None:
    """With constants in place of its shapes, an operator becomes the static one, and gives the same."""
    shapes = {k for k in range(op.arity) if not _is_kept(op, sample, k)}
    assert shapes
    params = [Var(f"p{k}", type_of_value(v)) for k, v in enumerate(sample.args)]
    args = [Constant(v) if k in shapes else p for k, (p, v) in enumerate(zip(params, sample.args, strict=True))]
    kept = [k for k in range(op.arity) if k not in shapes]
    result = static(module_of(typed_op_call(op, args, sample.attrs), *(params[k] for k in kept)))
    if kept:
        assert list(ops(result)) == [op.name.removeprefix("dyn.")]
    expected = flat(op.reference(sample.attrs, *sample.args))
    assert result.main.body.checked_type is not None
    assert all(t.is_static for t in tensor_types(result.main.body.checked_type))
    for got, want in zip(flat(evaluate(result, *(sample.args[k] for k in kept))), expected, strict=True):
        assert_agrees(got, want, sample.accuracy)


def _is_kept(op: OpDef, sample: Sample, position: int) -> bool:
    """Whether an argument may stay a variable."""
    assert op.static is not None
    args = [Constant(v) for v in sample.args]
    free: list[Expr] = list(args)
    free[position] = Var("free", args[position].checked_type)
    result = op.static(sample.attrs, free)
    return result is not None and free[position] in result.args


def test_unknown_shapes_stay() -> None:
    x, s = var("x", 2, 6), var("s", 2, dtype="int64")
    module = module_of(relu(dyn.reshape(x, s)), x, s)
    assert DynamicToStatic()(module) is module
    assert evaluate(module, np.ones((2, 6), np.float32), np.array([3, 4])).shape == (3, 4)


def test_types() -> None:
    x, s = var("x", 2, 3, 4), var("s", 2, dtype="int64")
    sliced = dyn.strided_slice(x, s, s, s).checked_type
    assert sliced == TensorType((SymDim(), SymDim(), 4))
    wrong = Call(OPERATORS_BY_NAME["dyn.reshape"], (x, x), dyn.reshape.attrs())
    with pytest.raises(AotcError, match="vector of integers"):
        module_of(wrong, x)


def test_what_is_known_of_results() -> None:
    """Ranks, and the extents along axes that no value touches."""
    x, s, k = var("x", 2, 1, 4), var("s", 2, dtype="int64"), Var("k", TensorType((), "int64"))
    scalar, image, any_extent = Var("y", TensorType(())), var("i", 1, 4, 5, 3), SymDim()
    for result, shape in (
        (dyn.reshape(scalar, s), (any_extent,) * 2),
        (dyn.squeeze(x, s), (any_extent,)),
        (dyn.expand_dims(x, k, num_newaxis=2), (any_extent,) * 5),
        (dyn.broadcast_to(var("z", 2, 3), s), (any_extent,) * 2),
        (dyn.tile(x, s), (any_extent,) * 3),
        (dyn.one_hot(s, const(1.0), const(0.0), k, axis=0), (any_extent, 2)),
        (dyn.topk(x, k, axis=1, ret_type="values"), (2, any_extent, 4)),
        (dyn.resize2d(image, s, layout="NHWC"), (1, any_extent, any_extent, 3)),
        (dyn.pad(x, var("w", 3, 2, dtype="int64")), (any_extent,) * 3),
    ):
        assert result.checked_type == TensorType(shape)
    with pytest.raises(AotcError, match="rank 3"):
        dyn.squeeze(x, var("axes", 4, dtype="int64"))
    with pytest.raises(AotcError, match="does not broadcast"):
        dyn.broadcast_to(x, s)


@pytest.mark.parametrize("values", [(5, 5), (-2, 1)])
def test_values_that_do_not_fit(values: tuple[int, ...]) -> None:
    """Wrong sizes, and a -2 that would change the rank, at compile time and in the interpreter."""
    x, s = var("x", 2, 6), var("s", 2, dtype="int64")
    with pytest.raises(AotcError, match="reshape"):
        DynamicToStatic()(module_of(dyn.reshape(x, vector(*values)), x))
    with pytest.raises(AotcError):
        evaluate(module_of(dyn.reshape(x, s), x, s), np.ones((2, 6), np.float32), np.array(values))


def test_long_chains() -> None:
    x = var("x", 2, 3)
    body: Expr = x
    for _ in range(3_000):
        body = dyn.reshape(relu(body), shape_of(body))
    assert ops(DynamicToStatic()(module_of(body, x))) == {"nn.relu": 3_000, "reshape": 3_000}


# --- as users write them


def test_relays_functions_take_expressions() -> None:
    x, s = relay.var("x", shape=(2, 6)), relay.var("s", shape=(2,), dtype="int64")
    image, two = relay.var("i", shape=(1, 2, 3, 3)), relay.const(np.array([4, 5]))
    scale = relay.var("f", shape=(), dtype="float32")
    for call_, name in (
        (relay.reshape(x, s), "dyn.reshape"),
        (relay.reshape(x, newshape=relay.const([3, 4])), "reshape"),
        (relay.reshape(x, (3, 4)), "reshape"),
        (relay.zeros(s, "float32"), "dyn.zeros"),
        (relay.full(relay.const(1.0), s), "dyn.full"),
        (relay.full(relay.const(1.0), (2, 3)), "full"),
        (relay.strided_slice(x, s, [1, 2]), "dyn.strided_slice"),
        (relay.strided_slice(x, relay.const([0, 1]), (1, 2), strides=[1, 1]), "strided_slice"),
        (relay.image.resize2d(image, two), "image.resize2d"),
        (relay.image.resize2d(image, s, method="cubic"), "dyn.image.resize2d"),
        (relay.nn.upsampling(image, scale, 2), "dyn.nn.upsampling"),
        (relay.nn.pad(x, relay.const(np.array([[1, 0], [0, 1]])), 2.0), "nn.pad"),
    ):
        assert isinstance(call_.op, OpDef) and call_.op.name == name
    with pytest.raises(AotcError, match="axes"):
        relay.strided_slice(x, s, s, axes=(1, 0))


# --- compiled


def test_scalars_compile_and_run_on_the_virtual_machine() -> None:
    """A shape without elements is an argument whose value is known: where nothing is rewritten, a kernel lacks."""
    x, s = var("x", 1, 1), var("s", 0, dtype="int64")
    module = module_of(relu(dyn.reshape(x, s)), x, s)
    data = np.ones((1, 1), np.float32), np.zeros(0, np.int64)
    with PassContext(opt_level=0):
        assert relay.create_executor("vm", module, target="c").evaluate()(*data).numpy() == 1
        with pytest.raises(AotcError, match=r"dyn\.reshape"):
            relay.create_executor("aot", module, target="c").evaluate()
    assert relay.create_executor("aot", module, target="c").evaluate()(*data).numpy() == 1


def test_constant_shapes_compile() -> None:
    x = var("x", 2, 6)
    module = module_of(relu(dyn.reshape(x, vector(3, 4))), x)
    data = np.arange(-6, 6, dtype=np.float32).reshape(2, 6)
    with PassContext(opt_level=2):
        got = relay.create_executor("aot", module, target="c").evaluate()(data).numpy()
    np.testing.assert_array_equal(got, np.maximum(data.reshape(3, 4), 0))


def test_unknown_shapes_run_on_the_virtual_machine() -> None:
    x, s = var("x", 2, 6), var("s", 2, dtype="int64")
    module = module_of(relu(dyn.reshape(x, s)), x, s)
    data = np.arange(-6, 6, dtype=np.float32).reshape(2, 6)
    run = relay.create_executor("vm", module, target="c").evaluate()
    for shape in ((3, 4), (12, 1)):
        np.testing.assert_array_equal(run(data, np.array(shape)).numpy(), np.maximum(data.reshape(shape), 0))
    with pytest.raises(AotcError, match="not known at compile time"):
        relay.create_executor("aot", module, target="c").evaluate()
