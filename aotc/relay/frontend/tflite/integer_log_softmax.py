# SPDX-License-Identifier: Apache-2.0
"""LOG_SOFTMAX of 8-bit integers along the last axis, as TFLite Micro and LiteRT compute it.

Input: an operator with its input. Output: integers of its output tensor, whose scale is 1/16 and
whose zero point is the greatest integer.

    integer_log_softmax(node)

Source: TFLite's reference and optimized kernels (Apache-2.0), reimplemented.
"""

from typing import Final

import numpy as np

from aotc.ir import require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    constant_value,
    exp_table_in_fixed_point,
    exp_table_in_float,
    exp_table_index_from_row_maximum,
    gather_from_table,
    sum_last_axis_sequentially,
    sum_rounded_table_entries,
)
from aotc.relay.frontend.tflite.node import TfliteNode
from aotc.relay.graph_api import Expr
from aotc.relay.op.qnn.fixed_point import fixed_point_factors_of_scales

_WIDE: Final = "int64"
_FLOAT: Final = "float32"
#: The scale that the kernels require of results.
_OUTPUT_SCALE: Final = 1 / 16
#: Row length from which TFLite Micro's 32-bit sum of exponentials, with 19 fractional bits, may overflow.
_FIXED_POINT_ROW_LIMIT: Final = 1 << 12
#: Integer bits of the scaled inputs and of the logarithms.
_INPUT_INTEGER_BITS: Final = 5
#: Bits by which a result with 26 fractional bits is shifted to the output scale, 1/16.
_OUTPUT_SHIFT_BITS: Final = 22


def integer_log_softmax(node: TfliteNode) -> Expr:
    """Compute LOG_SOFTMAX of int8 or uint8. Raises AotcError (code "tflite-quant") for an output
    scale other than 1/16 or a zero point other than the greatest integer.
    """
    x, output = node.per_tensor_quantized_input(0), node.output_quantization()
    scale, zero = float(constant_value(output.scale)), int(constant_value(output.zero))
    greatest = int(output.dtype.max)
    text = (
        f"LOG_SOFTMAX of {output.dtype} has the output scale {scale:.9g} and zero point {zero}; "
        f"the interpreters of TFLite require 1/16 and {greatest}"
    )
    require("tflite-quant", scale == _OUTPUT_SCALE and zero == greatest, text)
    count = g.dim(x.data, g.rank(x.data) - 1)
    require("tflite-quant", count > 0, "LOG_SOFTMAX of rows without elements is not supported")
    if node.rounding.name == "tflm" and output.dtype == "int8":
        return _log_softmax_in_fixed_point(x, output, count)
    return _log_softmax_in_float(x, output)


def _log_softmax_in_float(x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Compute log-softmax as LiteRT does: float32 exponentials from a table, summed in order, and
    the logarithm of the sum in float32.
    """
    scale, unit = np.float32(constant_value(x.scale)), np.float32(constant_value(output.scale))
    last = g.rank(x.data) - 1
    terms = gather_from_table(g.constant(exp_table_in_float(x.scale, 1.0)), exp_table_index_from_row_maximum(x))
    # the C library's float32 logarithm is nearly always the rounded exact one
    log_sum = g.cast(g.log(g.cast(sum_last_axis_sequentially(terms), "float64")), _FLOAT)
    data = g.cast(x.data, _FLOAT)
    top = g.call_reduction("max", data, [last], True)
    offset = g.div(g.add(g.call_op("qnn.product", top, g.constant(scale)), log_sum), float(unit))
    y = g.sub(g.call_op("qnn.product", data, g.constant(scale / unit)), offset)
    return q.clip_and_cast(g.add(g.call_op("round", y), g.cast(output.zero, _FLOAT)), output.dtype)


def _log_softmax_in_fixed_point(x: QuantizedTensor, output: OutputQuantization, count: int) -> Expr:
    """Compute log-softmax as TFLite Micro does: exponentials and the logarithm of their sum in fixed
    point.
    """
    text = f"LOG_SOFTMAX of rows of {count} integers is not supported ({_FIXED_POINT_ROW_LIMIT - 1} are)"
    require("tflite-quant", count < _FIXED_POINT_ROW_LIMIT, text)
    table = exp_table_in_fixed_point(x.scale, 1.0)
    place = exp_table_index_from_row_maximum(x)
    log_sum = fx.fixed_point_log_of_at_least_one(
        sum_rounded_table_entries(table.exponentials, place), 12, _INPUT_INTEGER_BITS
    )
    # distances below this one give the least integer
    inverse = fixed_point_factors_of_scales(
        np.float64(1 << (31 - table.left_shift)) / np.float64(table.multiplier), np.float64(1), "TFLITE"
    )
    least = fx.fixed_point_product(g.sub(log_sum, 1 << 31), int(inverse.multiplier))
    least = fx.rounding_divide_by_power_of_two(least, int(inverse.right_shift) - int(inverse.left_shift))
    least = g.maximum(least, -table.radius - 1)
    y = g.sub(gather_from_table(table.scaled_steps, place), log_sum)
    y = g.add(fx.rounding_divide_by_power_of_two(y, _OUTPUT_SHIFT_BITS), fx.cast_to_int64(output.zero))
    steps = fx.cast_to_int64(g.sub(place, 255))
    return q.clip_and_cast(g.where(g.greater(steps, least), y, int(output.dtype.min)), output.dtype)
