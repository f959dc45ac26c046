# SPDX-License-Identifier: Apache-2.0
"""Values that the converters of PyTorch operators work with: tensors are expressions, everything
else is a Python value.

Input: the schema of an operator and the values of its arguments. Output: expressions. Data types
follow PyTorch's type promotion, in which tensors with dimensions take precedence over tensors of
rank 0, and these over Python numbers.

    a, b = cast_operands_to_promoted_dtype(x, 1.5)     # an int64 tensor and a number: both float32
    call_converter(converter, schema, [x, 1], {})
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from aotc.ir import AotcError, Array, Dim, DType, SymDim, frozen, option_text
from aotc.relay.expr import Call, Constant, Expr, Function, If, Let, TupleGetItem, Var
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, converter_parameters
from aotc.relay.frontend.pytorch.inplace_and_out_forms import is_written_argument

#: Value of an argument or result: an expression, a Python number, string, dtype or None, or a list
#: or tuple of values.
TorchValue: TypeAlias = Any
#: A converter function: it takes arguments by the names in PyTorch's schema (`self` and `input` are
#: called x) and returns the result, or a list of results.
Converter: TypeAlias = Callable[..., TorchValue]
Table: TypeAlias = "dict[str, Converter]"

_TENSOR_EXPR_CLASSES: Final = (Var, Constant, Call, TupleGetItem, If, Let, Function)

#: Arguments that are ignored because they do not affect the values of the result: device and
#: layout, training, hints for the algorithm.
IGNORED_ARGUMENTS: Final = {
    "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit", "requires_grad",
    "benchmark", "deterministic", "cudnn_enabled", "cudnn_enable", "allow_tf32", "generator", "sparse",
    "scale_grad_by_freq", "padding_idx", "stable", "momentum", "half_to_float", "sorted", "sparse_grad", "check_errors",
}  # fmt: skip

#: Python functions that exported programs call on dimensions and numbers.
PYTHON_NUMBER_FUNCTIONS: Final[tuple[Callable[..., Any], ...]] = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_,
    math.ceil, math.floor, math.trunc, round, torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min,
    torch.sym_not, torch.sym_ite,
)  # fmt: skip

#: Names of data types by TorchScript's number for them.
_DTYPE_NAMES_BY_NUMBER: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)


@frozen
class UncomputedValue:
    """Placeholder for a result of a PyTorch operator that is not computed; reading it raises
    AotcError with the reason `why`.
    """

    why: str


def is_tensor(value: TorchValue) -> bool:
    """Return True if a value of a PyTorch program is a tensor, which is represented by an
    expression.
    """
    return isinstance(value, _TENSOR_EXPR_CLASSES)


def dtype_name_of_torch_dtype(value: TorchValue) -> str | None:
    """Return the name of a data type that is given as torch.dtype or as TorchScript's number; None
    for None. Raises AotcError (code "torch-dtype") for complex and quantized types.
    """
    if value is None:
        return None
    if isinstance(value, int):
        name = _DTYPE_NAMES_BY_NUMBER[value] if 0 <= value < len(_DTYPE_NAMES_BY_NUMBER) else f"number {value}"
    else:
        name = str(value).removeprefix("torch.")
    if name.startswith(("complex", "q", "number")):
        raise AotcError("torch-dtype", f"data type {name} is not supported")
    return str(DType(name))


def torch_tensor_to_array(tensor: Any) -> Array:
    """Copy the value of a torch tensor to a numpy array. Raises AotcError for a tensor that is not
    dense, is quantized or is not on the CPU.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise AotcError("torch-tensor", "only dense tensors that are not quantized are supported")
    if tensor.device.type != "cpu":
        hint = "move the module with .cpu() first"
        raise AotcError("torch-device", f"a tensor is on {tensor.device}, not on the CPU", hint=hint)
    dtype = DType(dtype_name_of_torch_dtype(tensor.dtype) or "")
    plain = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(dtype.numpy)
    return np.array(plain.numpy(), dtype.numpy)


# --- promotion


