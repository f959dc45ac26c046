# SPDX-License-Identifier: Apache-2.0
"""Convert single PyTorch operators: shared by the front ends for TorchScript graphs and exported
programs.

Input: an operator and the values of its arguments. Output: the value of the call, or an AotcError
that names the operator and its arguments.

    with problems.collect_errors_at(span):
        value = convert_operator_call("add", schema, [x, 1], {})
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from aotc.ir import UnboundedDimError
from aotc.ir.diagnostics import AotcError, did_you_mean_hint
from aotc.relay.expr import Expr, Tuple, type_of
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import MALFORMED_NODE_EXCEPTIONS, PoisonedError
from aotc.relay.frontend.pytorch.converter_table import CONVERTERS, converter_of, plain_operator_name
from aotc.relay.frontend.pytorch.inplace_and_out_forms import inplace_out_or_functional_form
from aotc.relay.frontend.pytorch.ops_complex import (
    COMPLEX_CREATION,
    COMPLEX_OPS,
    ComplexTensor,
    apply_to_parts,
    asks_for_real_dtype,
    create_complex_tensor,
    has_complex_value,
    is_componentwise_call,
    part_dtype_or_value,
)
from aotc.relay.frontend.pytorch.ops_create import SCALAR_FUNCTIONS
from aotc.relay.frontend.pytorch.refused_operators import reason_for_refusal
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import (
    TorchValue,
    UncomputedValue,
    call_converter,
    is_tensor,
)

_LOG: Final = logging.getLogger(__name__)
#: A converter that the caller provides: it takes the values of the arguments and their TorchScript
#: types.
CustomConverter: TypeAlias = Callable[[list[TorchValue], list[str]], TorchValue]

_MAX_SHOWN_ELEMENTS: Final = 8
#: Largest number of elements of a list (`_MAX_SHOWN_ELEMENTS`) and of characters of a number or text
#: (`_MAX_SHOWN_CHARACTERS`) in a message.
_MAX_SHOWN_CHARACTERS: Final = 80

#: The value of a node that could not be converted; nodes that depend on it are skipped without
#: another report.
FAILED_NODE_VALUE: Final = UncomputedValue("")


def require_converted_value(value: TorchValue) -> TorchValue:
    """Return a value that may be read. Raises PoisonedError for the result of a failed node,
    AotcError (code "torch-op") for a result that is not supported.
    """
    if value is FAILED_NODE_VALUE:
        raise PoisonedError
    if isinstance(value, UncomputedValue):
        raise AotcError("torch-op", f"{value.why} are not supported")
    return value


def stack_trace_source_line(metadata: Any) -> str:
    """Return the last line of Python source in the stack trace of a node of an exported program, or
    "" if there is none.
    """
    trace = metadata.get("stack_trace") if isinstance(metadata, dict) else None
    lines = [line.strip() for line in trace.splitlines() if "File" in line] if isinstance(trace, str) else []
    return f"in {lines[-1]}" if lines else ""


def unsupported_operator_error(name: str) -> AotcError:
    """Return the AotcError for a PyTorch operator without a converter; it states the reason if the
    operator is refused by name.
    """
    plain = name.removeprefix("aten::").partition(".")[0]
    refusal = reason_for_refusal(plain)
    if refusal is not None:
        return AotcError(refusal.code, f"operator {name} is not supported: it {refusal.reason}", hint=refusal.hint)
    hint = (
        did_you_mean_hint(plain, CONVERTERS)
        or "rewrite the module with supported operators, or give custom_convert_map"
    )
    return AotcError("torch-op", f"operator {name} is not supported", hint=hint)


def convert_operator_call(schema: Any, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]) -> TorchValue:
    """Convert a call of a PyTorch operator and return its value. Raises AotcError if the operator
    is unknown or does not support its arguments.

    In-place and `out=` forms return the result of the functional operator, cast to the data types
    of the tensors that they write to.
    """
    form = inplace_out_or_functional_form(schema)
    written = [args[k] for k in form.written if k < len(args)]
    result = _convert_functional_call(
        form.functional, form.arguments_without_out_arguments(args), kwargs, qualified_operator_name(schema)
    )
    if not written:
        return result
    several = isinstance(result, (list, tuple)) and len(written) > 1
    values = [
        g.cast(value, str(g.dtype(target))) if is_tensor(value) and is_tensor(target) else value
        for value, target in zip(result if several else [result], written, strict=False)
    ]
    return values if several else values[0]


def qualified_operator_name(schema: Any) -> str:
    """Return the name of a PyTorch operator with its overload, such as aten::add.Tensor."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _convert_functional_call(
    schema: Any, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue], display_name: str
) -> TorchValue:
    """Convert a call of a functional PyTorch operator; `display_name` is its name in messages.

    TorchScript has operators on numbers and lists whose names equal names of tensor operators;
    these are evaluated at once.
    """
    name = schema.name.removeprefix("aten::")
    first: TorchValue = args[0] if args else None
    on_numbers = name in SCALAR_FUNCTIONS and (isinstance(first, (list, tuple)) or not any(map(is_tensor, args)))
    converter = None if on_numbers else converter_of(name, schema.overload_name)
    try:
        is_complex_only = (
            converter is None and not on_numbers and plain_operator_name(name, schema.overload_name) in COMPLEX_OPS
        )
        if has_complex_value(args, kwargs) or is_complex_only:
            return _convert_complex_call(schema, args, kwargs, display_name)
        if converter is not None:
            return call_converter(converter, schema, args, kwargs)
        if name not in SCALAR_FUNCTIONS or is_tensor(first):
            raise unsupported_operator_error(display_name)
        return SCALAR_FUNCTIONS[name](*args, **kwargs)
    except UnboundedDimError:  # becomes a problem that names the option for ranges
        raise
    except MALFORMED_NODE_EXCEPTIONS as error:
        _LOG.debug("conversion of %s failed", display_name, exc_info=True)
        given = [describe_argument(a) for a in args] + [f"{name}={describe_argument(a)}" for name, a in kwargs.items()]
        raise AotcError("torch-node", f"{display_name} does not take these arguments: ({', '.join(given)})") from error


