# SPDX-License-Identifier: Apache-2.0
"""StoreNarrow: store a kernel's value before it is widened, and widen it in the kernels that read
it.

%0 = fn (%p0, %p1, Primitive=1) { cast(qnn.requantize(nn.conv2d(%p0, %p1)), dtype="int32") }(%x, %w);    # int32
%1 = fn (%p0, Primitive=1) { sum(%p0, axis=[1, 2]) }(%0)
=>
%0 = fn (%p0, %p1, Primitive=1) { qnn.requantize(nn.conv2d(%p0, %p1)) }(%x, %w);                         # int8
%1 = fn (%p0, Primitive=1) { sum(cast(%p0, dtype="int32"), axis=[1, 2]) }(%0)

Input: typed functions, after FuseOps. Output: functions with equal results and fewer bytes stored
between kernels. If several kernels read a tensor, each repeats the widening, as long as that costs
less in total than storing and loading the wide elements (`Target.store_cost`).

A tensor that depends on sizes of a run and on no data, such as the mask of causal attention, is a constant where
the sizes are known. Where they are not, each kernel that reads it computes its elements, if that takes few
operations, so that it takes no memory:

%0 = fn (Primitive=1) { arange(stop=n) }();
%1 = fn (%p0, Primitive=1) { where(greater(expand_dims(%p0, axis=0), expand_dims(%p0, axis=1)), -1e9f, 0f) }(%0);
%2 = fn (%p0, %p1, Primitive=1) { add(%p0, %p1) }(%scores, %1)
=>
%0 = fn (%p0, Primitive=1) { add(%p0, where(greater(expand_dims(arange(stop=n), axis=0), ...), -1e9f, 0f)) }(%scores)
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aotc.ir import (
    Op,
    OpPattern,
    TensorType,
    are_bounded,
    flatten_nested_tuple,
    largest_number_of_elements,
    nest_values_like_type,
    tensor_types,
)
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    require_function,
    require_op_of_call,
    tensor_type_of,
)
from aotc.relay.graph_api import map_children, post_order, substitute_variables, type_of, users
from aotc.relay.op.found_sizes import OPERATORS_WITHOUT_KERNEL
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.pass_base import (
    FunctionPass,
    as_op_call,
    is_not_primitive_function,
    uniform_value_of_constant,
)
from aotc.tir import (
    Target,
    estimated_operations_per_element,
    output_and_reduction_axes,
    te,
    tensors_in_topological_order,
)
from aotc.tir.target import C
from aotc.tir.tensor_graph import element_reads_in_definition, source_tensors, strip_views

#: Most operations with which the kernels that read a tensor compute an element that depends on sizes only; a reshape
#: counts as one.
_MAX_OPERATIONS_FROM_SIZES: Final = 8


@dataclass(frozen=True, repr=False)
class StoreNarrow(FunctionPass):
    """Pass that moves trailing operations that enlarge a kernel's result into the kernels that read
    it.

    target      provides the cost of storing elements
    max_args    largest number of tensors that a function takes: arguments, results, and a buffer for each result;
                0 for no limit
    """

    opt_level = 1
    target: Target = C
    max_args: int = 0

    def rewrite_function_body(self, function: Function) -> Function:
        rewriter = _Rewriter(self.target, self.max_args, users(function))
        for node in post_order(function, is_not_primitive_function):
            rewriter.rewrite_and_record_node(node)
        return require_function(rewriter.new[function])


@dataclass(slots=True)
class _KernelCall:
    """A call of a fused function, taken apart so that its body can be changed.

    body      the body of the function, over the keys of `args`
    args      the argument of each parameter
    finite    parameters that are known to be without infinities and NaN
    """

    call: Call
    body: Expr
    args: dict[Var, Expr]
    finite: set[Var]

    @classmethod
    def from_call(cls, call: Call) -> _KernelCall:
        function = require_function(call.op)
        finite = {function.params[k] for k in function.attrs.get("Finite", ())}
        return cls(call, function.body, dict(zip(function.params, call.args, strict=True)), finite)

    def params_with_constant_arguments(self) -> set[Var]:
        """Return the parameters of the kernel whose arguments are constants."""
        return {param for param, arg in self.args.items() if isinstance(arg, Constant)}

    def build_call_with_needed_params(self) -> Call:
        """Return the call of a function with this body and only the parameters that it needs."""
        needed = set(post_order(self.body))
        args = {param: arg for param, arg in self.args.items() if param in needed}
        attrs = {name: value for name, value in require_function(self.call.op).attrs.items() if name != "Finite"}
        if finite := tuple(k for k, param in enumerate(args) if param in self.finite):
            attrs["Finite"] = finite
        ty = type_of(self.body)
        function = Function(args, self.body, ty, None, attrs, self.call.span)
        return Call(function, args.values(), span=self.call.span, checked_type=ty)


@dataclass(slots=True)
class _Tail:
    """The trailing (widening) operations of a kernel, which the kernels that read its result
    compute instead.

    stored    the stored value, as an expression of the whole function; None if nothing is stored
    var       the variable for the stored value in `body`
    body      the wide value
    args      constants that `body` needs besides
    """

    stored: Expr | None
    var: Var
    body: Expr
    args: dict[Var, Expr]


@dataclass(slots=True)
class _Rewriter:
    """Rewriter that visits nodes, children first.

    new      the replacement of each node
    tails    for calls whose kernels now store a narrower value: the operations that their readers compute
    sized    calls whose results depend on sizes of a run, and on no data
    """

    target: Target
    max_args: int
    readers: dict[Expr, list[Expr]]
    new: dict[Expr, Expr] = field(default_factory=dict)
    tails: dict[Expr, _Tail] = field(default_factory=dict)
    sized: set[Expr] = field(default_factory=set)

    def rewrite_and_record_node(self, node: Expr) -> None:
        if not _is_kernel_call(node):
            self.new[node] = map_children(node, self.new.__getitem__) if is_not_primitive_function(node) else node
            return
        assert isinstance(node, Call)
        if all(isinstance(arg, Constant) or arg in self.sized for arg in node.args):
            self.sized.add(node)
        kernel = self._inline_tails_of_arguments(_KernelCall.from_call(node))
        if self._is_computed_from_sizes_by_readers(kernel):
            self.tails[node] = _tail_without_stored_value(kernel)
            return
        cut = self._best_node_to_store_instead_of_result(kernel)
        if cut is not None:
            self.tails[node] = _split_kernel_after_node(kernel, cut)
        else:
            same = len(kernel.args) == len(node.args) and all(map(operator.is_, kernel.args.values(), node.args))
            self.new[node] = node if same else kernel.build_call_with_needed_params()

    def _inline_tails_of_arguments(self, kernel: _KernelCall) -> _KernelCall:
        """Return a kernel with rewritten arguments; its body computes the trailing operations of
        the narrowed ones.
        """
        args: dict[Var, Expr] = {}
        values: dict[Var, Expr] = {}
        for param, arg in kernel.args.items():
            tail = self.tails.get(arg)
            if tail is None:
                args[param] = self.new[arg]
                continue
            inner = {var: Var(f"{param.name_hint}_{k}", type_of(var)) for k, var in enumerate((tail.var, *tail.args))}
            values[param] = substitute_variables(tail.body, dict(inner))
            if tail.stored is not None:
                args[inner[tail.var]] = tail.stored
            args.update({inner[var]: outside for var, outside in tail.args.items()})
        return (
            replace(kernel, body=substitute_variables(kernel.body, values), args=args)
            if values
            else replace(kernel, args=args)
        )

    def _best_node_to_store_instead_of_result(self, kernel: _KernelCall) -> Expr | None:
        """Return the node of a kernel whose value should be stored instead of the result; None to
        store the result.
        """
        readers = self.readers[kernel.call]
        size = _static_nbytes(kernel.body)
        if not size or not readers or not all(map(_is_kernel_call, readers)):
            return None
        best: Expr | None = None
        for node in post_order(kernel.body):
            smaller = 0 < _static_nbytes(node) <= (_static_nbytes(best) if best is not None else size - 1)
            if (
                smaller
                and node not in kernel.params_with_constant_arguments()
                and self._is_recomputation_after_node_cheap(kernel, node)
            ):
                best = node
        return best

    def _is_recomputation_after_node_cheap(self, kernel: _KernelCall, node: Expr) -> bool:
        """Return True if all kernels that read a result can repeat the operations after `node` at
        less than the storing cost.
        """
        tail = list(_nodes_evaluated_if_node_is_given(kernel.body, node))
        free = {n for n in tail if isinstance(n, Var)}
        if not free <= kernel.params_with_constant_arguments() or not all(
            _is_elementwise(n) for n in tail if not isinstance(n, (Var, Constant, Op))
        ):
            return False
        cost = sum(_operations_per_element(n) for n in tail if isinstance(n, Call))
        reads = self._element_reads(kernel.call, len(free))
        if reads is None:
            return False
        size = tensor_type_of(kernel.body).numel
        return cost * (reads - size) <= self.target.store_cost * size

    def _is_computed_from_sizes_by_readers(self, kernel: _KernelCall) -> bool:
        """Return True if all kernels that read a result, which depends on sizes of a run and on no data, can compute
        its elements with few operations.
        """
        call, ty = kernel.call, kernel.body.checked_type
        if call not in self.sized or not isinstance(ty, TensorType) or ty.is_static or not are_bounded(ty.shape):
            return False
        nodes = [n for n in post_order(kernel.body) if not isinstance(n, (Var, Constant, Op))]
        if not all(_has_pattern(n, OpPattern.INJECTIVE) or as_op_call(n, "arange") is not None for n in nodes):
            return False
        if sum(_operations_per_element(n) for n in nodes if isinstance(n, Call)) > _MAX_OPERATIONS_FROM_SIZES:
            return False
        readers = self.readers[call]
        is_read_by_kernels = bool(readers) and all(map(_is_kernel_call, readers))
        return is_read_by_kernels and self._element_reads(call, len(kernel.args)) is not None

    def _element_reads(self, call: Call, added_args: int) -> int | None:
        """Return the number of element reads that all kernels make of a result; None if it must be stored for one of
        them, or if one would have too many arguments.

        added_args    number of arguments that each kernel gets in addition
        """
        total = 0
        for reader in dict.fromkeys(self.readers[call]):
            assert isinstance(reader, Call)
            if self.max_args and len(reader.args) + added_args + 2 > self.max_args:
                return None
            reads = _kernel_element_reads(reader, call)
            if reads is None:
                return None
            total += reads
        return total


def _split_kernel_after_node(kernel: _KernelCall, node: Expr) -> _Tail:
    """Split a kernel at a node of its body: a kernel that ends there, and the trailing operations."""
    var = Var("narrow", type_of(node))
    body = _replace_node(kernel.body, node, var)
    free = [n for n in post_order(body) if isinstance(n, Var) and n is not var]
    stored = kernel.args[node] if isinstance(node, Var) else replace(kernel, body=node).build_call_with_needed_params()
    return _Tail(stored, var, body, {v: kernel.args[v] for v in free})


def _tail_without_stored_value(kernel: _KernelCall) -> _Tail:
    """Return a whole kernel as trailing operations; constants of one value become part of them."""
    literals: dict[Var, Expr] = {v: a for v, a in kernel.args.items() if uniform_value_of_constant(a) is not None}
    args = {var: arg for var, arg in kernel.args.items() if var not in literals}
    return _Tail(None, Var("narrow", type_of(kernel.body)), substitute_variables(kernel.body, literals), args)


def _replace_node(body: Expr, node: Expr, replacement: Expr) -> Expr:
    """Return `body` with a node replaced by another expression."""
    new_nodes: dict[Expr, Expr] = {node: replacement}
    for n in _nodes_evaluated_if_node_is_given(body, node):
        new_nodes[n] = map_children(n, new_nodes.__getitem__)
    return new_nodes[body]


def _nodes_evaluated_if_node_is_given(body: Expr, node: Expr) -> Iterator[Expr]:
    """Return the nodes of a body except `node` and the nodes that only `node` needs."""
    return (n for n in post_order(body, lambda n: n is not node) if n is not node)


def _kernel_params(call: Call) -> Sequence[Var]:
    return require_function(call.op).params


def _is_kernel_call(node: Expr) -> bool:
    """Return True if a node calls a primitive function that this compiler compiles to a kernel."""
    function = node.op if isinstance(node, Call) else None
    if not isinstance(function, Function) or not function.is_primitive or "Compiler" in function.attrs:
        return False
    body = function.body
    return not (isinstance(body, Call) and isinstance(body.op, Op) and body.op.name in OPERATORS_WITHOUT_KERNEL)


def _static_nbytes(node: Expr) -> int:
    """Return the bytes of a tensor of static shape; 0 for other values."""
    ty = node.checked_type
    return ty.nbytes if isinstance(ty, TensorType) and ty.is_static else 0


def _is_elementwise(node: Expr) -> bool:
    """Return True if a node is computed element by element."""
    return _has_pattern(node, OpPattern.BROADCAST)


def _has_pattern(node: Expr, most: OpPattern) -> bool:
    """Return True if a node calls an operator whose pattern is at most as strong as `most`."""
    return isinstance(node, Call) and isinstance(node.op, OpDef) and node.op.pattern <= most


def _operations_per_element(node: Call) -> int:
    """Return the approximate number of operations for one element of a result, at least 1."""
    tensors = [te.placeholder(ty.shape, ty.dtype, "p") for ty in map(tensor_type_of, node.args)]
    return max(
        1, sum(map(estimated_operations_per_element, tensors_in_topological_order(_tensor_expressions(node, tensors))))
    )


def _tensor_expressions(node: Call, args: Sequence[Any]) -> list[te.Tensor]:
    """Return the tensor expressions of a call's results; an empty list if the operator defines
    none.
    """
    op = require_op_of_call(node)
    return (
        flatten_nested_tuple(op.compute(node.attrs, *args)) if isinstance(op, OpDef) and op.compute is not None else []
    )


def _kernel_element_reads(reader: Call, value: Expr) -> int | None:
    """Return the number of element reads that a kernel makes of an argument.

    None if it needs the argument in memory, or only moves elements.
    """
    params = {param for param, arg in zip(_kernel_params(reader), reader.args, strict=True) if arg is value}
    body = require_function(reader.op).body
    calls = [node for node in post_order(body) if isinstance(node, Call)]
    operators = [require_op_of_call(node) for node in calls]
    if body in params or all(op.is_data_movement for op in operators):
        return None
    if any(op.finds is not None or op.name == "after" for op in operators):
        return None
    total = 0
    for node in post_order(body):
        if params.isdisjoint(_expressions_read_by(node)):
            continue
        times = _call_element_reads(node, params) if isinstance(node, Call) else None
        if times is None:
            return None
        total += times
    return total


def _expressions_read_by(node: Expr) -> list[Expr]:
    """Return the expressions that a node reads, with tuple arguments replaced by their fields."""
    given = [(*arg.fields,) if isinstance(arg, Tuple) else (arg,) for arg in _call_arguments_or_indexed_tuple(node)]
    return [arg for args in given for arg in args]


def _call_arguments_or_indexed_tuple(node: Expr) -> Sequence[Expr]:
    """Return the arguments of a call, or the tuple of a tuple field; tuples themselves read
    nothing.
    """
    if isinstance(node, Call):
        return node.args
    return (node.tuple_value,) if isinstance(node, TupleGetItem) else ()


def _call_element_reads(node: Call, params: Container[Expr]) -> int | None:
    """Return how often a call reads an element of some kernel parameters, each of which would
    repeat the widening; None if the parameters must be stored.
    """
    marked: set[te.Tensor] = set()

    def make_te_placeholders(arg: Expr) -> Any:
        if isinstance(arg, Tuple):
            return tuple(map(make_te_placeholders, arg.fields))
        types = tensor_types(type_of(arg))
        placeholders = [te.placeholder(ty.shape, ty.dtype, "p") for ty in types]
        if arg in params:
            marked.update(placeholders)
        return nest_values_like_type(type_of(arg), iter(placeholders))

    if not all(are_bounded(ty.shape) for arg in node.args for ty in tensor_types(type_of(arg))):
        return None
    results = _tensor_expressions(node, [make_te_placeholders(arg) for arg in node.args])
    total = 0
    for tensor in tensors_in_topological_order(results):
        if isinstance(tensor, (te.Compute, te.Reduce)):
            read = sum(strip_views(element.tensor) in marked for element in element_reads_in_definition(tensor))
            total += read * largest_number_of_elements(extent for _, extent in output_and_reduction_axes(tensor))
        elif not isinstance(tensor, te.View) and not marked.isdisjoint(map(strip_views, source_tensors(tensor))):
            return None
    return total if results else None
