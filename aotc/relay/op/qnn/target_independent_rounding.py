# SPDX-License-Identifier: Apache-2.0
"""Graph operators on float32 (`qnn.product`, `qnn.multiply_add`, `qnn.nearest_int8`) whose rounding
is the same on all targets, even on those that may fuse multiplication and addition.

product(x, y) + z                      # two roundings, on all targets
multiply_add(x, y, z)                  # one rounding, on all targets
nearest_int8(x, 3.0)                   # the nearest integers, plus 3, saturated; NaN is -128
"""

from functools import partial
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, DType, OpPattern, PrecisionTreatment, QuantizationTreatment, declare_arguments
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    element_function_of_scalar_function,
    elementwise_numpy_reference,
    exact_sample,
    random_array,
    special_values,
)
from aotc.relay.op.type_rules import broadcasting_type_rule, elementwise_axis_map
from aotc.tir import INSTRUCTIONS, call


def _float32_elementwise_op_samples(argument_count: int) -> Samples:
    values = special_values("float32")
    extra_operands = (values.reshape(-1, 1), np.roll(values, 1))
    yield exact_sample(NO_ATTRS, values, *extra_operands[: argument_count - 1])
    for shape in ((), (2, 3), (0, 3)):
        yield exact_sample(NO_ATTRS, *(random_array(shape, "float32", seed) for seed in range(argument_count)))


def _elementwise_op_of_tir_instruction(
    name: str, instruction: str, argument_names: str, doc: str, **facets: Any
) -> OpDef:
    """Define the elementwise operator qnn.NAME, which computes one instruction of tensor programs."""
    derived: dict[str, Any] = {
        "infer": broadcasting_type_rule(accepts=lambda ty: ty.dtype in ("float32", "float64")),
        "reference": elementwise_numpy_reference(INSTRUCTIONS[instruction].meaning),
        "samples": partial(_float32_elementwise_op_samples, len(argument_names.split())),
    }
    return OpDef(
        name=f"qnn.{name}",
        doc=doc,
        args=declare_arguments(*argument_names.split()),
        pattern=OpPattern.BROADCAST,
        precision=PrecisionTreatment.NEVER,
        axes=elementwise_axis_map,
        element=element_function_of_scalar_function(partial(call, instruction)),
        **derived | facets,
    )


def _round_to_byte_op(dtype: str) -> OpDef:
    low, high = int(DType(dtype).min), int(DType(dtype).max)

    def round_and_saturate_to_byte(_: Any, data: Array, zero: Array) -> Array:
        whole = np.rint(data.astype(np.float64)) + zero
        return np.asarray(np.clip(np.where(np.isnan(whole), low, whole), low, high).astype(dtype))

    def byte_rounding_samples() -> Samples:
        zeros = np.array([low, -3 - low // 8, high], np.float32).reshape(3, 1)
        halves = (np.arange(-600, 600) / 2).astype(np.float32)
        for x in (special_values("float32"), halves):
            yield exact_sample(NO_ATTRS, x, zeros)

    doc = f"data to the nearest integers, even ones of two, plus the zero point, saturated as {dtype}; NaN is {low}."
    return _elementwise_op_of_tir_instruction(
        f"nearest_{dtype}",
        f"quantize_{dtype}",
        "data zero",
        doc,
        infer=broadcasting_type_rule(dtype, accepts=lambda ty: ty.dtype == "float32"),
        reference=round_and_saturate_to_byte,
        samples=byte_rounding_samples,
    )


product = _elementwise_op_of_tir_instruction(
    "product", "product", "lhs rhs", "lhs * rhs, rounded by itself whatever is added to it."
)
multiply_add = _elementwise_op_of_tir_instruction(
    "multiply_add", "fma", "data factor addend", "data * factor + addend, rounded once."
)
nearest_int8, nearest_uint8 = _round_to_byte_op("int8"), _round_to_byte_op("uint8")


def _fixed_point_multiply_op(name: str, doc: str, scale_product: Any) -> OpDef:
    def fixed_point_multiply_samples() -> Samples:
        ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 5, -5, 15, -15, 3 << 29, -(3 << 29)], np.int32)
        x = np.append(ends, random_array((40,), "int32", 1) * 37)
        multipliers = np.array([1 << 30, (1 << 31) - 1, 0x5A5A5A5A, 0], np.int32).reshape(4, 1, 1)
        shifts = np.array([0, 1, 7, 29], np.int32).reshape(4, 1)
        yield exact_sample(NO_ATTRS, x.astype(np.int32), multipliers, shifts)

    def fixed_point_multiply_reference(_: Any, data: Array, multiplier: Array, shift: Array) -> Array:
        product = data.astype(np.int64) * multiplier
        return np.asarray(scale_product(product, shift.astype(np.int64))).astype(np.int32)

    accept = partial(broadcasting_type_rule, accepts=lambda ty: ty.dtype == "int32")
    facets: dict[str, Any] = {
        "infer": accept(),
        "reference": fixed_point_multiply_reference,
        "samples": fixed_point_multiply_samples,
    }
    return _elementwise_op_of_tir_instruction(f"scale_{name}", f"scale_{name}", "data multiplier shift", doc, **facets)


def _scale_q31_product_rounding_twice(product: Array, shift: Array) -> Array:
    v = (product + (1 << 30)) >> 31
    return np.asarray((v + (np.int64(1) << shift) - (v < 0)) >> shift + 1)


scale_once = _fixed_point_multiply_op(
    "once",
    "data * multiplier / 2^(33 + shift), halves up; shifts are 0 to 29.",
    lambda product, shift: (product + (np.int64(1) << shift + 32)) >> shift + 33,
)
scale_twice = _fixed_point_multiply_op(
    "twice",
    "data * multiplier / 2^31, halves up, and that / 2^(1 + shift), halves away from zero; shifts are 0 to 30.",
    _scale_q31_product_rounding_twice,
)


def _saturate_op(dtype: str) -> OpDef:
    low, high = int(DType(dtype).min), int(DType(dtype).max)

    def saturate_samples() -> Samples:
        yield exact_sample(NO_ATTRS, np.array([-(2**31), 2**31 - 1, -129, -128, -1, 0, 127, 128, 255, 256], np.int32))

    facets: dict[str, Any] = {
        "infer": broadcasting_type_rule(dtype, accepts=lambda ty: ty.dtype == "int32"),
        "samples": saturate_samples,
    }
    facets["quantized"] = QuantizationTreatment.REFUSE
    facets["reference"] = lambda _, data: np.clip(data, low, high).astype(dtype)
    return _elementwise_op_of_tir_instruction(
        f"saturate_{dtype}", f"saturate_{dtype}", "data", f"data as {dtype}, the nearest value.", **facets
    )


#: Operators that saturate int32 to a narrower integer type, by that type.
SATURATE_OPS_BY_DTYPE = {dtype: _saturate_op(dtype) for dtype in ("int8", "uint8")}
saturate_int8, saturate_uint8 = SATURATE_OPS_BY_DTYPE.values()
#: Operators that round float32 to a saturated integer type, by that type.
ROUND_NEAREST_OPS_BY_DTYPE = {"int8": nearest_int8, "uint8": nearest_uint8}
