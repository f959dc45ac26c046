# SPDX-License-Identifier: Apache-2.0
"""Invalid scales, zero points and sums give one diagnostic with the node, or a warning with the layer."""

from __future__ import annotations

import warnings
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.reporting.model_inspection import inspect_model
from tests.frontend.test_quantized_onnx import Case, F

STORED: Final = np.zeros((4, 8), np.int8)
REAL: Final = np.zeros((4, 8), F)
FOUR: Final = np.ones(4, F)
ZEROS: Final = np.zeros(4, np.int8)
PACKED: Final = np.zeros((8, 2, 8), np.uint8)


def blocks(value: float, *shape: int) -> Any:
    """Scales of which one is odd."""
    scales = np.ones(shape or (4, 2), F)
    scales.flat[3] = value
    return scales


def refused(op: str, args: list[Any], code: str, text: str, domain: str = "", **attributes: Any) -> None:
    variable = (1,) if op.startswith("Gather") else (0,)
    with pytest.raises(AotcError) as caught:
        from_onnx(Case(op, args, attributes=attributes, domain=domain, variable=variable).model())
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert text in problem.message
    assert problem.span is not None and problem.span.node == "the_node"


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_lie_along_an_axis_that_there_is(op: str, domain: str) -> None:
    x = REAL if op[0] == "Q" else STORED
    for axis in (2, 7, -3):
        refused(op, [x, FOUR, ZEROS], "onnx-axis", f"axis {axis} is outside rank 2", domain, axis=axis)
        refused(op, [x, np.ones(8, F), np.zeros(8, np.int8)], "onnx-axis", f"axis {axis}", domain, axis=axis)
    refused(op, [x[0], np.ones(8, F), np.zeros(8, np.int8)], "onnx-axis", "axis 1 is outside rank 1", domain)
    refused(
        op, [x, FOUR, np.int8(0)], "onnx-quant", "scales of shape (4,) have zero points of shape ()", domain, axis=0
    )
    refused(op, [x, F(1), ZEROS], "onnx-quant", "scales of shape () have zero points of shape (4,)", domain, axis=0)
    # one scale lies along no axis
    from_onnx(Case(op, [x, F([1]), np.zeros(1, np.int8)], attributes={"axis": 7}, domain=domain).model())


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_scales_of_blocks(value: float) -> None:
    """Those that weights are dequantized with may be 0 or negative, as quantizers make them."""
    where: Any = {"axis": 1, "block_size": 4}
    zeros, text = np.zeros((4, 2), np.int8), "the scale of a block is not finite"
    refused("QuantizeLinear", [REAL, blocks(value), zeros], "qnn.scale", f"[3] is {value:g}: not positive", **where)
    short = blocks(value).astype(np.float16)
    refused("QuantizeLinear", [REAL.astype(np.float16), short, zeros], "qnn.scale", "[3] is", **where)
    kinds = [
        Case("DequantizeLinear", [STORED, blocks(value), zeros], attributes=where, domain=""),
        Case("DequantizeLinear", [STORED.astype(ml_dtypes.int4), blocks(value)], attributes=where, domain=""),
        Case(
            "MatMulNBits",
            [np.zeros((3, 32), F), PACKED, blocks(value, 16)],
            attributes={"K": 32, "N": 8, "block_size": 16, "bits": 4},
        ),
        Case(
            "GatherBlockQuantized",
            [np.zeros((10, 32), np.uint8), np.zeros(3, np.int64), blocks(value, 10, 4)],
            attributes={"block_size": 16, "bits": 4},
            variable=(1,),
        ),
    ]
    for case in kinds:
        if np.isfinite(value):
            from_onnx(case.model())
        else:
            refused(case.op, list(case.args), "qnn.scale", text, case.domain, **case.attributes)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_blocks_cover_the_data(op: str) -> None:
    x, zeros = REAL if op[0] == "Q" else STORED, np.zeros((4, 2), np.int8)
    for shape, size in (((4, 3), 4), ((4, 2), 3), ((4, 2), 8), ((1, 2), 4), ((4, 2), -4), ((4, 8), 0)):
        args = [x, np.ones(shape, F), np.zeros(shape, np.int8)]
        refused(op, args, "onnx-quant", f"a scale of shape {shape} in blocks of {size}", axis=1, block_size=size)
    text = "scales of shape (4, 2) have zero points of shape (4, 1)"
    refused(op, [x, np.ones((4, 2), F), zeros[:, :1]], "onnx-quant", text, axis=1, block_size=4)
    refused(op, [x, np.ones((4, 2), F), zeros], "onnx-axis", "axis 2", axis=2, block_size=4)
    # the last block may be short
    from_onnx(
        Case(op, [x[:, :7], np.ones((4, 2), F), zeros], attributes={"axis": 1, "block_size": 4}, domain="").model()
    )


def long_sum(weight: int) -> Case:
    """A product of 70,000 elements by weights of one value."""
    w = np.full((70_000, 2), weight, np.int8)
    args = [np.zeros((1, 70_000), np.uint8), F(0.1), np.uint8(0), w, F(0.1), np.int8(0), F(1), np.uint8(0)]
    return Case("QLinearMatMul", args, domain="")


def test_sums_that_int32_may_not_hold_are_warned_of_with_the_layer() -> None:
    with pytest.warns(
        UserWarning, match=r"the_node.*sums of 70000 products may reach 2,266,950,000, int32 holds"
    ) as seen:
        CompileOptions(build=False).compile_model(long_sum(127).model())
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CompileOptions(build=False).compile_model(long_sum(100).model())


def test_sums_that_int32_may_not_hold_stay_on_real_numbers() -> None:
    """Where the model says floats, nothing wraps."""
    case = long_sum(127)
    model = case.model()
    del model.graph.node[:]
    model.graph.node.extend(
        helper.make_node(op, given, [to], name=to)
        for op, given, to in (
            ("DequantizeLinear", ["i0", "i1", "i2"], "x"),
            ("DequantizeLinear", ["i3", "i4", "i5"], "w"),
            ("MatMul", ["x", "w"], "y"),
            ("QuantizeLinear", ["y", "i6", "i7"], "o0"),
        )
    )
    (row,) = inspect_model(model, target="x86-64-v3")["left_real"]
    assert row["reason"] == "dot products may reach 2.27e+09, which int32 cannot represent"
    assert row["nodes"] == ["y"]
