# SPDX-License-Identifier: Apache-2.0
"""Partition a graph for external compilers: mark supported nodes, merge regions, and make functions
of them.

Regions are convex: a region can become one function without a cycle in the graph.

labels = marked(function.body)                       # from compiler_begin and compiler_end
groups = convex_groups(function.body, labels)        # {node: number of its region}

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
from aotc.relay.dataflow_pattern.groups import is_free, partition
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var, item_of, type_of
from aotc.relay.graph_api import IRModule, fresh_name, infer_module, outside_scopes
from aotc.relay.op.annotation import compiler_begin, compiler_end
from aotc.relay.transform.pass_base import FunctionPass, is_call, is_left_alone, op_call, typed
from aotc.relay.visitor import children, depth_first, post_order, rebuild, with_children


def is_mark(expr: Expr) -> bool:
    """Return True if `expr` is a call of compiler_begin or compiler_end."""
    return is_call(expr, compiler_begin, compiler_end)


def unmarked(expr: Expr) -> Expr:
    """Return the expression inside the compiler_begin and compiler_end calls around `expr`."""
    while (call := op_call(expr, compiler_begin, compiler_end)) is not None:
        expr = call.args[0]
    return expr


def marked(root: Expr) -> dict[Expr, str]:
    """Return the nodes between compiler_end and compiler_begin, each with the compiler of its
    region.
    """
    labels: dict[Expr, str] = {}
    for node in reversed(list(post_order(root, outside_scopes))):  # users first
        end = op_call(node, compiler_end)
        if end is not None:
            inside, compiler = end.args, end.attrs["compiler"]
        elif node in labels and outside_scopes(node):
            inside, compiler = children(node), labels[node]
        else:
            continue
        for child in inside:
            if not is_mark(child) and not is_free(child):
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

    def root(self, group: int) -> int:
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def add(self, uses: set[int]) -> int:
        group = len(self.parent)
        self.parent.append(group)
        self.direct[group] = {self.root(u) for u in uses}
        self.users[group] = set()
        self.needs[group] = 0
        for used in self.direct[group]:
            self.users[used].add(group)
            self.needs[group] |= 1 << used | self.needs[used]
        return group

    def _dependents(self, group: int) -> set[int]:
        return {*depth_first([group], lambda g: {self.root(u) for u in self.users[g]})} - {group}

    def merge(self, a: int, b: int) -> None:
        """Merge two groups of graph nodes unless a path leads from one to the other through a third
        group.
        """
        a, b = sorted((self.root(a), self.root(b)))
        if a == b:
            return
        pair = 1 << a | 1 << b
        others = {self.root(g) for g in self.direct[a] | self.direct[b]} - {a, b}
        if any(self.needs[g] & pair for g in others):
            return
        self.parent[b] = a
        self.direct[a] = others
        self.users[a] = {self.root(u) for u in self.users[a] | self.users[b]} - {a}
        self.needs[a] = (self.needs[a] | self.needs[b]) & ~pair
        del self.direct[b], self.users[b], self.needs[b]
        for user in self._dependents(a):
            self.needs[user] |= 1 << a | self.needs[a]


def convex_groups(root: Expr, labels: dict[Expr, str], across: bool = False) -> dict[Expr, int]:
    """Return the group of each labeled node: neighbors with equal labels are merged greedily if
    this makes no cycle.

    across    True if an edge with compiler_begin or compiler_end on it may join the nodes that it connects
    """
    groups = _Groups()
    number: dict[Expr, int] = {}
    for node in post_order(root, lambda n: not isinstance(n, Function)):
        if is_free(node) or is_mark(node):
            continue
        below = [(c, unmarked(c)) for c in children(node)]
        edges = [(c, plain) for c, plain in below if plain in number]
        number[node] = groups.add({number[plain] for _, plain in edges})
        for child, plain in edges:
            same = node in labels and labels[node] == labels.get(plain)
            if same and (across or child is plain):
                groups.merge(number[plain], number[node])
    return {node: groups.root(number[node]) for node in labels if node in number}


# --- which operators


def supports(expr: Call, target: str) -> bool:
    """Return True if external compiler `target` supports a call: by the operator's attribute, or by
    a composite's name.
    """
    match expr.op:
        case Op(name=name):
            check = get_op_attr(name, f"target.{target}")
            return bool(check(expr)) if callable(check) else bool(check)
        case Function(attrs=attrs):
            return str(attrs.get("Composite", "")).startswith(f"{target}.")
        case _:
            return False


def _with_marks(root: Expr, labels: dict[Expr, str], groups: dict[Expr, int]) -> Expr:
    """Return `root` with compiler_begin and compiler_end exactly where edges enter and leave groups
    of labeled nodes.

    A labeled node without a group is a region of its own.
    """
    new: dict[Expr, Expr] = {}

    def ended(plain: Expr) -> Expr:
        return compiler_end(new[plain], labels[plain]) if plain in labels else new[plain]

    def operand(user: Expr, used: Expr) -> Expr:
        plain = unmarked(used)
        if isinstance(plain, (Op, Function)):
            return used
        if plain in groups and groups[plain] == groups.get(user):
            return new[plain]
        return compiler_begin(ended(plain), labels[user]) if user in labels else ended(plain)

    for node in post_order(root, outside_scopes):
        if not is_mark(node):
            keep = is_free(node) or not outside_scopes(node)
            new[node] = node if keep else with_children(node, tuple(operand(node, c) for c in children(node)))
    return ended(unmarked(root))


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

    def rewritten(self, function: Function) -> Function:
        root = function.body
        before = marked(root)
        labels = dict(before)
        for node in post_order(root, outside_scopes):
            taken = node in labels or is_mark(node) or (node is root and isinstance(node, Tuple))
            target = None if taken else self._target(node, labels)
            if target is not None:
                labels[node] = target
        if len(labels) == len(before):
            return function
        return function.with_body(_with_marks(root, labels, convex_groups(root, before)))

    def _target(self, node: Expr, labels: dict[Expr, str]) -> str | None:
        match node:
            case Call():
                targets = [self.targets] if isinstance(self.targets, str) else self.targets
                return next((t for t in targets if supports(node, t)), None)
            case Tuple() | TupleGetItem() if self.include_non_call_ops:
                found = {labels.get(unmarked(c)) for c in children(node)}
                return found.pop() if len(found) == 1 else None
            case _:
                return None


class MergeCompilerRegions(FunctionPass):
    """Pass that merges adjacent regions of one compiler, unless a path between them leads through
    other nodes.
    """

    def rewritten(self, function: Function) -> Function:
        root = function.body
        labels = marked(root)
        if not labels:
            return function
        groups = convex_groups(root, labels, across=True)
        return function.with_body(_with_marks(root, labels, groups))


# --- composites


@dataclass(frozen=True, repr=False)
class MergeComposite(FunctionPass):
    """Pass that replaces matches of patterns by calls of composite functions; earlier entries take
    precedence.

    table    entries (name, pattern) or (name, pattern, check): check(expr) may reject a match by its root. The name
             is "COMPILER.WHAT" for AnnotateTarget("COMPILER") to select the function
    """

    table: Sequence[tuple[str, DFPattern] | tuple[str, DFPattern, Callable[[Any], bool]]] = ()

    def rewritten(self, function: Function) -> Function:
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
    def gives_output(self) -> bool:
        """True if the region's function returns its only output directly; several outputs, and
        nested tuples, are flattened.
        """
        first, *others = map(type_of, self.outputs)
        return not others and not any(isinstance(f, TupleType) for f in getattr(first, "fields", ()))


def _regions(root: Expr, bind_constants: bool) -> dict[Expr, _Region]:
    """Return for each node the region (nodes for one external compiler) that contains it, with
    inputs and outputs.

    Inputs are in graph order, outputs in the order of their marks or else of the graph. A region of
    only tuples and tuple fields computes nothing and is dropped.
    """
    labels = marked(root)
    groups = convex_groups(root, labels)
    computing = {group for node, group in groups.items() if isinstance(node, Call)}
    by_group: dict[int, _Region] = {}
    found: dict[Expr, _Region] = {}
    nodes = [n for n in post_order(root, outside_scopes) if not is_mark(n)]
    for node in nodes:
        if groups.get(node) in computing:
            found[node] = by_group.setdefault(groups[node], _Region(labels[node]))
            found[node].members.append(node)
    for node in nodes:
        own = found.get(node)
        for used in map(unmarked, children(node) if outside_scopes(node) else ()):
            region = found.get(used)
            if region is not None and region is not own:
                region.outputs[used] = None
            bound = isinstance(used, (Op, Function)) or (bind_constants and _is_constant(used))
            if own is not None and region is not own and not bound:
                own.inputs[used] = None
    if unmarked(root) in found:
        found[unmarked(root)].outputs[unmarked(root)] = None
    ends = [unmarked(n) for n in post_order(root, outside_scopes) if is_call(n, compiler_end)]
    for region in by_group.values():
        marked_first = dict.fromkeys(n for n in ends if n in region.outputs)
        region.outputs = marked_first | region.outputs
    return found


def _is_constant(expr: Expr) -> bool:
    """Return True if `expr` is a constant or a tuple of constants."""
    return all(isinstance(e, Constant) for e in (expr.fields if isinstance(expr, Tuple) else [expr]))


def _fields(expr: Expr) -> list[Expr]:
    """Return the tensors that `expr` consists of, in order."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return [expr]
    return [tensor for k in range(len(ty.fields)) for tensor in _fields(item_of(expr, k))]