def _meta_tensor_of_dtype_and_rank(x: Expr) -> torch.Tensor:
    """Return a PyTorch meta tensor, which takes no memory, with the data type and rank of `x` and
    extents of 1.
    """
    return torch.empty((1,) * g.rank(x), dtype=getattr(torch, g.dtype(x)), device="meta")


def torch_promoted_dtype_of_operands(*values: TorchValue) -> str:
    """Return the data type of the result of an operation on tensors and numbers by PyTorch's type
    promotion (torch.result_type, for any number of operands).
    """
    known = [
        _meta_tensor_of_dtype_and_rank(v) if is_tensor(v) else v
        for v in values
        if is_tensor(v) or isinstance(v, (int, float))
    ]
    _, dtype = elementwise_dtypes(*known, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    return str(dtype).removeprefix("torch.")


def to_tensor_expr_of_dtype(value: TorchValue, dtype: str) -> Expr:
    """Convert a tensor or number to an expression of the given data type. Raises AotcError (code
    "torch-dynamic") for a dynamic dimension.
    """
    if isinstance(value, SymDim):
        raise dynamic_dim_error(value)
    return g.cast(value, dtype) if is_tensor(value) else g.constant(value, dtype)


def cast_operands_to_promoted_dtype(*values: TorchValue) -> list[Expr]:
    """Convert tensors and numbers to expressions of their common data type by PyTorch's type
    promotion.
    """
    dtype = torch_promoted_dtype_of_operands(*values)
    return [to_tensor_expr_of_dtype(v, dtype) for v in values]


def cast_integers_to_float32(x: Expr) -> Expr:
    """Return `x`, cast to float32 if it holds integers or bools."""
    return x if g.dtype(x).is_float else g.cast(x, "float32")


def dynamic_dim_error(dim: Dim) -> AotcError:
    """Return the AotcError for a dynamic dimension that is used where a number is needed."""
    values = dict.fromkeys(sorted(dim.symbols), 1) if isinstance(dim, SymDim) else {}
    hint = "pin it, for example: " + option_text("dims", values) if values else "make it static"
    text = dim.name if isinstance(dim, SymDim) and dim.name else str(dim)
    return AotcError("torch-dynamic", f"the value of the dynamic dimension {text} is needed", hint=hint)


def training_mode_error(subject: str) -> AotcError:
    """Return the AotcError for an operator in training mode."""
    hint = "call .eval() on the module before tracing or exporting it"
    return AotcError("torch-training", f"{subject} is in training mode", hint=hint)


def to_int_list(values: TorchValue) -> list[int]:
    """Convert a list of integers, or a single one, to a list of Python integers; constants of one
    element count as numbers.
    """
    items = values if isinstance(values, (list, tuple)) else [values]
    return [to_python_int(v) for v in items]


def to_python_number(value: TorchValue) -> Any:
    """Return a Python number, or the number in a constant of one element. Raises AotcError (code
    "torch-dynamic") for values that are known only at run time.
    """
    if isinstance(value, SymDim):
        raise dynamic_dim_error(value)
    if isinstance(value, Constant) and value.data.size == 1:
        return value.data.reshape(-1)[0].item()
    if is_tensor(value):
        text = "a value that is only known at run time is used as a number or in a shape"
        raise AotcError(
            "torch-dynamic", text, hint="to choose by a value known at run time, use torch.where(condition, a, b)"
        )
    return value


def to_python_int(value: TorchValue) -> int:
    """Convert a number, or a constant of one element, to a Python integer."""
    return int(to_python_number(value))


def reshape_target_with_dynamic_as_minus_one(values: Sequence[TorchValue]) -> list[int]:
    """Return the target shape of a reshape: one dynamic dimension is replaced by -1. Raises
    AotcError (code "torch-dynamic") if more than one extent is unknown.
    """
    unknown = [v for v in values if isinstance(v, SymDim)]
    if len(unknown) > 1 or (unknown and any(v == -1 for v in values)):
        raise dynamic_dim_error(unknown[0])
    return [-1 if isinstance(v, SymDim) else to_python_int(v) for v in values]


def normalize_axis_for_rank(axis: int, rank: int) -> int:
    """Convert a possibly negative axis of a tensor of `rank` dimensions to one counted from 0; a
    tensor of rank 0 has the axis 0. Raises AotcError (code "torch-axis") if it is out of range.
    """
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise AotcError("torch-axis", f"dimension {axis} does not exist in a tensor of {rank} dimensions")
    return axis % max(rank, 1)


def normalize_axis(axis: int, x: Expr) -> int:
    """Convert a possibly negative axis of the tensor `x` to one counted from 0. Raises AotcError
    (code "torch-axis") if it is out of range.
    """
    return normalize_axis_for_rank(axis, g.rank(x))


def normalize_distinct_axes(dims: TorchValue, rank: int) -> list[int]:
    """Convert axes of a tensor of `rank` dimensions to ones counted from 0, in the given order.
    Raises AotcError (code "torch-axis") if one is out of range or occurs twice.
    """
    given = to_int_list(dims)
    axes = [normalize_axis_for_rank(a, rank) for a in given]
    if len(set(axes)) != len(axes):
        raise AotcError(
            "torch-axis", f"the list of dimensions {given} of a tensor of rank {rank} names a dimension twice"
        )
    return axes


def static_dim(x: Expr, axis: int) -> int:
    """Return the static extent of one dimension. Raises AotcError (code "torch-dynamic") if it is
    dynamic.
    """
    dim = g.dims(x)[axis]
    if not isinstance(dim, int):
        raise dynamic_dim_error(dim)
    return dim


def static_dims(x: Expr) -> tuple[int, ...]:
    """Return the static shape of a tensor. Raises AotcError (code "torch-dynamic") if a dimension
    is dynamic.
    """
    return tuple(static_dim(x, k) for k in range(g.rank(x)))


# --- calls


def call_converter(
    converter: Converter, schema: Any, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]
) -> TorchValue:
    """Call a converter with the arguments of a PyTorch operator call and return its result;
    arguments are matched to parameters by the names in PyTorch's schema.

    Positional-only parameters receive the first arguments, whatever their names. A parameter
    annotated `Axis` receives an axis of x counted from 0; `**rest` receives all arguments without a
    parameter. Raises AotcError (code "torch-argument") for an argument that the converter does not
    take and that differs from its default.
    """
    params = {p.name: p for p in converter_parameters(converter)}
    first = [name for name, p in params.items() if p.kind is p.POSITIONAL_ONLY]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in params.values())
    given = {**dict(zip((formal.name for formal in schema.arguments), args, strict=False)), **kwargs}
    bound: dict[str, TorchValue] = {}
    for position, formal in enumerate(schema.arguments):
        if formal.kwarg_only and is_written_argument(formal):
            continue
        value = given.get(formal.name, formal.default_value)
        name = "x" if formal.name in ("self", "input") else formal.name
        name = first[position] if position < len(first) else name
        if name in params and params[name].annotation == Axis:
            bound[name] = normalize_axis(value, bound["x"])
        elif name in params or (open_ended and name not in IGNORED_ARGUMENTS):
            bound[name] = dtype_name_of_torch_dtype(value) if name == "dtype" else value
        elif name not in IGNORED_ARGUMENTS and value is not None and value != formal.default_value:
            raise AotcError("torch-argument", f"the argument {formal.name}={value!r} is not supported")
    in_order = [bound.pop(name) for name in first if name in bound]
    return converter(*in_order, **bound)


def converter_table_by_function_name(*converters: Converter) -> Table:
    """Return a table of PyTorch converters by operator names, which are the names of the functions
    without a leading underscore.
    """
    return {converter.__name__.removeprefix("_"): converter for converter in converters}


def append_uncomputed_results(converter: Converter, subject: str, count: int = 1) -> Converter:
    """Return a converter that appends `count` results that are not computed to the result of
    `converter`; `subject` names them in the error for reading one, and is the converter's attribute
    `uncomputed_subject`.
    """

    @wraps(converter)
    def convert_and_append_uncomputed(*args: TorchValue, **kwargs: TorchValue) -> list[TorchValue]:
        return [converter(*args, **kwargs), *[UncomputedValue(subject)] * count]

    convert_and_append_uncomputed.uncomputed_subject = subject  # type: ignore[attr-defined]
    return convert_and_append_uncomputed
