# SPDX-License-Identifier: Apache-2.0
"""Lowering of one fused function to one kernel, through each operator's `compute`.

Input: a primitive Function. Output: a Kernel whose inputs are the function's parameters (tuples
flattened).

    lower_fused_function(fused, "conv2d", target)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from aotc.ir import (
    AotcError,
    Attrs,
    Diagnostic,
    DType,
    Op,
    Shape,
    SymDim,
    TensorType,
    Type,
    are_bounded,
    flatten_nested_tuple,
    join_texts,
    nest_values_like_type,
    option_text,
    tensor_types,
)
from aotc.relay.graph_api import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    dims_in_attributes,
    node_kind,
    post_order,
    type_of,
)
from aotc.relay.op.opdef import OpDef
from aotc.tir import Kernel, Target, const, te
from aotc.tir.schedule import schedule

_STATIC_TYPE_HINT: Final = "; in a module of the graph IR, declare a static type"
Value: TypeAlias = "te.Tensor | tuple[Any, ...]"


def diagnose_dynamic_shapes(ty: Type, expr: Expr, description: str) -> list[Diagnostic]:
    """Return a diagnostic (code "dynamic-shape") for each tensor of a type whose shape is not
    static.
    """
    diagnostics = list[Diagnostic]()
    for tensor in tensor_types(ty):
        if not tensor.is_static:
            text = f"{description} has a shape that is not known at compile time: {tensor}"
            diagnostics.append(Diagnostic("dynamic-shape", text, expr.span, hint=_hint_on_static_shape(tensor, expr)))
    return diagnostics


def _hint_on_static_shape(tensor: TensorType, expr: Expr) -> str:
    """Return a hint with the options that fix a dynamic shape, of an input or another tensor."""
    symbols = dict.fromkeys((name for d in tensor.shape if isinstance(d, SymDim) for name in sorted(d.symbols)), 1)
    name = expr.name if isinstance(expr, Var) else "NAME"
    sizes = tuple(d if isinstance(d, int) else 1 for d in tensor.shape) if isinstance(expr, Var) else (1, 3, 224, 224)
    pinned = option_text("dims", symbols) + " or " if symbols else ""
    hint = "pin it when a model is imported, for example: " + pinned + option_text("input_shapes", {name: sizes})
    return hint + _STATIC_TYPE_HINT


def diagnose_dynamic_inputs(main: Function) -> list[Diagnostic]:
    """Return one diagnostic (code "dynamic-shape") if parameters of a function have shapes that are not
    static, and dimensions without a range, with the options that fix all of them; an empty list if there
    are none.
    """
    typed = [(p, t) for p in main.params if p.checked_type is not None for t in tensor_types(p.checked_type)]
    dynamic = [(p, t) for p, t in typed if not t.is_static]
    if not dynamic:
        return []
    dims = [d for _, t in dynamic for d in t.shape if isinstance(d, SymDim)]
    if are_bounded(dims):
        return []
    if len(dynamic) == 1:
        return diagnose_dynamic_shapes(dynamic[0][1], dynamic[0][0], f"input {dynamic[0][0].name!r}")
    text = "inputs have shapes that are not known at compile time: " + ", ".join(f"{p.name!r} {t}" for p, t in dynamic)
    symbols = dict.fromkeys((name for d in dims for name in sorted(d.symbols)), 1)
    unnamed = {
        p.name: tuple(d if isinstance(d, int) else 1 for d in t.shape)
        for p, t in dynamic
        if any(isinstance(d, SymDim) and not d.name for d in t.shape)
    }
    options = [option_text("dims", symbols)] if symbols else []
    options += [option_text("input_shapes", unnamed)] if unnamed else []
    hint = "pin them when a model is imported, for example: " + join_texts(" and ", options)
    return [Diagnostic("dynamic-shape", text, dynamic[0][0].span, hint=hint + _STATIC_TYPE_HINT)]


def has_static_types(function: Function) -> bool:
    """Return True if all tensors of a function have shapes that are known."""
    nodes = (*function.params, *(n for n in post_order(function.body) if not isinstance(n, (Op, Function))))
    return all(t.is_static for n in nodes for t in tensor_types(type_of(n))) and not dims_in_attributes(function)


def require_static_shapes(ty: Type, expr: Expr, description: str) -> None:
    """Raise AotcError (code "dynamic-shape") unless every tensor of a type has a static shape."""
    if diagnostics := diagnose_dynamic_shapes(ty, expr, description):
        raise AotcError.collect(diagnostics)


_INTERPRETER_ONLY_KINDS: Final = frozenset({"constructor", "match", "ref_create", "ref_read", "ref_write"})


def reject_interpreter_only_node(node: Expr) -> None:
    """Raise AotcError for nodes that only the interpreter supports: references, values of data
    types, matches.
    """
    refused = node.op if isinstance(node, Call) else node
    if node_kind(refused).name in _INTERPRETER_ONLY_KINDS:
        text = f"a {type(refused).__name__} cannot be compiled"
        raise AotcError("control-flow", text, span=node.span, hint='the executor "debug" computes it')


def _splat_as_tensor_expression(node: Constant) -> te.Tensor:
    """Return a constant inside a fused function, one repeated value, as a tensor expression.

    Raise AotcError for a constant of several values, which must be a parameter instead.
    """
    if node.data.size > 1 and not node.is_splat:
        text = f"a constant of shape {node.data.shape} inside a kernel: kernels take constants as parameters"
        hint = "leave relay.FuseOps.link_params off; the constants are part of the library in any case"
        raise AotcError("constant-in-kernel", text, span=node.span, hint=hint)
    value = node.data.reshape(-1)[0].item() if node.data.size else 0
    dtype = DType.from_numpy(node.data)
    return te.compute(node.data.shape, lambda *_: const(value, dtype), "const")


def call_as_tensor_expression(node: Call, args: Sequence[Value], attrs: Attrs | None = None) -> Value:
    """Return the result of an operator call on tensor expressions; AotcError (code "no-compute") if the
    operator has no definition by tensor expressions.

    attrs    attributes in place of those of the call
    """
    op = node.op
    if not isinstance(op, OpDef) or op.compute is None:
        name = op.name if isinstance(op, Op) else type(op).__name__
        dynamic = isinstance(op, OpDef) and op.static is not None
        hint = "DynamicToStatic turns it into one that can where its shape is constant" if dynamic else ""
        raise AotcError("no-compute", f"operator {name} cannot be compiled to C", span=node.span, hint=hint)
    return op.compute(node.attrs if attrs is None else attrs, *args)


def lower_fused_function(function: Function, kernel_name: str, target: Target) -> Kernel:
    """Return the kernel of a fused function, whose attribute `Finite` lists parameters without
    infinities and NaN.

    Raise AotcError for a shape that is not static and for an operator without `compute`.
    """

    def static_shape(tensor: TensorType) -> Shape:
        return tensor.static_shape

    for param in function.params:
        require_static_shapes(type_of(param), param, f"{kernel_name}: an input")
    for node in post_order(function.body):
        if not isinstance(node, (Op, Var)):
            require_static_shapes(type_of(node), node, f"{kernel_name}: a result")
    inputs, outputs = function_as_tensor_expressions(function, static_shape, call_as_tensor_expression)
    return schedule(kernel_name, inputs, outputs, target, span=function.span)


def function_as_tensor_expressions(
    function: Function, shape_of: Callable[[TensorType], Shape], call_value: Callable[[Call, Sequence[Value]], Value]
) -> tuple[list[te.Placeholder], list[te.Tensor]]:
    """Return the inputs and outputs of a fused function as tensor expressions, tuples flattened.

    shape_of      returns the shape of the tensor for a parameter of this type
    call_value    returns the value of an operator call, given those of its arguments
    """
    values: dict[Expr, Value] = {}
    inputs: list[te.Placeholder] = []
    for k, param in enumerate(function.params):
        first, finite = len(inputs), k in function.attrs.get("Finite", ())
        for ty in tensor_types(type_of(param)):
            inputs.append(te.placeholder(shape_of(ty), ty.dtype, f"p{len(inputs)}", finite=finite))
        values[param] = nest_values_like_type(type_of(param), iter(inputs[first:]))
    for node in post_order(function.body):
        if node in values or isinstance(node, Op):
            continue
        match node:
            case Constant():
                values[node] = _splat_as_tensor_expression(node)
            case Call():
                values[node] = call_value(node, [values[a] for a in node.args])
            case Tuple():
                values[node] = tuple(values[f] for f in node.fields)
            case TupleGetItem():
                whole = values[node.tuple_value]
                assert isinstance(whole, tuple)
                values[node] = whole[node.index]
            case Var():
                raise AssertionError(f"free variable {node.name} in a fused function")
            case _:
                raise AotcError("fused-control-flow", f"{type(node).__name__} inside a fused function", span=node.span)
    return inputs, flatten_nested_tuple(values[function.body])


def kernel_name_from_anchor_operator(function: Function) -> str:
    """Return a descriptive name for a fused function's kernel: its operator that fuses least,
    without namespace. Operators without arguments, such as the columns that a mask compares, give it no name
    beside others.
    """
    operators = [(n.op, n.args) for n in post_order(function.body) if isinstance(n, Call) and isinstance(n.op, Op)]
    if not operators:
        return "copy"
    with_arguments = [op for op, args in operators if args] or [op for op, _ in operators]
    return max(with_arguments, key=lambda op: op.pattern).name.rpartition(".")[2]
