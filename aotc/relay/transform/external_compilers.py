# SPDX-License-Identifier: Apache-2.0
"""Partition a graph for external compilers: mark supported nodes, merge regions, and make functions
of them.

Regions are convex: a region can become one function without a cycle in the graph.

labels = compiler_of_marked_nodes(function.body)     # from compiler_begin and compiler_end
groups = group_nodes_convexly(function.body, labels)  # {node: number of its region}

AnnotateTarget and MergeCompilerRegions: mark the operators that an external compiler supports, and
merge adjacent regions.

nn.relu(exp(%x))
compiler_end(nn.relu(compiler_begin(compiler_end(exp(compiler_begin(%x, "mine")), "mine"), "mine")), "mine")
compiler_end(nn.relu(exp(compiler_begin(%x, "mine"))), "mine")                      # merged

MergeComposite: replace each match of a pattern by a call of a function with the attribute
Composite.

nn.relu(nn.dense(%x, %w))
fn (%a, %b, Composite="mine.dense_relu", ...) { nn.relu(nn.dense(%a, %b)) }(%x, %w)

PartitionGraph: move each region between compiler_begin and compiler_end to a global function for
that compiler.

def @main(%x) { compiler_end(nn.relu(compiler_begin(%x, "mine")), "mine") }
def @main(%x) { @tvmgen_default_mine_main_0(%x) }
def @tvmgen_default_mine_main_0(%i0, Compiler="mine", Primitive=1, ...) { nn.relu(%i0) }
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotc.ir import Op, Pass, PassContext, TupleType, get_op_attr, merge_spans
from aotc.relay.dataflow_pattern.find_matches_and_partition import is_node_shareable_between_match_groups, partition
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var, tuple_item, type_of
from aotc.relay.graph_api import IRModule, infer_module, is_not_a_scope, unused_name
from aotc.relay.op.annotation import compiler_begin, compiler_end
from aotc.relay.transform.pass_base import (
    FunctionPass,
    as_op_call,
    is_excluded_from_passes,
    is_op_call,
    with_inferred_types,
)
from aotc.relay.visitor import children, depth_first_post_order, map_children, post_order, with_children


def is_compiler_mark(expr: Expr) -> bool:
    """Return True if `expr` is a call of compiler_begin or compiler_end."""
    return is_op_call(expr, compiler_begin, compiler_end)


def strip_compiler_marks(expr: Expr) -> Expr:
    """Return the expression inside the compiler_begin and compiler_end calls around `expr`."""
    while (call := as_op_call(expr, compiler_begin, compiler_end)) is not None:
        expr = call.args[0]
    return expr


def compiler_of_marked_nodes(root: Expr) -> dict[Expr, str]:
    """Return the nodes between compiler_end and compiler_begin, each with the compiler of its
    region.
    """
    labels: dict[Expr, str] = {}
    for node in reversed(list(post_order(root, is_not_a_scope))):  # users first
        end = as_op_call(node, compiler_end)
        if end is not None:
            inside, compiler = end.args, end.attrs["compiler"]
        elif node in labels and is_not_a_scope(node):
            inside, compiler = children(node), labels[node]
        else:
            continue
        for child in inside:
            if not is_compiler_mark(child) and not is_node_shareable_between_match_groups(child):
                labels.setdefault(child, compiler)
    return labels


class _Groups:
    """Groups of graph nodes (union-find), merged only if the graph of the groups stays acyclic.

    `direct[g]` are the groups that group g uses, `users[g]` the groups that use g, `needs[g]` all
    groups that it depends on, as a bit set.
    """

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.direct: dict[int, set[int]] = {}
        self.users: dict[int, set[int]] = {}
        self.needs: dict[int, int] = {}

    def find_root(self, group: int) -> int:
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def add_group(self, used_groups: set[int]) -> int:
        group = len(self.parent)
        self.parent.append(group)
        self.direct[group] = {self.find_root(u) for u in used_groups}
        self.users[group] = set()
        self.needs[group] = 0
        for used in self.direct[group]:
            self.users[used].add(group)
            self.needs[group] |= 1 << used | self.needs[used]
        return group

    def _groups_depending_on(self, group: int) -> set[int]:
        return {*depth_first_post_order([group], lambda g: {self.find_root(u) for u in self.users[g]})} - {group}

    def merge_if_acyclic(self, a: int, b: int) -> None:
        """Merge two groups of graph nodes unless a path leads from one to the other through a third
        group.
        """
        a, b = sorted((self.find_root(a), self.find_root(b)))
        if a == b:
            return
        pair = 1 << a | 1 << b
        neighbors = {self.find_root(g) for g in self.direct[a] | self.direct[b]} - {a, b}
        if any(self.needs[g] & pair for g in neighbors):
            return
        self.parent[b] = a
        self.direct[a] = neighbors
        self.users[a] = {self.find_root(u) for u in self.users[a] | self.users[b]} - {a}
        self.needs[a] = (self.needs[a] | self.needs[b]) & ~pair
        del self.direct[b], self.users[b], self.needs[b]
        for user in self._groups_depending_on(a):
            self.needs[user] |= 1 << a | self.needs[a]


def group_nodes_convexly(root: Expr, labels: dict[Expr, str], merge_across_marks: bool = False) -> dict[Expr, int]:
    """Return the group of each labeled node: neighbors with equal labels are merged greedily if
    this makes no cycle.

    merge_across_marks    True if an edge with compiler_begin or compiler_end on it may join the nodes that it
                          connects
    """
    groups = _Groups()
    number: dict[Expr, int] = {}
    for node in post_order(root, lambda n: not isinstance(n, Function)):
        if is_node_shareable_between_match_groups(node) or is_compiler_mark(node):
            continue
        below = [(c, strip_compiler_marks(c)) for c in children(node)]
        edges = [(c, plain) for c, plain in below if plain in number]
        number[node] = groups.add_group({number[plain] for _, plain in edges})
        for child, plain in edges:
            same = node in labels and labels[node] == labels.get(plain)
            if same and (merge_across_marks or child is plain):
                groups.merge_if_acyclic(number[plain], number[node])
    return {node: groups.find_root(number[node]) for node in labels if node in number}


# --- which operators


def is_supported_by_compiler(expr: Call, compiler: str) -> bool:
    """Return True if external compiler `compiler` supports a call: by the operator's attribute, or
    by a composite's name.
    """
    match expr.op:
        case Op(name=name):
            check = get_op_attr(name, f"target.{compiler}")
            return bool(check(expr)) if callable(check) else bool(check)
        case Function(attrs=attrs):
            return str(attrs.get("Composite", "")).startswith(f"{compiler}.")
        case _:
            return False


def _insert_compiler_marks(root: Expr, labels: dict[Expr, str], groups: dict[Expr, int]) -> Expr:
    """Return `root` with compiler_begin and compiler_end exactly where edges enter and leave groups
    of labeled nodes.

    A labeled node without a group is a region of its own.
    """
    new: dict[Expr, Expr] = {}

    def mark_region_end(node: Expr) -> Expr:
        return compiler_end(new[node], labels[node]) if node in labels else new[node]

    def marked_operand(user: Expr, operand: Expr) -> Expr:
        plain = strip_compiler_marks(operand)
        if isinstance(plain, (Op, Function)):
            return operand
        if plain in groups and groups[plain] == groups.get(user):
            return new[plain]
        return compiler_begin(mark_region_end(plain), labels[user]) if user in labels else mark_region_end(plain)

    for node in post_order(root, is_not_a_scope):
        if not is_compiler_mark(node):
            keep = is_node_shareable_between_match_groups(node) or not is_not_a_scope(node)
            new[node] = node if keep else with_children(node, tuple(marked_operand(node, c) for c in children(node)))
    return mark_region_end(strip_compiler_marks(root))


@dataclass(frozen=True, repr=False)
class AnnotateTarget(FunctionPass):
    """Pass that puts compiler_begin and compiler_end around each call that an external compiler
    supports.

    targets                names of external compilers, or one name; the first that supports a call gets it
    include_non_call_ops   True: tuples and their fields join the region of all their operands

    Other calls are not marked. The contents of branches, lets and closures are not changed;
    ToGraphNormalForm first converts lets to graphs. Existing marks stay.
    """

    targets: str | Sequence[str] = ()
    include_non_call_ops: bool = True

    def rewrite_function_body(self, function: Function) -> Function:
        root = function.body
        before = compiler_of_marked_nodes(root)
        labels = dict(before)
        for node in post_order(root, is_not_a_scope):
            is_excluded = node in labels or is_compiler_mark(node) or (node is root and isinstance(node, Tuple))
            target = None if is_excluded else self._choose_compiler(node, labels)
            if target is not None:
                labels[node] = target
        if len(labels) == len(before):
            return function
        return function.with_body(_insert_compiler_marks(root, labels, group_nodes_convexly(root, before)))

    def _choose_compiler(self, node: Expr, labels: dict[Expr, str]) -> str | None:
        match node:
            case Call():
                targets = [self.targets] if isinstance(self.targets, str) else self.targets
                return next((t for t in targets if is_supported_by_compiler(node, t)), None)
            case Tuple() | TupleGetItem() if self.include_non_call_ops:
                child_labels = {labels.get(strip_compiler_marks(c)) for c in children(node)}
                return child_labels.pop() if len(child_labels) == 1 else None
            case _:
                return None


class MergeCompilerRegions(FunctionPass):
    """Pass that merges adjacent regions of one compiler, unless a path between them leads through
    other nodes.
    """

    def rewrite_function_body(self, function: Function) -> Function:
        root = function.body
        labels = compiler_of_marked_nodes(root)
        if not labels:
            return function
        groups = group_nodes_convexly(root, labels, merge_across_marks=True)
        return function.with_body(_insert_compiler_marks(root, labels, groups))


# --- composites


@dataclass(frozen=True, repr=False)
class MergeComposite(FunctionPass):
    """Pass that replaces matches of patterns by calls of composite functions; earlier entries take
    precedence.

    table    entries (name, pattern) or (name, pattern, check): check(expr) may reject a match by its root. The name
             is "COMPILER.WHAT" for AnnotateTarget("COMPILER") to select the function
    """

    table: Sequence[tuple[str, DFPattern] | tuple[str, DFPattern, Callable[[Any], bool]]] = ()

    def rewrite_function_body(self, function: Function) -> Function:
        for name, pattern, *check in self.table:
            body = partition(pattern, function.body, {"Composite": name}, *check)
            if body is not function.body:
                function = function.with_body(body)
        return function


# --- regions become functions


@dataclass(slots=True)
class _Region:
    compiler: str
    members: list[Expr] = field(default_factory=list)
    inputs: dict[Expr, None] = field(default_factory=dict)
    outputs: dict[Expr, None] = field(default_factory=dict)

    @property
    def has_single_unflattened_output(self) -> bool:
        """True if the region's function returns its only output directly; several outputs, and
        nested tuples, are flattened.
        """
        first, *rest_types = map(type_of, self.outputs)
        return not rest_types and not any(isinstance(f, TupleType) for f in getattr(first, "fields", ()))


def _find_compiler_regions_by_node(root: Expr, bind_constants: bool) -> dict[Expr, _Region]:
    """Return for each node the region (nodes for one external compiler) that contains it, with
    inputs and outputs.

    Inputs are in graph order, outputs in the order of their marks or else of the graph. A region of
    only tuples and tuple fields computes nothing and is dropped.
    """
    labels = compiler_of_marked_nodes(root)
    groups = group_nodes_convexly(root, labels)
    computing = {group for node, group in groups.items() if isinstance(node, Call)}
    by_group: dict[int, _Region] = {}
    region_by_node: dict[Expr, _Region] = {}
    nodes = [n for n in post_order(root, is_not_a_scope) if not is_compiler_mark(n)]
    for node in nodes:
        if groups.get(node) in computing:
            region_by_node[node] = by_group.setdefault(groups[node], _Region(labels[node]))
            region_by_node[node].members.append(node)
    for node in nodes:
        node_region = region_by_node.get(node)
        for used in map(strip_compiler_marks, children(node) if is_not_a_scope(node) else ()):
            region = region_by_node.get(used)
            if region is not None and region is not node_region:
                region.outputs[used] = None
            bound = isinstance(used, (Op, Function)) or (bind_constants and _is_constant_or_tuple_of_them(used))
            if node_region is not None and region is not node_region and not bound:
                node_region.inputs[used] = None
    if strip_compiler_marks(root) in region_by_node:
        region_by_node[strip_compiler_marks(root)].outputs[strip_compiler_marks(root)] = None
    ends = [strip_compiler_marks(n) for n in post_order(root, is_not_a_scope) if is_op_call(n, compiler_end)]
    for region in by_group.values():
        marked_first = dict.fromkeys(n for n in ends if n in region.outputs)
        region.outputs = marked_first | region.outputs
    return region_by_node


def _is_constant_or_tuple_of_them(expr: Expr) -> bool:
    """Return True if `expr` is a constant or a tuple of constants."""
    return all(isinstance(e, Constant) for e in (expr.fields if isinstance(expr, Tuple) else [expr]))


def _flatten_to_tensors(expr: Expr) -> list[Expr]:
    """Return the tensors that `expr` consists of, in order."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return [expr]
    return [tensor for k in range(len(ty.fields)) for tensor in _flatten_to_tensors(tuple_item(expr, k))]


