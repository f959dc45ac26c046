# SPDX-License-Identifier: Apache-2.0
"""Definition of an operator as one record: the graph's `Op` plus its implementation as a tensor
program.

relu = OpDef(name="nn.relu", doc="max(data, 0)", infer=infer_same_type, reference=lambda _, x: np.maximum(x, 0),
             pattern=OpPattern.ELEMWISE, axes=pointwise, compute=..., samples=...)
relu(x)                                # Call(relu, [x]), with the type of x
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from aotc import tir
from aotc.ir import (
    NO_ATTRS,
    Attrs,
    Axes,
    AxisMap,
    Infer,
    Op,
    TensorType,
    Type,
    Types,
    frozen,
    nest_values_like_type,
    tensor_types,
)
from aotc.relay.expr import Call, Expr
from aotc.relay.op.builder_signature import build_operator_call
from aotc.tir import (
    Tensor,
    estimated_operations_per_element,
    output_and_reduction_axes,
    te,
    tensors_in_topological_order,
)

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Scalar expression of a tensor program, in contrast to the graph's `Expr`.
Scalar: TypeAlias = tir.Expr
#: Position of an element: one scalar expression for each axis.
Index: TypeAlias = "tuple[Scalar, ...]"
#: Argument of a `compute` function: a tensor, or a tuple of tensors for a tuple argument.
TeArg: TypeAlias = "Tensor | tuple[Tensor, ...]"


class Accuracy(Enum):
    """Tolerance within which two executions of a sample must agree."""

    EXACT = "exact"  # bit for bit: data movement, integers, comparisons
    ROUNDING = "rounding"  # a few units in the last place: sums in another order, another libm
    LOOSE = "loose"  # long sums and narrow floats: 1e-3 relative to the largest value


@frozen(kw_only=True, eq=False)
class Sample:
    """Arguments on which the numpy reference, both interpreters and the compiled code must agree.

    A tuple in `args` is a tuple argument. `known` lists the positions of arguments that are
    constants in the graph.
    """

    args: tuple[Array | tuple[Array, ...], ...]
    attrs: Attrs = NO_ATTRS
    accuracy: Accuracy = Accuracy.ROUNDING
    known: tuple[int, ...] = ()


Samples: TypeAlias = "Iterator[Sample]"


@frozen(kw_only=True, eq=False)
class OpDef(Op):
    """An operator with its type rule, reference implementation, lowering and test samples.

    element   (attrs, index, *arguments as te tensors) -> the result's element at `index`; `compute` is
              derived from it
    compute   (attrs, *arguments as te tensors) -> tensor, or a tuple of tensors for a tuple result
    expand    (attrs, *argument expressions) -> an expression of other operators
    unblocked (attrs, *argument expressions) -> the call with unblocked layouts (NCHW, not NCHW8c), None if its
              layouts are unblocked already; for operators whose program supports only unblocked layouts
    axes      trailing rows of the axis map may be omitted: the arguments are then not iterated along any axis
    static    (attrs, argument expressions) -> a call of the operator that takes as attributes what are arguments
              here, None if they are not constants: for results whose shape depends on values.  Exactly one of
              element, compute, expand and static is given, or `compute` for GPUs and `expand` for CPUs
    samples   () -> samples, from which tests are generated
    view      True if the result is the first argument's memory in row-major order (reshape etc.)

    The operator's documentation is `doc`, or the docstring of the attribute class if `doc` is
    empty. The reference runs with numpy's warnings disabled: NaN, infinities and integer overflow
    are valid.
    """

    element: Callable[..., Scalar] | None = None
    compute: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    expand: Callable[..., Expr] | None = None
    unblocked: Callable[..., Expr | None] | None = None
    static: Callable[[Any, Sequence[Expr]], Expr | None] | None = None
    samples: Callable[[], Iterable[Sample]]
    view: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "doc", self.doc or inspect.cleandoc(self.attrs.__doc__ or ""))
        object.__setattr__(self, "reference", np.errstate(all="ignore")(self.reference))
        if self.axes not in (None, elementwise_axis_map):
            object.__setattr__(self, "axes", add_axis_map_rows_of_omitted_arguments(self.axes))
        if self.element is not None:
            object.__setattr__(self, "compute", compute_from_element_function(self.name, self.infer, self.element))

    def __call__(self, *args: Any, **attributes: Any) -> Call:
        """Build a call of the operator from arguments and attributes
        (`aotc.relay.op.builder_signature`).
        """
        return build_operator_call(self, args, attributes)

    def reference_operation_count(self, attributes: Attrs, argument_types: Types, result_type: Type) -> int:
        """Return the number of scalar operations of the tensor program: the sum over all its
        tensors.
        """
        # not super(): the dataclass with slots is another class than the one super() refers to
        least = Op.reference_operation_count(self, attributes, argument_types, result_type)
        reads = sum(t.numel for ty in argument_types for t in tensor_types(ty))
        most = reads * sum(t.numel for t in tensor_types(result_type))
        # padding counts as elements, too
        if most <= MAX_OPERATIONS_FOR_BOUND and self.scratch is None:
            return most
        if self.compute is None:
            return most if self.expand is not None else least
        outputs = self.compute(attributes, *map(_placeholder_tensors, argument_types))
        order = tensors_in_topological_order(outputs if isinstance(outputs, tuple) else (outputs,))
        return least + sum(map(_scalar_operation_count_of_tensor, order))


def elementwise_axis_map(_: Any, types: Types) -> AxisMap:
    """Return the axis map (from result axes to argument axes) of an elementwise operator with
    broadcasting.

    An axis of extent 1 in an argument is not mapped.
    """
    tensors = [t for ty in types for t in tensor_types(ty)]
    rank = max(t.rank for t in tensors)
    rows = []
    for t in tensors:
        skip = rank - t.rank
        rows.append(tuple(None if k < skip or t.shape[k - skip] == 1 else k - skip for k in range(rank)))
    return AxisMap(tuple(rows))


def add_axis_map_rows_of_omitted_arguments(axis_map_function: Axes) -> Axes:
    """Return a function that extends the axis maps of `axis_map_function` by a row without mapped
    axes for each omitted argument.
    """

    def axis_map_with_row_per_argument(attrs: Any, types: Types) -> AxisMap | None:
        axis_map = axis_map_function(attrs, types)
        rows = () if axis_map is None else axis_map.inputs
        missing = (None,) * len(rows[0]) if rows else ()
        return axis_map and AxisMap((*rows, *[missing] * len(types))[: len(types)])

    return axis_map_with_row_per_argument


def tensor_types_of_values(values: Iterable[Any]) -> list[TensorType]:
    """Return the tensor types of numpy arrays or of tensors of tensor expressions."""
    return [TensorType(x.shape, str(x.dtype)) for x in values]


def compute_from_element_function(name: str, infer: Infer, element: Callable[..., Scalar]) -> Callable[..., Tensor]:
    """Return a `compute` function for a result whose elements are
    `element(attributes, index, *arguments)`.
    """

    def compute_every_element(attributes: Any, *args: Tensor) -> Tensor:
        result = infer(attributes, tensor_types_of_values(args))
        assert isinstance(result, TensorType)
        return te.compute(result.shape, lambda *i: element(attributes, i, *args), name.rpartition(".")[2])

    return compute_every_element


def reference_from_element_function(infer: Infer, element: Callable[..., Any]) -> Callable[..., Array]:
    """Return a numpy reference that evaluates `element` on arrays, with all indices of the result
    at once.
    """

    def evaluate_element_on_arrays(attributes: Any, *args: Array) -> Array:
        result = infer(attributes, tensor_types_of_values(args))
        assert isinstance(result, TensorType)
        if not result.numel:
            return np.zeros(result.static_shape, result.dtype.numpy)
        values = element(attributes, tuple(np.indices(result.static_shape, sparse=True)), *args)
        return np.broadcast_to(values, result.static_shape).astype(result.dtype.numpy)

    return evaluate_element_on_arrays


#: Number of operations up to which an upper bound replaces the exact count.
MAX_OPERATIONS_FOR_BOUND: Final = 1 << 16
#: Estimated operations per element of a hand-written program (sort, scatter, filter) without its
#: own count.
_EXTERN_OPERATIONS_PER_ELEMENT: Final = 32


def _placeholder_tensors(ty: Type) -> TeArg:
    return nest_values_like_type(ty, (te.placeholder(t.static_shape, t.dtype, "p") for t in tensor_types(ty)))


def _scalar_operation_count_of_tensor(tensor: Tensor) -> int:
    match tensor:
        case te.Contraction() | te.Winograd():
            return tensor.macs
        case te.Extern():
            return tensor.group.macs + _EXTERN_OPERATIONS_PER_ELEMENT * tensor.size
        case te.Compute() | te.Reduce():
            return math.prod(extent for _, extent in output_and_reduction_axes(tensor)) * max(
                estimated_operations_per_element(tensor), 1
            )
        case _:
            return 0
