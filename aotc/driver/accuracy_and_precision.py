# SPDX-License-Identifier: Apache-2.0
"""Check the accuracy and the precision of a compilation against its target, return the target whose
kernels have them, and bound the error of reduced precision.

    target_for_accuracy_and_precision(get_target("x86-64-v4"), context)     # for "compile.accuracy"
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from aotc.driver.check_option_value_types import is_collection_of_strings
from aotc.ir import AotcError, Op, PassContext, option_text, require_known_name
from aotc.ir.option_description import ACCURACIES, FULL_PRECISION, PRECISIONS
from aotc.relay.graph_api import Call, Function, IRModule, post_order, require_op_of_call, tensor_type_of
from aotc.relay.transform.pass_base import is_not_primitive_function
from aotc.relay.transform.pipeline import graph_in_reduced_precision
from aotc.tir.bare_metal_portable_and_small_targets import target_with_fixed_summation_order
from aotc.tir.micro_kernels import MMA_TF32
from aotc.tir.target import TARGETS, Target

#: Bits of the significands of 16-bit floats, the leading one included.
SIGNIFICAND_BITS: Final = {"bfloat16": 8, "float16": 11}
#: Accepted error of a model in reduced precision, in units of the largest error of one rounding.
MAX_DEVIATIONS_OF_ROUNDING: Final = 4.0
_FAST: Final = ACCURACIES[0]
_REPRODUCIBLE: Final = ACCURACIES[-1]


def accuracy_of_context(context: PassContext) -> str:
    """Return the accuracy of a compilation, the configuration key `compile.accuracy`: "fast",
    "strict" or "reproducible".
    """
    return str(context.get_config("compile.accuracy", _FAST))


def precision_of_context(context: PassContext) -> str:
    """Return the data type of the operands of products by weights, the configuration key
    `compile.precision`: "float32", "bfloat16" or "float16".
    """
    return str(context.get_config("compile.precision", FULL_PRECISION))


def rounding_error_of_precision(precision: str) -> float:
    """Return the largest error of one rounding to a 16-bit floating dtype, relative to the number."""
    return float(2.0 ** -SIGNIFICAND_BITS[precision])


def has_products_of_dtype(target: Target, dtype: str) -> bool:
    """Return True if a target has instructions for products of a 16-bit floating dtype."""
    kernel = target.micro_kernel_for_types(dtype, dtype, FULL_PRECISION)
    return kernel is not None and bool(kernel.operands)


def target_for_accuracy_and_precision(target: Target, context: PassContext) -> Target:
    """Return the target whose kernels have the accuracy and the precision of a configuration.

    With accuracy "reproducible", sums have a fixed order, in which products of 16-bit floats are
    multiplied and added in float32 like others. GPUs use tensor cores with accuracy "fast" only, and
    for float32 only with `compile.tf32`.

    Raise AotcError (code "accuracy" or "precision") for an unknown value, for TF32 with another
    accuracy than "fast", for a precision for which the target has no instructions, and for layers in
    float32 where all are.
    """
    accuracy = accuracy_of_context(context)
    require_known_name("accuracy", "accuracy", accuracy, ACCURACIES)
    _check_precision(target, context)
    if accuracy == _REPRODUCIBLE:
        target = target_with_fixed_summation_order(target)
    tf32, is_fast = context.get_config("compile.tf32", False), accuracy == _FAST
    if tf32 and not is_fast:
        text = f"compile.tf32 rounds float32 to a fraction of 10 bits, which accuracy {accuracy!r} does not permit"
        hint = "choose " + option_text("accuracy", _FAST) + ", or leave compile.tf32 out"
        raise AotcError("accuracy", text, hint=hint)
    if target.gpu is not None and tf32:
        target = replace(target, micro_kernels=(*target.micro_kernels, MMA_TF32))
    if target.gpu is not None and not is_fast:
        exact = (k for k in target.micro_kernels if k.level != "warp" or k.sums != FULL_PRECISION)
        target = replace(target, micro_kernels=tuple(exact))
    return target


def graph_with_reduced_products(module: IRModule, target: Target, context: PassContext) -> IRModule:
    """Return a module whose products have the precision of a configuration, after the passes that
    reduce it and those before them; the operators are not fused, and evaluation in numpy rounds as
    compiled code does.
    """
    with context:
        return graph_in_reduced_precision(module, target)


def precision_metadata(graph: IRModule, context: PassContext, float32_error_bound: float) -> dict[str, Any]:
    """Return the metadata of a model in reduced precision: the data type of products, their number,
    and the bound on the error of float32 outputs; nothing for float32.

    graph                  the optimized graph, of fused functions
    float32_error_bound    bound on the error of the model in float32, relative to the standard deviation

    Rounding to p bits changes a number by at most 2^-p of its magnitude. The errors of n products by
    weights are independent, so their squares add up. The bound is 4 * 2^-p * sqrt(n).
    """
    precision = precision_of_context(context)
    if precision == FULL_PRECISION:
        return {}
    count = sum(
        _count_products_of_dtype(node.op, precision)
        for node in post_order(graph.main, is_not_primitive_function)
        if isinstance(node, Call) and isinstance(node.op, Function)
    )
    bound = MAX_DEVIATIONS_OF_ROUNDING * rounding_error_of_precision(precision) * math.sqrt(count)
    facts = {"precision": precision, "reduced_products": count}
    return facts | {"error_bound": max(float32_error_bound, bound)}


def _count_products_of_dtype(function: Function, dtype: str) -> int:
    """Return the number of convolutions and matrix products in a fused function whose data have a
    dtype and whose sums are float32.
    """
    calls = (node for node in post_order(function.body) if isinstance(node, Call) and isinstance(node.op, Op))
    return sum(
        require_op_of_call(call).is_contraction
        and tensor_type_of(call.args[0]).dtype == dtype
        and tensor_type_of(call).dtype == FULL_PRECISION
        for call in calls
    )


def _check_precision(target: Target, context: PassContext) -> None:
    """Raise AotcError (code "precision") unless the target has the precision of a configuration."""
    precision = precision_of_context(context)
    require_known_name("precision", "precision", precision, PRECISIONS)
    layers = context.get_config("compile.float32_layers", ())
    if not is_collection_of_strings(layers):
        text = f"layers in float32 must be a list of names and patterns, not {layers!r}"
        raise AotcError("precision", text, hint="write " + option_text("float32_layers", ["NAME"]))
    if precision == FULL_PRECISION:
        if layers:
            text = f"all layers are computed in float32, not only {', '.join(layers)}"
            raise AotcError("precision", text, hint="choose another precision: " + option_text("precision", "bfloat16"))
        return
    is_reproducible = accuracy_of_context(context) == _REPRODUCIBLE
    if is_reproducible or has_products_of_dtype(target, precision):
        return
    known = ", ".join(name for name, t in TARGETS.items() if has_products_of_dtype(t, precision))
    hint = f"targets that have them: {known}; or choose " + option_text("accuracy", _REPRODUCIBLE)
    hint += ", which multiplies in float32"
    raise AotcError("precision", f"target {target.name} has no instructions for products of {precision}", hint=hint)
