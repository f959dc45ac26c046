# SPDX-License-Identifier: Apache-2.0
"""FuseOps: group operator calls into primitive functions, one for each kernel; DefuseOps is its
inverse.

    %0 = nn.conv2d(%x, %w);                  %0 = fn (%p0, %p1, %p2, Primitive=1) {
    %1 = add(%0, %b);              =>            %0 = nn.conv2d(%p0, %p1); %1 = add(%0, %p2); nn.relu(%1) };
    nn.relu(%1)                              %0(%x, %w, %b)

Input: a typed function. Output: an equivalent function in which every operator call is inside a
function with attribute `Primitive=1`. The grouping is Relay's: an operator joins its immediate
post-dominator if the patterns on every path between them allow it, in three sweeps, so that
contractions are grouped first.

DefuseOps replaces calls of primitive functions by their bodies:

fn (%p0, Primitive=1) { nn.relu(exp(%p0)) }(%x)    =>    nn.relu(exp(%x))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from aotc.ir import (
    DType,
    Op,
    OpPattern,
    PassContext,
    TensorType,
    TupleType,
    Type,
    merge_spans,
    product_of_dims,
    same_dim,
    tensor_types,
)
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, require_function, type_of
from aotc.relay.graph_api import (
    IRModule,
    children,
    is_fused_or_external_function,
    map_children,
    post_order,
    rewrite_bottom_up,
    substitute_variables,
)
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.pass_base import FunctionPass, is_constant_with_finite_elements

#: Largest number of nodes in one group.
MAX_GROUP_NODES: Final = 256

_INLINE_DTYPES: Final = frozenset({"int32", "int64", "float32", "float64", "bool"})

#: The strongest patterns allowed between a node and its post-dominator, and for the post-dominator
#: itself.
_PatternLimits: TypeAlias = tuple[OpPattern, OpPattern]
_INJECTIVE: Final = (OpPattern.INJECTIVE, OpPattern.INJECTIVE)


@dataclass(frozen=True, repr=False)
class FuseOps(FunctionPass):
    """Pass that moves every operator call into a primitive function.

    fuse_opt_level      below 1, each call gets a function of its own; -1 stands for the context's level
    max_args            largest number of tensors that a function of several operators takes: arguments, results,
                        and a buffer for each result; 0 for no limit

    Configuration: "relay.FuseOps.max_depth", largest number of nodes in a function (256);
    "relay.FuseOps.link_params", True if constants that are not scalars stay inside functions
    instead of being passed in (False).
    """

    fuse_opt_level: int = -1
    max_args: int = 0

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        level = ctx.opt_level if self.fuse_opt_level < 0 else self.fuse_opt_level
        depth = ctx.get_config("relay.FuseOps.max_depth", MAX_GROUP_NODES)
        links = bool(ctx.get_config("relay.FuseOps.link_params", False))
        return fuse_operators(function, level, depth, links, self.max_args)


@dataclass(slots=True, eq=False)
class _Node:
    """A graph node in dataflow direction: `outputs` are its users, each with the pattern of the
    edge.

    An `external` node is needed outside the dataflow (a result, a branch, a let) and cannot be
    absorbed. `parent` is the immediate post-dominator, `edge` the strongest pattern on the way
    there.
    """

    ref: Expr
    pattern: OpPattern = OpPattern.OPAQUE
    external: bool = False
    outputs: list[tuple[_Node, OpPattern]] = field(default_factory=list)
    depth: int = 1
    parent: _Node | None = None
    edge: OpPattern = OpPattern.OPAQUE
    group: _Group = field(init=False)

    @property
    def root_group(self) -> _Group:
        """The root element of the fusion group to which the node belongs."""
        return self.group.find_root()


@dataclass(slots=True, eq=False)
class _Group:
    """One element of a union-find forest of fused nodes; the fields of a root describe the whole
    fusion group.
    """

    pattern: OpPattern
    root_ref: Expr
    anchored: bool
    members: list[Expr] = field(default_factory=list)
    parent: _Group | None = None

    @property
    def member_count(self) -> int:
        """Number of nodes joined to this union-find element, including its own node."""
        return len(self.members)

    def find_root(self) -> _Group:
        top = self
        while top.parent is not None:
            top = top.parent
        node = self
        while node.parent is not None:
            node.parent, node = top, node.parent
        return top

    def merge_into(self, parent: _Group) -> None:
        """Merge this fusion group into another one; both must be roots of the union-find forest."""
        if self is parent:
            return
        parent.members += self.members
        self.parent = parent
        if self.anchored:
            assert not parent.anchored, "two anchors in one group"
            parent.anchored = True
            parent.pattern = max(self.pattern, parent.pattern)


def _nodes_outside_primitives(root: Expr) -> Iterator[Expr]:
    """Return the nodes to fuse, children first, without the contents of primitive functions."""
    return post_order(root, lambda node: not is_fused_or_external_function(node))


class _ForwardGraph:
    """The dataflow graph of a function in post order, with its post-dominator tree."""

    def __init__(self, root: Function, link_params: bool) -> None:
        self.link_params = link_params
        self.by_ref = {expr: _Node(expr) for expr in _nodes_outside_primitives(root)}
        self.nodes = list(self.by_ref.values())
        self.flat: dict[Expr, bool] = {}
        self.by_ref[root].external = True
        for node in self.nodes:
            self._add_edges_to_node(node)
        for node in reversed(self.nodes):
            _set_post_dominator(node)
            node.group = _Group(node.pattern, node.ref, node.pattern is OpPattern.OUT_ELEMWISE_FUSABLE, [node.ref])

    def _mark_exprs_used_outside_dataflow(self, *exprs: Expr) -> None:
        for expr in exprs:
            self.by_ref[expr].external = True

    def _is_tuple_of_tensors(self, value: Expr) -> bool:
        """Return True if a value is a tuple of tensors; the answer is cached, as many fields may be
        read from one tuple.
        """
        if value not in self.flat:
            ty = type_of(value)
            self.flat[value] = isinstance(ty, TupleType) and all(isinstance(f, TensorType) for f in ty.fields)
        return self.flat[value]

    def _add_edges_to_node(self, node: _Node) -> None:
        match node.ref:
            case Call():
                self._add_edges_to_call(node, node.ref)
            case Tuple(fields=fields):
                node.pattern = OpPattern.TUPLE
                for item in fields:
                    if isinstance(item.checked_type, TensorType):
                        self.by_ref[item].outputs.append((node, OpPattern.INJECTIVE))
                    else:
                        self._mark_exprs_used_outside_dataflow(item)
            case TupleGetItem(tuple_value=value):
                if self._is_tuple_of_tensors(value):
                    node.pattern = OpPattern.INJECTIVE
                    self.by_ref[value].outputs.append((node, OpPattern.INJECTIVE))
                else:
                    self._mark_exprs_used_outside_dataflow(value)
            case Constant():
                inside = self.link_params or _is_inlinable_constant(node.ref)
                node.pattern = OpPattern.ELEMWISE if inside else OpPattern.OPAQUE
            case _ if not is_fused_or_external_function(
                node.ref
            ):  # results of bodies and branches; variables have no children
                self._mark_exprs_used_outside_dataflow(*children(node.ref))

    def _add_edges_to_call(self, node: _Node, call: Call) -> None:
        if isinstance(call.op, Op):
            node.pattern = OpPattern.OPAQUE if _is_reshape_under_condition(call) else call.op.pattern
        else:
            self._mark_exprs_used_outside_dataflow(call.op)
        result = call.checked_type
        for arg in call.args:
            edge, ty = node.pattern, arg.checked_type
            same = isinstance(ty, TensorType) and isinstance(result, TensorType) and ty.shape == result.shape
            if edge is OpPattern.BROADCAST and same:
                edge = OpPattern.ELEMWISE
            self.by_ref[arg].outputs.append((node, edge))


def _is_reshape_under_condition(call: Call) -> bool:
    """Return True if a call reshapes a tensor to a shape that has as many elements for some sizes only:
    kernels, which are proven for all sizes, cannot contain it.
    """
    if not isinstance(call.op, OpDef) or not call.op.view:
        return False
    (source,), (result,) = tensor_types(type_of(call.args[0])), tensor_types(type_of(call))
    if source.is_static and result.is_static:
        return False
    return not same_dim(product_of_dims(source.shape), product_of_dims(result.shape))


def _is_inlinable_constant(constant: Constant) -> bool:
    """Return True if a constant can be a literal in a kernel: a scalar, or one repeated value."""
    return DType.from_numpy(constant.data) in _INLINE_DTYPES and (constant.data.ndim == 0 or constant.is_splat)


def _set_post_dominator(node: _Node) -> None:
    """Set the immediate post-dominator of a node: the least common ancestor of its users, whose own
    are already set.
    """
    if node.external or not node.outputs:
        return
    parent: _Node | None = node.outputs[0][0]
    edge = max(pattern for _, pattern in node.outputs)
    for user, _ in node.outputs[1:]:
        parent, on_way = _common_post_dominator(parent, user)
        edge = max(edge, on_way)
    node.parent = parent
    node.depth = 1 if parent is None else parent.depth + 1
    node.edge = edge


def _common_post_dominator(a: _Node | None, b: _Node | None) -> tuple[_Node | None, OpPattern]:
    """Return the least common ancestor in the post-dominator tree, and the strongest edge below it."""
    strongest = OpPattern.ELEMWISE
    while a is not b:
        if a is None or b is None:
            return None, strongest
        climb_a, climb_b = a.depth >= b.depth, b.depth >= a.depth
        if climb_a:
            strongest, a = max(strongest, a.edge), a.parent
        if climb_b:
            strongest, b = max(strongest, b.edge), b.parent
    return a, strongest


def _merge_fusion_groups(nodes: Sequence[_Node], max_nodes: int, max_args: int) -> None:
    """Merge the fusion groups of nodes as far as operator patterns allow, in three sweeps."""
    for phase in range(3):
        for node in nodes:
            path = _nodes_to_merge_up_to_post_dominator(node, phase)
            parent = node.parent.root_group if node.parent is not None else node.root_group
            if sum(n.group.member_count for n in path) + parent.member_count <= max_nodes and _is_within_argument_limit(
                path, parent, max_args
            ):
                for member in path:
                    member.root_group.merge_into(parent)


def _is_within_argument_limit(path: Sequence[_Node], parent: _Group, max_args: int) -> bool:
    """Return True if merging these nodes into a fusion group respects the limit of kernel
    arguments, or adds none.
    """
    if not max_args or not path:
        return True
    arg_count = _kernel_argument_count({parent, *(node.root_group for node in path)}, parent)
    return arg_count <= max_args or arg_count <= _kernel_argument_count({parent}, parent)


def _kernel_argument_count(groups: Set[_Group], result_group: _Group) -> int:
    """Return the number of kernel arguments of merged fusion groups: inputs, results, and a buffer
    for each result.
    """
    inside = {ref for group in groups for ref in group.members}
    outside = {operand for ref in inside for operand in _expressions_read_by(ref)} - inside
    return sum(_tensor_count(type_of(expr)) for expr in outside) + 2 * _tensor_count(type_of(result_group.root_ref))


def _expressions_read_by(node: Expr) -> Sequence[Expr]:
    """Return the expressions that a call, tuple or tuple field in a fusion group reads."""
    if isinstance(node, Call):
        return node.args
    return children(node) if isinstance(node, (Tuple, TupleGetItem)) else ()


def _tensor_count(ty: Type) -> int:
    return sum(map(_tensor_count, ty.fields)) if isinstance(ty, TupleType) else 1


def _nodes_to_merge_up_to_post_dominator(node: _Node, phase: int) -> list[_Node]:
    """Return a node and all nodes up to its post-dominator, if this fusion sweep can merge them;
    else an empty list.
    """
    pattern, parent = node.group.pattern, node.parent
    if pattern is OpPattern.OPAQUE or parent is None:
        return []
    if node.root_group.anchored and _should_end_group_before_widening(node):
        return []
    into_tuple = parent.group.pattern is OpPattern.TUPLE
    limits: _PatternLimits | None = None
    if phase < 2 and not into_tuple and node.root_group is not parent.root_group:
        limits = _pattern_limits(pattern, node.edge, phase)
    elif phase == 2 and into_tuple and max(pattern, parent.root_group.pattern) <= OpPattern.INJECTIVE:
        limits = _INJECTIVE  # a consumer has absorbed the tuple, so it absorbs its fields
    return [] if limits is None else _path_nodes_within_pattern_limits(node, parent, limits)


def _should_end_group_before_widening(node: _Node) -> bool:
    """Return True if fusion should stop at a node whose successors only widen it before another
    anchor's group.

    The narrow elements of a quantized result are then stored, and the next group widens them.
    """
    last, after = node, node.parent
    while after is not None and not after.root_group.anchored and after.group.pattern <= OpPattern.BROADCAST:
        last, after = after, after.parent
    if after is None or not after.root_group.anchored or after.root_group is node.root_group or last is node:
        return False
    ends = type_of(node.ref), type_of(last.ref)
    if not all(isinstance(ty, TensorType) for ty in ends):
        return False
    size, wide = (ty.dtype.itemsize for ty in ends if isinstance(ty, TensorType))
    return size < wide


def _path_nodes_within_pattern_limits(source: _Node, sink: _Node, limits: _PatternLimits) -> list[_Node]:
    """Return `source` and the nodes on all paths to `sink` (excluded); an empty list if one of them
    exceeds the limits.
    """
    visited_nodes = {source}
    path = [source]
    stack = [user for user, _ in source.outputs]
    while stack:
        node = stack.pop()
        if node in visited_nodes:
            continue
        visited_nodes.add(node)
        if node.root_group.pattern > limits[node is sink]:
            return []
        if node is not sink:
            path.append(node)
            stack.extend(user for user, _ in node.outputs)
    return path


def _pattern_limits(pattern: OpPattern, edge: OpPattern, phase: int) -> _PatternLimits | None:
    """Return the operator patterns that fusion sweep 0 or 1 allows up to the post-dominator; None
    if it must not fuse.
    """
    if pattern is OpPattern.OUT_ELEMWISE_FUSABLE:
        joins = phase == 0 and edge is OpPattern.ELEMWISE
        return (OpPattern.BROADCAST, OpPattern.BROADCAST) if joins else None
    # the sink may also be a reduction or a group with an anchor
    if pattern <= OpPattern.BROADCAST:
        if edge <= OpPattern.COMM_REDUCE:
            return (OpPattern.INJECTIVE, OpPattern.OUT_ELEMWISE_FUSABLE)
        return None
    return _INJECTIVE if pattern in (OpPattern.INJECTIVE, OpPattern.TUPLE) and phase == 1 else None


@dataclass(slots=True)
class FusedSignature:
    """Inputs of a fusion group: one parameter per distinct expression from outside, in order of
    first use.
    """

    params: dict[Expr, Var] = field(default_factory=dict)
    members: list[Expr] = field(default_factory=list)
    weights: list[Expr] = field(default_factory=list)

    def get_or_add_parameter_for_value(self, outside: Expr, original: Expr) -> Var:
        return self.params.setdefault(outside, Var(f"p{len(self.params)}", type_of(original)))

    def fused_function_attrs(self) -> dict[str, Any]:
        """Return the attributes of a fused function; "Finite" lists weights without infinities and
        NaN.

        Padding by zeros is exact for such weights.
        """
        finite = [
            k
            for k, outside in enumerate(self.params)
            if outside in self.weights and is_constant_with_finite_elements(outside)
        ]
        return {"Primitive": 1, **({"Finite": tuple(finite)} if finite else {})}


class _Rewriter:
    """Builds the primitive functions for the groups of a graph; `fuses` is True if groups have been
    merged.
    """

    def __init__(self, graph: _ForwardGraph, fuses: bool) -> None:
        self.graph = graph
        self.fuses = fuses
        self.new: dict[Expr, Expr] = {}
        self.signatures: dict[_Group, FusedSignature] = {}

    def build_primitive_functions(self, root: Function) -> Function:
        for node in _nodes_outside_primitives(root):
            self.new[node] = self._rewrite_node(node)
        return require_function(self.new[root])

    def _fusion_group(self, node: Expr) -> _Group:
        return self.graph.by_ref[node].root_group

    def _rewrite_node(self, node: Expr) -> Expr:
        match node:
            case Call(op=Op()):
                return self._rebuild_in_fused_function(node, node.args)
            case Tuple() if self._fusion_group(node).root_ref is not node:
                return self._rebuild_in_fused_function(node, node.fields)
            case TupleGetItem(tuple_value=value) if self._is_field_read_inside_fused_function(node, value):
                return self._rebuild_in_fused_function(node, (value,))
            case Function() if is_fused_or_external_function(node):
                return node
            case _:
                return map_children(node, self.new.__getitem__)

    def _is_field_read_inside_fused_function(self, field: Expr, value: Expr) -> bool:
        """Return True if the TupleGetItem `field` belongs inside a fused function: its group has
        another root, or computes the tuple too.
        """
        group = self._fusion_group(field)
        return group.root_ref is not field or self._fusion_group(value) is group

    def _is_inlined_constant(self, arg: Expr, user: Expr) -> bool:
        """Return True if a constant is copied into the fused function of `user` instead of being
        passed in.

        A single value shared by several functions can thus be fused into each of them.
        """
        if not isinstance(arg, Constant):
            return False
        pattern = self.graph.by_ref[user].pattern
        literal = self.fuses and pattern <= OpPattern.COMM_REDUCE and _is_inlinable_constant(arg)
        return self.graph.link_params or literal

    def _rebuild_in_fused_function(self, node: Call | Tuple | TupleGetItem, args: tuple[Expr, ...]) -> Expr:
        """Return a node rebuilt inside its fused function, or a call of that function if the fusion
        group ends at the node.
        """
        group = self._fusion_group(node)
        signature = self.signatures.setdefault(group, FusedSignature())
        fresh: dict[Expr, Expr] = {}
        for arg in args:
            inside = self._fusion_group(arg) is group or self._is_inlined_constant(arg, node)
            fresh[arg] = self.new[arg] if inside else signature.get_or_add_parameter_for_value(self.new[arg], arg)
        if isinstance(node, Call) and any(getattr(node.attrs, "padding", ())):
            signature.weights += map(self.new.__getitem__, args[1:])
        member = map_children(node, lambda child: fresh.get(child, child))
        signature.members.append(node)
        return call_new_primitive_function(member, node, signature) if group.root_ref is node else member


def call_new_primitive_function(body: Expr, node: Expr, signature: FusedSignature) -> Call:
    """Return a call, which replaces `node`, of a new primitive function with this body."""
    span = merge_spans(member.span for member in signature.members)
    ty = type_of(node)
    function = Function(signature.params.values(), body, ty, None, signature.fused_function_attrs(), span)
    return Call(function, signature.params, span=span, checked_type=ty)


def fuse_operators(
    function: Function,
    opt_level: int = 3,
    max_depth: int = MAX_GROUP_NODES,
    link_params: bool = False,
    max_args: int = 0,
) -> Function:
    """Return `function` with every operator call inside a primitive function; the same object if
    there is nothing to fuse.

    At `opt_level` 0 each call gets a function of its own. Scalar constants become part of the
    functions; other constants become parameters unless `link_params` is set.
    """
    if is_fused_or_external_function(function):
        return function
    graph = _ForwardGraph(function, link_params)
    if opt_level >= 1:
        _merge_fusion_groups(graph.nodes, max_depth, max_args)
    return _Rewriter(graph, opt_level >= 1).build_primitive_functions(function)


# --- the inverse


class DefuseOps(FunctionPass):
    """Pass that replaces calls of fused functions by their bodies; other functions stay."""

    opt_level = 3

    def rewrite_function_body(self, function: Function) -> Function:
        return require_function(rewrite_bottom_up(function, _inline_primitive_call))


def _inline_primitive_call(_: Expr, new: Expr) -> Expr:
    match new:
        case Call(op=Function(params=params, body=body, is_primitive=True)):
            return substitute_variables(body, dict(zip(params, new.args, strict=True)))
        case _:
            return new