def _packed(expr: Expr, tensors: Iterator[Expr]) -> Expr:
    """Rebuild a (nested) tuple of the type of `expr` from the next tensors of an iterator."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return next(tensors)
    return Tuple([_packed(TupleGetItem(expr, k), tensors) for k in range(len(ty.fields))])


class _Partition:
    """Rewrites one function of a module and collects the functions of its regions in `made`."""

    def __init__(self, prefix: str, taken: IRModule, regions: dict[Expr, _Region]) -> None:
        # a template with a placeholder for the compiler's name: "tvmgen_default_{}_main"
        self.prefix = prefix
        self.taken = set(taken)
        self.regions = regions
        self.new: dict[Expr, Expr] = {}
        self.made: dict[str, Function] = {}

    def rewrite(self, root: Expr) -> Expr:
        """Return `root` with each region replaced by a call; a region is built after all of its
        inputs.
        """
        for node in depth_first([unmarked(root)], self._uses):
            if node not in self.new and node in self.regions:
                self._take_out(self.regions[node])
            elif node not in self.new:
                self.new[node] = rebuild(node, self._replacement) if outside_scopes(node) else node
        return self.new[unmarked(root)]

    def _replacement(self, used: Expr) -> Expr:
        return self.new.get(unmarked(used), used)

    def _uses(self, node: Expr) -> list[Expr]:
        if node in self.regions:
            return list(self.regions[node].inputs)
        if is_free(node) or not outside_scopes(node):
            return []
        return [u for u in map(unmarked, children(node)) if not is_free(u)]

    def _take_out(self, region: _Region) -> None:
        wanted = f"{self.prefix.format(re.sub(r'[^0-9A-Za-z_]', '_', region.compiler))}_{len(self.made)}"
        symbol = fresh_name(wanted, self.taken)
        self.taken.add(symbol)
        self.made[symbol] = function = _function(region, symbol)
        span = merge_spans(m.span for m in region.members)
        target = GlobalVar(symbol, span, function.checked_type)
        args = [self.new[i] for i in region.inputs]
        call = Call(target, args, span=span, checked_type=function.body.checked_type)
        if region.gives_output:
            self.new[next(iter(region.outputs))] = call
            return
        tensors = iter(_fields(call))
        for output in region.outputs:
            self.new[output] = _packed(output, tensors)


def _function(region: _Region, symbol: str) -> Function:
    """Return the function that computes a region for an external compiler.

    Its result is one tensor, or a flat tuple of the tensors of all outputs.
    """
    params = [Var(f"{symbol}_i{k}", type_of(i)) for k, i in enumerate(region.inputs)]
    body: dict[Expr, Expr] = dict(zip(region.inputs, params, strict=True))
    for member in region.members:
        body[member] = rebuild(member, lambda c: body.get(unmarked(c), unmarked(c)))
    outputs = [body[o] for o in region.outputs]
    result = outputs[0] if region.gives_output else Tuple([t for o in outputs for t in _fields(o)])
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
        start = typed(module)
        functions = dict(start.functions)
        for name, function in start.functions.items():
            regions = {} if is_left_alone(function) else _regions(function.body, self.bind_constants)
            if not regions:
                continue
            prefix = "_".join(p for p in ("tvmgen", self.mod_name, "{}", name) if p)
            partition = _Partition(prefix, IRModule(functions), regions)
            body = partition.rewrite(function.body)
            functions[name] = function.with_body(body)
            functions.update(partition.made)
        result = start.with_functions(functions)
        return module if result is start else infer_module(result)