def _convert_complex_call(
    schema: Any, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue], display_name: str
) -> TorchValue:
    """Convert a call of a PyTorch operator that takes or returns complex tensors, or creates one."""
    name = schema.name.removeprefix("aten::")
    plain = plain_operator_name(name, schema.overload_name)
    converter = converter_of(name, schema.overload_name)
    if f"{plain}.{schema.overload_name}" in COMPLEX_OPS:
        return COMPLEX_OPS[f"{plain}.{schema.overload_name}"](*args, **kwargs)
    if converter is not None and is_componentwise_call(plain, args, kwargs):
        return apply_to_parts(partial(call_converter, converter, schema), args, kwargs)
    if plain in COMPLEX_OPS:
        numbers = [part_dtype_or_value(a) for a in args], {k: part_dtype_or_value(a) for k, a in kwargs.items()}
        result = call_converter(COMPLEX_OPS[plain], schema, *numbers)
        # a cast to a real data type discards the imaginary part
        is_cast_to_real = plain in ("to", "to_copy") and asks_for_real_dtype(args, kwargs)
        return result.real if is_cast_to_real and isinstance(result, ComplexTensor) else result
    if converter is not None and plain.removeprefix("new_").removesuffix("_like") in COMPLEX_CREATION:
        return create_complex_tensor(partial(call_converter, converter, schema), args, kwargs)
    hint = "compute with torch.view_as_real(x), whose last axis has the real and the imaginary part"
    raise AotcError("torch-op", f"operator {display_name} of complex tensors is not supported", hint=hint)


def call_custom_converter(custom: CustomConverter, name: str, args: list[TorchValue], types: list[str]) -> TorchValue:
    """Call a converter that the caller provides; an exception in it is raised as AotcError (code
    "torch-node").
    """
    try:
        return custom(args, types)
    except MALFORMED_NODE_EXCEPTIONS as error:
        text = f"the converter given for {name} raises {type(error).__name__}: {error}"
        raise AotcError("torch-node", text) from error


def describe_argument(value: TorchValue) -> str:
    """Return the text for an argument in a message: the type of a tensor, a number or text itself,
    the first elements of a list.
    """
    if is_tensor(value):
        return str(type_of(value))
    match value:
        case list() | tuple():
            suffix = ", ..." if len(value) > _MAX_SHOWN_ELEMENTS else ""
            return f"[{', '.join(describe_argument(v) for v in value[:_MAX_SHOWN_ELEMENTS])}{suffix}]"
        case None | bool() | int() | float() | str() | torch.dtype():
            return repr(value)[:_MAX_SHOWN_CHARACTERS]
    return "a value that is no tensor, number or list"


def flatten_output_tensors(value: TorchValue) -> list[Expr]:
    """Return the tensors in nested lists, tuples and dictionaries, in order. Raises AotcError (code
    "torch-output") for any other value.
    """
    if is_tensor(value) or isinstance(value, Tuple):
        return [value]
    if isinstance(value, ComplexTensor):
        hint = "return torch.view_as_real(x), whose last axis has the real and the imaginary part"
        raise AotcError("torch-output", "the model returns a complex tensor; only real ones can be outputs", hint=hint)
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, (list, tuple)):
        return [leaf for item in items for leaf in flatten_output_tensors(item)]
    raise AotcError("torch-output", f"the model returns {value!r}; only tensors can be outputs")
