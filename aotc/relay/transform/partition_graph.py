# SPDX-License-Identifier: Apache-2.0
"""PartitionGraph: regions between compiler_begin and compiler_end become global functions for that compiler.

def @main(%x) { compiler_end(nn.relu(compiler_begin(%x, "mine")), "mine") }
def @main(%x) { @tvmgen_default_mine_main_0(%x) }
def @tvmgen_default_mine_main_0(%i0, Compiler="mine", Primitive=1, ...) { nn.relu(%i0) }
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from aotc.ir import Op, Pass, PassContext, TupleType, merge_spans
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var, type_of
from aotc.relay.infer import infer_module
from aotc.relay.module import IRModule
from aotc.relay.transform.base import is_left_alone, typed
from aotc.relay.transform.lambda_lift import fresh_name
from aotc.relay.transform.regions import convex_groups, is_leaf, is_mark, marked, outside_scopes, unmarked
from aotc.relay.visitor import children, post_order, rebuild


@dataclass(slots=True)
class _Region:
    compiler: str
    members: list[Expr] = field(default_factory=list)
    inputs: dict[Expr, None] = field(default_factory=dict)
    outputs: dict[Expr, None] = field(default_factory=dict)


def _regions(root: Expr, bind_constants: bool) -> dict[Expr, _Region]:
    """The region of each node that is in one; what enters and leaves them in the order of the graph.

    Tuples and fields alone are no region: there is nothing to compute.
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
            bound = isinstance(used, (Op, Function)) or (bind_constants and isinstance(used, Constant))
            if own is not None and region is not own and not bound:
                own.inputs[used] = None
    if unmarked(root) in found:
        found[unmarked(root)].outputs[unmarked(root)] = None
    return found


def _fields(expr: Expr) -> list[Expr]:
    """The tensors that `expr` consists of, in order."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return [expr]
    parts = expr.fields if isinstance(expr, Tuple) else [TupleGetItem(expr, k) for k in range(len(ty.fields))]
    return [tensor for part in parts for tensor in _fields(part)]


def _packed(expr: Expr, tensors: Iterator[Expr]) -> Expr:
    """An expression of the type of `expr` made of as many of `tensors` as it takes."""
    ty = type_of(expr)
    if not isinstance(ty, TupleType):
        return next(tensors)
    return Tuple([_packed(TupleGetItem(expr, k), tensors) for k in range(len(ty.fields))])


class _Partition:
    """One function of a module, its regions taken out into `made`."""

    def __init__(self, prefix: str, taken: IRModule, regions: dict[Expr, _Region]) -> None:
        self.prefix = prefix  # with the place of the compiler's name, "tvmgen_default_{}_main"
        self.taken = set(taken)
        self.regions = regions
        self.new: dict[Expr, Expr] = {}
        self.made: dict[str, Function] = {}

    def rewrite(self, root: Expr) -> Expr:
        """`root` with calls for its regions; a region is made once all that enters it is."""
        stack = [unmarked(root)]
        while stack:
            node = stack[-1]
            region = self.regions.get(node)
            waiting = [u for u in self._uses(node, region) if u not in self.new]
            stack.extend(reversed(waiting))
            if waiting:
                continue
            stack.pop()
            if node in self.new:
                continue
            if region is None:
                self.new[node] = rebuild(node, self._replacement) if outside_scopes(node) else node
            else:
                self._take_out(region)
        return self.new[unmarked(root)]

    def _replacement(self, used: Expr) -> Expr:
        return self.new.get(unmarked(used), used)

    @staticmethod
    def _uses(node: Expr, region: _Region | None) -> list[Expr]:
        if region is not None:
            return list(region.inputs)
        if is_leaf(node) or not outside_scopes(node):
            return []
        return [u for u in map(unmarked, children(node)) if not is_leaf(u)]

    def _take_out(self, region: _Region) -> None:
        wanted = f"{self.prefix.format(re.sub(r'[^0-9A-Za-z_]', '_', region.compiler))}_{len(self.made)}"
        symbol = fresh_name(wanted, self.taken)
        self.taken.add(symbol)
        self.made[symbol] = function = _function(region, symbol)
        span = merge_spans(m.span for m in region.members)
        target = GlobalVar(symbol, span, function.checked_type)
        call = Call(target, [self.new[i] for i in region.inputs], span=span, checked_type=function.body.checked_type)
        if len(region.outputs) == 1 and not any(isinstance(f, TupleType) for f in _parts(call)):
            self.new[next(iter(region.outputs))] = call
            return
        tensors = iter(_fields(call))
        for output in region.outputs:
            self.new[output] = _packed(output, tensors)


def _parts(expr: Expr) -> tuple[object, ...]:
    ty = type_of(expr)
    return ty.fields if isinstance(ty, TupleType) else ()


def _function(region: _Region, symbol: str) -> Function:
    """The function of a region: a tensor, or the tensors of all its outputs as one flat tuple."""
    params = [Var(f"{symbol}_i{k}", type_of(i)) for k, i in enumerate(region.inputs)]
    body: dict[Expr, Expr] = dict(zip(region.inputs, params, strict=True))
    for member in region.members:
        body[member] = rebuild(member, lambda c: body.get(unmarked(c), unmarked(c)))
    outputs = [body[o] for o in region.outputs]
    single = len(outputs) == 1 and not any(isinstance(f, TupleType) for f in _parts(outputs[0]))
    result = outputs[0] if single else Tuple([t for o in outputs for t in _fields(o)])
    attrs = {"Compiler": region.compiler, "Primitive": 1, "Inline": 1, "global_symbol": symbol}
    return Function(params, result, result.checked_type, attrs, merge_spans(m.span for m in region.members))


@dataclass(frozen=True, repr=False)
class PartitionGraph(Pass[IRModule]):
    """Make a function of each region, called `tvmgen_MOD_COMPILER_main_NUMBER`, that an external generator writes.

    mod_name         MOD
    bind_constants   constants go into the functions; otherwise they are arguments

    A region that would need its own results becomes several.  All marks outside of branches, lets and closures go.
    """

    opt_level = 0

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
            functions[name] = Function(function.params, body, function.ret_type, function.attrs, function.span)
            functions.update(partition.made)
        result = start.with_functions(functions)
        return module if result is start else infer_module(result)