def _rebuild_tuple_from_tensors(expr: Expr, tensors: Iterator[Expr]) -> Expr:
    """Rebuild a (nested) tuple of the type of `expr` from the next tensors of an iterator."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return next(tensors)
    return Tuple([_rebuild_tuple_from_tensors(TupleGetItem(expr, k), tensors) for k in range(len(ty.fields))])


class _Partition:
    """Rewrites one function of a module and collects the functions of its regions in `function_by_symbol`."""

    def __init__(self, prefix: str, taken: IRModule, regions: dict[Expr, _Region]) -> None:
        # a template with a placeholder for the compiler's name: "tvmgen_default_{}_main"
        self.prefix = prefix
        self.used_names = set(taken)
        self.regions = regions
        self.new: dict[Expr, Expr] = {}
        self.function_by_symbol: dict[str, Function] = {}

    def replace_regions_by_calls(self, root: Expr) -> Expr:
        """Return `root` with each region replaced by a call; a region is built after all of its
        inputs.
        """
        for node in depth_first_post_order([strip_compiler_marks(root)], self._region_inputs_or_node_operands):
            if node not in self.new and node in self.regions:
                self._outline_region(self.regions[node])
            elif node not in self.new:
                self.new[node] = map_children(node, self._replacement_of_operand) if is_not_a_scope(node) else node
        return self.new[strip_compiler_marks(root)]

    def _replacement_of_operand(self, operand: Expr) -> Expr:
        return self.new.get(strip_compiler_marks(operand), operand)

    def _region_inputs_or_node_operands(self, node: Expr) -> list[Expr]:
        if node in self.regions:
            return list(self.regions[node].inputs)
        if is_node_shareable_between_match_groups(node) or not is_not_a_scope(node):
            return []
        return [u for u in map(strip_compiler_marks, children(node)) if not is_node_shareable_between_match_groups(u)]

    def _outline_region(self, region: _Region) -> None:
        base_name = (
            f"{self.prefix.format(re.sub(r'[^0-9A-Za-z_]', '_', region.compiler))}_{len(self.function_by_symbol)}"
        )
        symbol = unused_name(base_name, self.used_names)
        self.used_names.add(symbol)
        self.function_by_symbol[symbol] = function = _function_of_external_region(region, symbol)
        span = merge_spans(m.span for m in region.members)
        target = GlobalVar(symbol, span, function.checked_type)
        args = [self.new[i] for i in region.inputs]
        call = Call(target, args, span=span, checked_type=function.body.checked_type)
        if region.has_single_unflattened_output:
            self.new[next(iter(region.outputs))] = call
            return
        tensors = iter(_flatten_to_tensors(call))
        for output in region.outputs:
            self.new[output] = _rebuild_tuple_from_tensors(output, tensors)


def _function_of_external_region(region: _Region, symbol: str) -> Function:
    """Return the function that computes a region for an external compiler.

    Its result is one tensor, or a flat tuple of the tensors of all outputs.
    """
    params = [Var(f"{symbol}_i{k}", type_of(i)) for k, i in enumerate(region.inputs)]
    body: dict[Expr, Expr] = dict(zip(region.inputs, params, strict=True))
    for member in region.members:
        body[member] = map_children(member, lambda c: body.get(strip_compiler_marks(c), strip_compiler_marks(c)))
    outputs = [body[o] for o in region.outputs]
    result = (
        outputs[0]
        if region.has_single_unflattened_output
        else Tuple([t for o in outputs for t in _flatten_to_tensors(o)])
    )
    attrs = {"Compiler": region.compiler, "Primitive": 1, "Inline": 1, "global_symbol": symbol}
    span = merge_spans(m.span for m in region.members)
    return Function(params, result, result.checked_type, None, attrs, span)


@dataclass(frozen=True, repr=False)
class PartitionGraph(Pass[IRModule]):
    """Pass that moves each region to a function `tvmgen_MOD_COMPILER_main_NUMBER`, for which an
    external compiler generates code.

    mod_name         MOD
    bind_constants   True: constants become part of the functions; False: they are arguments

    A region whose function would depend on its own results is split. All marks outside of branches,
    lets and closures are removed.
    """

    mod_name: str = "default"
    bind_constants: bool = True

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = with_inferred_types(module)
        functions = dict(start.functions)
        for name, function in start.functions.items():
            regions = (
                {}
                if is_excluded_from_passes(function)
                else _find_compiler_regions_by_node(function.body, self.bind_constants)
            )
            if not regions:
                continue
            prefix = "_".join(p for p in ("tvmgen", self.mod_name, "{}", name) if p)
            partition = _Partition(prefix, IRModule(functions), regions)
            body = partition.replace_regions_by_calls(function.body)
            functions[name] = function.with_body(body)
            functions.update(partition.function_by_symbol)
        result = start.with_functions(functions)
        return module if result is start else infer_module(result)
