# SPDX-License-Identifier: Apache-2.0
"""Emit C macros and functions for the quantization of a model's input and output tensors.

Input: tensors, some with a quantization. Output: text for the header (scale and zero point as
macros, functions that quantize and dequantize a value) and for the C table of tensors.

    #define NET_INPUT_X_SCALE 0.25f
    #define NET_INPUT_X_ZERO_POINT 128
    static inline uint8_t net_input_x_quantize(float value) { ... }
"""

from collections.abc import Iterable, Sequence
from typing import Any

from aotc.ir import DType, Quantization
from aotc_codegen.c.c_types import c_literal
from aotc_codegen.c.schedule_calls import ModelTensor
from aotc_codegen.c.template_rendering import render_template


def quantization_template_values(model_name: str, tensors: Iterable[ModelTensor]) -> dict[str, str]:
    """Return the template values `quantized` (text for the header) and `meanings` (text for the
    table of tensors).
    """
    known = [(tensor, meaning) for tensor in tensors if (meaning := tensor.storage.quantization) is not None]
    return {
        "quantized": "".join(_quantization_header_text(model_name, *pair) for pair in known),
        "meanings": "".join(_quantization_table_text(*pair) for pair in known),
    }


def _scale_and_zero_point_literals(quantization: Quantization) -> tuple[list[str], list[str]]:
    """Return the scales and the zero points of a quantization as C literals."""
    real, whole = DType("float32"), DType("int32")
    scales = [c_literal(s, real) for s in quantization.scales]
    return scales, [c_literal(z, whole) for z in quantization.zero_points]


def _c_initializer_list(texts: Sequence[str]) -> str:
    return "{" + ", ".join(texts) + "}"


def _quantization_header_text(model_name: str, tensor: ModelTensor, quantization: Quantization) -> str:
    scales, zeros = _scale_and_zero_point_literals(quantization)
    function = f"{model_name}_{tensor.role}_{tensor.ident}"
    upper = function.upper()
    scale, zero = f"{upper}_SCALE", f"{upper}_ZERO_POINT"
    words: dict[str, Any] = {
        "role": tensor.role,
        "ident": tensor.ident,
        "ctype": tensor.ctype,
        "function": function,
        "lowest": int(quantization.dtype.min),
        "highest": int(quantization.dtype.max),
    }
    if quantization.axis is None:
        words |= {"along": "", "more": "", "tables": ()}
        words |= {"scale": scale, "zero": zero}
        words["macros"] = [f"{scale} {scales[0]}", f"{zero} ({zeros[0]})"]
        return render_template("quantized.h", **words)
    words["along"] = f" of each index along axis {quantization.axis}"
    words |= {"more": ", int32_t index"}
    words |= {"scale": "scales[index]", "zero": "zeros[index]"}
    words["macros"] = [
        f"{upper}_AXIS {quantization.axis}",
        f"{scale} {_c_initializer_list(scales)}",
        f"{zero} {_c_initializer_list(zeros)}",
    ]
    words["tables"] = [f"static const float scales[] = {scale};", f"static const int32_t zeros[] = {zero};"]
    return render_template("quantized.h", **words)


def _quantization_table_text(tensor: ModelTensor, quantization: Quantization) -> str:
    scales, zeros = _scale_and_zero_point_literals(quantization)
    axis = -1 if quantization.axis is None else quantization.axis
    return render_template(
        "quantized.c",
        tensor=f"{tensor.role}{tensor.number}",
        scales=_c_initializer_list(scales),
        zeros=_c_initializer_list(zeros),
        count=len(scales),
        axis=axis,
    )
