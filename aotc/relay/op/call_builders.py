# SPDX-License-Identifier: Apache-2.0
"""Table of the functions that build calls of operators, by the name of the operator.

    FUNCTIONS["nn.conv2d"](data, weight, channels=64, kernel_size=(3, 3))
    FUNCTIONS["reshape"](data, shape)         # dyn.reshape if `shape` is an expression that is not constant

An operator with a dynamic variant, which takes shapes as arguments, shares one function with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from inspect import Signature
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Call, Constant, If, Let, TupleGetItem, Var
from aotc.relay.op import OPERATORS_BY_NAME, conv, normalization, reduce, unique_and_segments
from aotc.relay.op.operator_definition import OpDef, builder_function_of, builder_signature_of

#: Classes of expressions that a tensor argument may have.
_TENSOR_EXPR_CLASSES: Final = (Call, Constant, If, Let, TupleGetItem, Var)


def _dtypes_of_shape_parameters(static_op: OpDef, dynamic_op: OpDef) -> Mapping[str, np.dtype[Any]]:
    """Return the parameters that are attributes of `static_op` and arguments of `dynamic_op`, with
    their element types.
    """
    names = {a.name for a in dynamic_op.args}
    fields = [f for f in dataclasses.fields(static_op.attrs) if f.name in names]
    return {f.name: np.dtype(np.float32 if "float" in str(f.type) else np.int64) for f in fields}


def _static_or_dynamic_builder(static_op: OpDef, dynamic_op: OpDef) -> Callable[..., Call]:
    """Return a function that builds a call of `static_op`, or of `dynamic_op` if a shape is a
    non-constant expression.

    The function raises AotcError for parameters that the dynamic operator does not have.
    """
    shapes, signature, dynamic_params = (
        _dtypes_of_shape_parameters(static_op, dynamic_op),
        builder_signature_of(static_op),
        builder_signature_of(dynamic_op).parameters,
    )

    def build_static_or_dynamic_call(*args: Any, **kwargs: Any) -> Call:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return static_op(*args, **kwargs)  # raises an error with the function's name
        if not any(isinstance(given.get(name), _TENSOR_EXPR_CLASSES) for name in shapes):
            return static_op(*args, **kwargs)
        given = {name: value for name, value in given.items() if value is not None or name not in shapes}
        for name in given:
            if name not in dynamic_params:
                last = static_op.name.rpartition(".")[2]
                raise AotcError(
                    "dynamic-shape", f"{last}: `{name}` cannot be combined with a shape that is an expression"
                )
        numbers = [k for k in shapes if k in given and not isinstance(given[k], _TENSOR_EXPR_CLASSES)]
        result = dynamic_op(**given | {k: Constant(np.asarray(given[k], shapes[k])) for k in numbers})
        assert dynamic_op.static is not None
        known = dynamic_op.static(result.attrs, result.args)
        return known if isinstance(known, Call) else result

    accepted = [
        p.replace(annotation=f"Expr | {p.annotation}") if p.name in shapes else p for p in signature.parameters.values()
    ]
    return builder_function_of(static_op, build_static_or_dynamic_call, signature.replace(parameters=accepted))


def _builder_function(op: OpDef) -> Callable[..., Any]:
    dynamic = OPERATORS_BY_NAME.get(f"dyn.{op.name}")
    return builder_function_of(op) if dynamic is None else _static_or_dynamic_builder(op, dynamic)


def _builder_with_defaults(name: str, op: OpDef, **defaults: Any) -> Callable[..., Call]:
    """Return a function called `name` that builds calls of `op` with other default values."""
    given = builder_signature_of(op).parameters.values()
    changed = [p.replace(default=defaults.get(p.name, p.default)) for p in given]
    signature = Signature(changed, return_annotation="Call")

    def build_call_with_defaults(*args: Any, **kwargs: Any) -> Call:
        return op(**defaults | signature.bind(*args, **kwargs).arguments)

    function = builder_function_of(op, build_call_with_defaults, signature)
    function.__name__ = function.__qualname__ = name
    return function


#: Builder functions by operator name ("add", "nn.conv2d"), and functions composed of several
#: operators.
FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: _builder_function(op) for name, op in OPERATORS_BY_NAME.items()}
    | {
        "nn.dropout": normalization.dropout,
        "nn.contrib_conv2d_nchwc": _builder_with_defaults("contrib_conv2d_nchwc", conv.conv2d, data_layout="NCHW8c"),
        "std": reduce.std,
        "mean_std": reduce.mean_std,
        "segment_sum": unique_and_segments.segment_sum,
        "mean_variance": reduce.mean_variance,
        "logsumexp": reduce.logsumexp,
    }
)


def op_builders_as_module_attributes(module_name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module such as "relay.op.nn".

    The module's attributes are the builder functions of the operators called nn.NAME.
    """
    prefix = module_name.rpartition(".")[2] + "."
    builders = {name.removeprefix(prefix): f for name, f in FUNCTIONS.items() if name.startswith(prefix)}

    def builder_function_or_raise(name: str) -> Any:
        if name == "__all__":
            return sorted(builders)
        if name not in builders:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        return builders[name]

    return builder_function_or_raise, lambda: sorted(builders)
