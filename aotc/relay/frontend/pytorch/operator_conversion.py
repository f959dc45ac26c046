# SPDX-License-Identifier: Apache-2.0
"""What the walks over TorchScript graphs and exported programs
share: one operator at a time, problems collected.

In: operators with the values of their arguments.  Out: values, or a
list of problems, each with its place.

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
#: A caller's own converter: the values of the arguments and their TorchScript types.
CustomConverter: TypeAlias = Callable[[list[Value], list[str]], Value]

_SHOWN: Final = 8
#: How many elements of a list, and characters of a number or text, a message shows.
_LONGEST: Final = 80

#: The value of what could not be converted: what depends on it is passed over without another report.
POISON: Final = Absent("")


def known(value: Value) -> Value:
    """A value that may be read; AotcError or PoisonedError for one
    that is not there.
    """
    if value is POISON:
        raise PoisonedError
    if isinstance(value, Absent):
        raise AotcError("torch-op", f"{value.why} are not supported")
    return value


def source_line(metadata: Any) -> str:
    """The last line of the module's Python source that made a node of an exported program, "" where none is stated."""
    trace = metadata.get("stack_trace") if isinstance(metadata, dict) else None
    lines = [line.strip() for line in trace.splitlines() if "File" in line] if isinstance(trace, str) else []
    return f"in {lines[-1]}" if lines else ""


def unsupported(name: str) -> AotcError:
    """The error of an operator without a converter."""
    plain = name.removeprefix("aten::").partition(".")[0]
    hint = nearest(plain, CONVERTERS) or "rewrite the module with supported operators, or give custom_convert_map"
    return AotcError("torch-op", f"operator {name} is not supported", hint=hint)


def call_operator(schema: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """The value of a call of a PyTorch operator; AotcError if it is
    unknown or refuses its arguments.

    The in-place and `out=` forms of an operator give what the
    functional one does, in the data types of the tensors that they
    write to.
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
    """The name of an operator with its overload."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _call_functional(schema: Any, args: Sequence[Value], kwargs: Mapping[str, Value], full: str) -> Value:
    """The value of an operator that writes to nothing; `full` is what messages call it.

    TorchScript has operators on numbers and lists that share their
    names with those on tensors.
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
    """The value that a caller's own converter gives; AotcError with
    what that converter raises.
    """
    try:
        return custom(args, types)
    except INVALID as error:
        text = f"the converter given for {name} raises {type(error).__name__}: {error}"
        raise AotcError("torch-node", text) from error


def described(value: Value) -> str:
    """An argument in a message: the type of a tensor, a number or
    text itself, a list by its first elements.
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
    """The tensors of nested lists and tuples; AotcError for
    anything else that a model returns.
    """
    if is_tensor(value) or isinstance(value, Tuple):
        return [value]
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, (list, tuple)):
        return [leaf for item in items for leaf in flattened(item)]
    raise AotcError("torch-output", f"the model returns {value!r}; only tensors can be outputs")
