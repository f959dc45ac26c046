# SPDX-License-Identifier: Apache-2.0
"""Convert single PyTorch operators: shared by the front ends for TorchScript graphs and exported
programs.

Input: an operator and the values of its arguments. Output: the value of the call, or an AotcError
that names the operator and its arguments.

    with problems.at(span):
        value = call_operator("add", schema, [x, 1], {})
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch

from aotc.ir.diagnostics import AotcError, nearest
from aotc.relay.expr import Expr, Tuple, type_of
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import INVALID, PoisonedError
from aotc.relay.frontend.pytorch.converter_table import CONVERTERS, converter_of
from aotc.relay.frontend.pytorch.converter_values import Absent, Value, apply, is_tensor
from aotc.relay.frontend.pytorch.inplace_and_out_forms import form_of
from aotc.relay.frontend.pytorch.ops_create import SCALARS

_LOG: Final = logging.getLogger(__name__)
#: A converter that the caller provides: it takes the values of the arguments and their TorchScript
#: types.
CustomConverter: TypeAlias = Callable[[list[Value], list[str]], Value]

_SHOWN: Final = 8
#: Largest number of elements of a list (`_SHOWN`) and of characters of a number or text
#: (`_LONGEST`) in a message.
_LONGEST: Final = 80

#: The value of a node that could not be converted; nodes that depend on it are skipped without
#: another report.
POISON: Final = Absent("")


def known(value: Value) -> Value:
    """Return a value that may be read. Raises PoisonedError for the result of a failed node,
    AotcError (code "torch-op") for a result that is not supported.
    """
    if value is POISON:
        raise PoisonedError
    if isinstance(value, Absent):
        raise AotcError("torch-op", f"{value.why} are not supported")
    return value


def source_line(metadata: Any) -> str:
    """Return the last line of Python source in the stack trace of a node of an exported program, or
    "" if there is none.
    """
    trace = metadata.get("stack_trace") if isinstance(metadata, dict) else None
    lines = [line.strip() for line in trace.splitlines() if "File" in line] if isinstance(trace, str) else []
    return f"in {lines[-1]}" if lines else ""


def unsupported(name: str) -> AotcError:
    """Return the AotcError for a PyTorch operator without a converter."""
    plain = name.removeprefix("aten::").partition(".")[0]
    hint = nearest(plain, CONVERTERS) or "rewrite the module with supported operators, or give custom_convert_map"
    return AotcError("torch-op", f"operator {name} is not supported", hint=hint)


def call_operator(schema: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """Convert a call of a PyTorch operator and return its value. Raises AotcError if the operator
    is unknown or does not support its arguments.

    In-place and `out=` forms return the result of the functional operator, cast to the data types
    of the tensors that they write to.
    """
    form = form_of(schema)
    written = [args[k] for k in form.written if k < len(args)]
    result = _call_functional(form.functional, form.arguments(args), kwargs, full_name(schema))
    if not written:
        return result
    several = isinstance(result, (list, tuple)) and len(written) > 1
    values = [
        g.cast(value, str(g.dtype(target))) if is_tensor(value) and is_tensor(target) else value
        for value, target in zip(result if several else [result], written, strict=False)
    ]
    return values if several else values[0]


def full_name(schema: Any) -> str:
    """Return the name of a PyTorch operator with its overload, such as aten::add.Tensor."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _call_functional(schema: Any, args: Sequence[Value], kwargs: Mapping[str, Value], full: str) -> Value:
    """Convert a call of a functional PyTorch operator; `full` is its name in messages.

    TorchScript has operators on numbers and lists whose names equal names of tensor operators;
    these are evaluated at once.
    """
    name = schema.name.removeprefix("aten::")
    first: Value = args[0] if args else None
    on_numbers = name in SCALARS and (isinstance(first, (list, tuple)) or not any(map(is_tensor, args)))
    converter = None if on_numbers else converter_of(name, schema.overload_name)
    try:
        if converter is not None:
            return apply(converter, schema, args, kwargs)
        if name not in SCALARS or is_tensor(first):
            raise unsupported(full)
        return SCALARS[name](*args, **kwargs)
    except INVALID as error:
        _LOG.debug("conversion of %s failed", full, exc_info=True)
        given = [described(a) for a in args] + [f"{name}={described(a)}" for name, a in kwargs.items()]
        raise AotcError("torch-node", f"{full} does not take these arguments: ({', '.join(given)})") from error


def call_custom(custom: CustomConverter, name: str, args: list[Value], types: list[str]) -> Value:
    """Call a converter that the caller provides; an exception in it is raised as AotcError (code
    "torch-node").
    """
    try:
        return custom(args, types)
    except INVALID as error:
        text = f"the converter given for {name} raises {type(error).__name__}: {error}"
        raise AotcError("torch-node", text) from error


def described(value: Value) -> str:
    """Return the text for an argument in a message: the type of a tensor, a number or text itself,
    the first elements of a list.
    """
    if is_tensor(value):
        return str(type_of(value))
    match value:
        case list() | tuple():
            more = ", ..." if len(value) > _SHOWN else ""
            return f"[{', '.join(described(v) for v in value[:_SHOWN])}{more}]"
        case None | bool() | int() | float() | str() | torch.dtype():
            return repr(value)[:_LONGEST]
    return "a value that is no tensor, number or list"


def flattened(value: Value) -> list[Expr]:
    """Return the tensors in nested lists, tuples and dictionaries, in order. Raises AotcError (code
    "torch-output") for any other value.
    """
    if is_tensor(value) or isinstance(value, Tuple):
        return [value]
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, (list, tuple)):
        return [leaf for item in items for leaf in flattened(item)]
    raise AotcError("torch-output", f"the model returns {value!r}; only tensors can be outputs")
