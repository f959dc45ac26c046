# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of casts between strings and numbers, with the results of ONNX Runtime.

OPS["Cast"](node=node)              # numbers to numbers or strings
STRING_OPS["Cast"](node=node)       # strings to numbers
"""

from __future__ import annotations

from typing import Final

from onnx import TensorProto

from aotc.ir import DType, require
from aotc.ir.dimensions import product_of_dims
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.numbers_of_text import ParsedNumbers, floats_of_text, integers_of_text
from aotc.relay.frontend.onnx import ops_math
from aotc.relay.frontend.onnx.load import dtype_of_onnx_type
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Strings, Table, call_converter
from aotc.relay.frontend.text_of_numbers import text_of_floats, text_of_integers

_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


def text_of_number(x: Expr, op_type: str) -> Strings:
    """Return the texts of numbers as ONNX Runtime writes them. Raises AotcError (code "onnx-dtype") for data types
    that it does not write.
    """
    dtype = g.dtype(x)
    if dtype in _FLOATS:
        return Strings(text_of_floats(x))
    text = f"{op_type} of {dtype} to strings is not supported"
    require("onnx-dtype", dtype.is_bool or (dtype.is_integer and dtype.bits >= 8), text)
    return Strings(text_of_integers(x))


def number_of_text(x: Expr, to: DType, op_type: str) -> Expr:
    """Return the numbers that texts begin with. A run ends with a status if a text is no number. Raises AotcError
    (code "onnx-dtype") for data types that ONNX Runtime does not read.
    """
    if to in _FLOATS:
        parsed = floats_of_text(x)
        if to != "float64":
            # ONNX Runtime rounds all to float64 first, and narrow floats then to float32
            parsed = ParsedNumbers(g.cast(g.cast(parsed.values, "float32"), str(to)), parsed.is_valid)
    else:
        is_known = to.is_bool or (to.is_integer and to.bits >= 8)
        require("onnx-dtype", is_known, f"{op_type} of strings to {to} is not supported")
        is_signed = to.is_integer and not str(to).startswith("u")
        parsed = integers_of_text(x, "int64" if is_signed else "uint64")
        parsed = ParsedNumbers(g.cast(parsed.values, str(to)), parsed.is_valid)
    return _with_all_valid(parsed, to)


def _with_all_valid(parsed: ParsedNumbers, to: DType) -> Expr:
    """Return the numbers, of which all must be valid: a run ends if a text is no number."""
    flags = parsed.is_valid
    text = f"a string that is no number is cast to {to}"
    if isinstance(flags, Constant):
        require("graph-string", bool(flags.data.all()), text)
        return parsed.values
    row = g.reshape(flags, (product_of_dims(g.dims(flags)),))
    return with_required_range(parsed.values, g.call_reduction("all", row, (0,), False), 1, 1, f"no {text}")


def _cast(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert Cast of numbers."""
    if node.attrs.get("to") in (TensorProto.STRING, "STRING"):
        return text_of_number(x, node.op_type)
    return call_converter(ops_math.OPS["Cast"], node)


def _cast_of_strings(x: Expr, *, node: OnnxNode) -> Converted:
    to = node.attrs.get("to")
    code = to if isinstance(to, int) else TensorProto.DataType.Value(to)
    if code == TensorProto.STRING:
        return Strings(x)
    return number_of_text(x, dtype_of_onnx_type(code, "`to` of Cast"), node.op_type)


def _cast_like(*, node: OnnxNode) -> Converted:
    """Convert CastLike, one of whose operands are strings."""
    x, like = node[0], node[1]
    if 0 not in node.string_inputs:
        return text_of_number(x, node.op_type)
    return Strings(x) if 1 in node.string_inputs else number_of_text(x, g.dtype(like), node.op_type)


OPS: Table = {"Cast": _cast}
STRING_OPS: Table = {"Cast": _cast_of_strings, "CastLike": _cast_like}
