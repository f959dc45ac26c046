# SPDX-License-Identifier: Apache-2.0
"""Read the options of custom TFLite operators, which are flexbuffers, or structs of C.

options = FlexbufferOptions(node)
options.integer("max_detections"), options.number("y_scale")
pool_options(node).filter_width
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from flatbuffers import flexbuffers

from aotc.ir import AotcError, frozen, require
from aotc.relay.frontend.tflite.node import TfliteNode

#: Exceptions that reading at an invalid position of damaged options may raise.
_DAMAGED_OPTIONS_EXCEPTIONS: Final = (struct.error, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
#: Largest number of elements of a list among the options.
_MAX_LIST_ELEMENTS: Final = 4096
_MAX_INTEGER: Final = 1 << 31


@frozen(eq=False)
class FlexbufferOptions:
    """The options of a custom operator in a flexbuffer, by name. Each method raises AotcError (code
    "tflite-options") for an option that is missing, without a default, or that cannot be read.
    """

    node: TfliteNode

    def _value(self, name: str, default: Any) -> Any:
        operator = self.node.op.name
        try:
            options = flexbuffers.GetRoot(bytearray(self.node.op.custom_options)).AsMap
            return options[name]
        except KeyError:
            if default is None:
                raise AotcError("tflite-options", f"{operator} needs the option {name}") from None
            return None
        except _DAMAGED_OPTIONS_EXCEPTIONS as error:
            raise AotcError("tflite-options", f"the options of {operator} are no flexbuffer") from error

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number, as a float."""
        value = self._value(name, default)
        if value is None or value.IsNull:
            require("tflite-options", default is not None, f"{self.node.op.name} needs the option {name}")
            assert default is not None
            return default
        try:
            return float(value.AsBool if value.IsBool else value.AsFloat)
        except _DAMAGED_OPTIONS_EXCEPTIONS as error:
            text = f"the option {name} of {self.node.op.name} is no number"
            raise AotcError("tflite-options", text) from error

    def integer(self, name: str, least: int, default: int | None = None) -> int:
        """Return an integer, which must be at least `least`."""
        value = self.number(name, default)
        text = f"the option {name} of {self.node.op.name} is {value:g}, an integer of at least {least} is needed"
        require("tflite-options", value == value // 1 and least <= value < _MAX_INTEGER, text)
        return int(value)

    def integers(self, name: str) -> list[int]:
        """Return a list of integers that are not negative."""
        value = self._value(name, None)
        try:
            vector = value.AsTypedVector if value.IsTypedVector else value.AsVector
            elements = [int(vector[k].AsInt) for k in range(min(len(vector), _MAX_LIST_ELEMENTS))]
        except _DAMAGED_OPTIONS_EXCEPTIONS as error:
            text = f"the option {name} of {self.node.op.name} is no list of integers"
            raise AotcError("tflite-options", text) from error
        text = f"the option {name} of {self.node.op.name} has a negative element"
        require("tflite-options", min(elements, default=0) >= 0, text)
        return elements


class ConvolutionOptions(NamedTuple):
    """First fields of the struct TfLiteTransposeConvParams."""

    padding: int
    stride_width: int
    stride_height: int


class PoolOptions(NamedTuple):
    """First fields of the struct TfLitePoolParams."""

    padding: int
    stride_width: int
    stride_height: int
    filter_width: int
    filter_height: int
    activation: int


#: Codes of paddings in the structs, which differ from those of the schema.
STRUCT_SAME_PADDING: Final = 1
STRUCT_VALID_PADDING: Final = 2


def _integers_of_struct(node: TfliteNode, count: int) -> tuple[int, ...]:
    data = node.op.custom_options
    text = f"the options of {node.op.name} have {len(data)} bytes, at least {4 * count} are needed"
    require("tflite-options", len(data) >= 4 * count, text)
    numbers: tuple[int, ...] = struct.unpack(f"<{count}i", data[: 4 * count])
    padding, *sizes = numbers
    known = padding in (STRUCT_SAME_PADDING, STRUCT_VALID_PADDING)
    require(
        "tflite-options", known, f"padding {padding} of {node.op.name} is not supported (1, SAME, and 2, VALID, are)"
    )
    text = f"strides and extents of {node.op.name} must be positive: {sizes[:4]}"
    require("tflite-options", min(sizes[:4]) > 0, text)
    return numbers


def convolution_options(node: TfliteNode) -> ConvolutionOptions:
    """Return the options of a transposed convolution. Raises AotcError (code "tflite-options") for
    invalid ones.
    """
    return ConvolutionOptions(*_integers_of_struct(node, len(ConvolutionOptions._fields)))


def pool_options(node: TfliteNode) -> PoolOptions:
    """Return the options of a pool. Raises AotcError (code "tflite-options") for invalid ones."""
    options = PoolOptions(*_integers_of_struct(node, len(PoolOptions._fields)))
    text = f"{node.op.name} with the fused activation {options.activation} is not supported"
    require("tflite-options", options.activation == 0, text)
    return options
