# SPDX-License-Identifier: Apache-2.0
"""The functions that build calls of operators, by the operator's name.

    FUNCTIONS["nn.conv2d"](data, weight, channels=64, kernel_size=(3, 3))
    FUNCTIONS["reshape"](data, shape)         # dyn.reshape, where `shape` is an expression that is not constant

An operator of which there is a variant with shapes as arguments has one function for both.
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
from aotc.relay.op import REGISTRY, conv, normalization, reduce, unique_and_segments
from aotc.relay.op.operator_definition import OpDef, function_of, signature_of

#: What a tensor may be given as.
_NODES: Final = (Call, Constant, If, Let, TupleGetItem, Var)


def _shapes(static: OpDef, dynamic: OpDef) -> Mapping[str, np.dtype[Any]]:
    """The parameters that are attributes of one and arguments of the other, and the type of their elements."""
    names = {a.name for a in dynamic.args}
    fields = [f for f in dataclasses.fields(static.attrs) if f.name in names]
    return {f.name: np.dtype(np.float32 if "float" in str(f.type) else np.int64) for f in fields}


def _either(static: OpDef, dynamic: OpDef) -> Callable[..., Call]:
    """The function of `static`, or of `dynamic` where a shape is given as an expression that is not constant.

    Raises AotcError for parameters that the dynamic operator does not have.
    """
    shapes, signature, wanted = _shapes(static, dynamic), signature_of(static), signature_of(dynamic).parameters

    def build(*args: Any, **kwargs: Any) -> Call:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return static(*args, **kwargs)  # which says it with the function's name
        if not any(isinstance(given.get(name), _NODES) for name in shapes):
            return static(*args, **kwargs)
        given = {name: value for name, value in given.items() if value is not None or name not in shapes}
        for name in given:
            if name not in wanted:
                last = static.name.rpartition(".")[2]
                raise AotcError(
                    "dynamic-shape", f"{last}: `{name}` cannot be combined with a shape that is an expression"
                )
        numbers = [k for k in shapes if k in given and not isinstance(given[k], _NODES)]
        result = dynamic(**given | {k: Constant(np.asarray(given[k], shapes[k])) for k in numbers})
        assert dynamic.static is not None
        known = dynamic.static(result.attrs, result.args)
        return known if isinstance(known, Call) else result

    accepted = [
        p.replace(annotation=f"Expr | {p.annotation}") if p.name in shapes else p for p in signature.parameters.values()
    ]
    return function_of(static, build, signature.replace(parameters=accepted))


def _function(op: OpDef) -> Callable[..., Any]:
    dynamic = REGISTRY.get(f"dyn.{op.name}")
    return function_of(op) if dynamic is None else _either(op, dynamic)


def _with_default(name: str, op: OpDef, **defaults: Any) -> Callable[..., Call]:
    """A function called `name` for an operator, with other defaults."""
    given = signature_of(op).parameters.values()
    changed = [p.replace(default=defaults.get(p.name, p.default)) for p in given]
    signature = Signature(changed, return_annotation="Call")

    def build(*args: Any, **kwargs: Any) -> Call:
        return op(**defaults | signature.bind(*args, **kwargs).arguments)

    function = function_of(op, build, signature)
    function.__name__ = function.__qualname__ = name
    return function


#: The functions by the operator's name ("add", "nn.conv2d"), and those that are made of several operators.
FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: _function(op) for name, op in REGISTRY.items()}
    | {
        "nn.dropout": normalization.dropout,
        "nn.contrib_conv2d_nchwc": _with_default("contrib_conv2d_nchwc", conv.conv2d, data_layout="NCHW8c"),
        "std": reduce.std,
        "mean_std": reduce.mean_std,
        "segment_sum": unique_and_segments.segment_sum,
        "mean_variance": reduce.mean_variance,
        "logsumexp": reduce.logsumexp,
    }
)


def of_prefix(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module "...nn", which has the functions of the operators called nn.NAME."""
    prefix = module.rpartition(".")[2] + "."
    found = {name.removeprefix(prefix): f for name, f in FUNCTIONS.items() if name.startswith(prefix)}

    def fetch(name: str) -> Any:
        if name == "__all__":
            return sorted(found)
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return found[name]

    return fetch, lambda: sorted(found)
