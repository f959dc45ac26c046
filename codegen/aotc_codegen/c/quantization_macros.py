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
from aotc_codegen.c.c_types import literal
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.schedule_calls import Tensor


def quantized_words(name: str, tensors: Iterable[Tensor]) -> dict[str, str]:
    """Return the template values `quantized` (text for the header) and `meanings` (text for the
    table of tensors).
    """
    known = [(tensor, meaning) for tensor in tensors if (meaning := tensor.storage.quantization) is not None]
    return {
        "quantized": "".join(_header(name, *pair) for pair in known),
        "meanings": "".join(_table(*pair) for pair in known),
    }


def _numbers(meaning: Quantization) -> tuple[list[str], list[str]]:
    """Return the scales and the zero points of a quantization as C literals."""
    real, whole = DType("float32"), DType("int32")
    scales = [literal(s, real) for s in meaning.scales]
    return scales, [literal(z, whole) for z in meaning.zero_points]


def _listed(texts: Sequence[str]) -> str:
    return "{" + ", ".join(texts) + "}"


def _header(name: str, tensor: Tensor, meaning: Quantization) -> str:
    scales, zeros = _numbers(meaning)
    function = f"{name}_{tensor.role}_{tensor.ident}"
    upper = function.upper()
    scale, zero = f"{upper}_SCALE", f"{upper}_ZERO_POINT"
    words: dict[str, Any] = {
        "role": tensor.role,
        "ident": tensor.ident,
        "ctype": tensor.ctype,
        "function": function,
        "lowest": int(meaning.dtype.min),
        "highest": int(meaning.dtype.max),
    }
    if meaning.axis is None:
        words |= {"along": "", "more": "", "tables": ()}
        words |= {"scale": scale, "zero": zero}
        words["macros"] = [f"{scale} {scales[0]}", f"{zero} ({zeros[0]})"]
        return render("quantized.h", **words)
    words["along"] = f" of each index along axis {meaning.axis}"
    words |= {"more": ", int32_t index"}
    words |= {"scale": "scales[index]", "zero": "zeros[index]"}
    words["macros"] = [f"{upper}_AXIS {meaning.axis}", f"{scale} {_listed(scales)}", f"{zero} {_listed(zeros)}"]
    words["tables"] = [f"static const float scales[] = {scale};", f"static const int32_t zeros[] = {zero};"]
    return render("quantized.h", **words)


def _table(tensor: Tensor, meaning: Quantization) -> str:
    scales, zeros = _numbers(meaning)
    axis = -1 if meaning.axis is None else meaning.axis
    return render(
        "quantized.c",
        tensor=f"{tensor.role}{tensor.number}",
        scales=_listed(scales),
        zeros=_listed(zeros),
        count=len(scales),
        axis=axis,
    )
