# SPDX-License-Identifier: Apache-2.0
"""Lets: sharing of nodes told by variables, and the other way round; variables that nothing uses.

DeadCodeElimination: drop variables that nothing uses.

let %a = nn.relu(%x); let %b = exp(%x); %b
let %b = exp(%x); %b

ToANormalForm and ToBasicBlockNormalForm: variables instead of sharing of nodes.

%0 = nn.relu(%x); add(%0, exp(%0))
let %a = nn.relu(%x); let %b = exp(%a); let %c = add(%a, %b); %c

A block is the body of a function or a branch of an if.  A node belongs to the innermost block
that contains all of its uses.  A-normal form binds every node that is not a variable or constant,
in the order of first use; basic block normal form binds only nodes that are used in several
blocks, so that each block stands on its own.

ToGraphNormalForm: sharing of nodes instead of variables.

let %a = nn.relu(%x); let %b = exp(%a); add(%a, %b)
%0 = nn.relu(%x); add(%0, exp(%0))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aotc.ir import AotcError, Op, RefType, Type, parts
from aotc.relay.analysis import free_vars
from aotc.relay.blocks import Blocks, is_atom, left_alone
from aotc.relay.expr import Call, Constructor, Expr, Function, Let, RefWrite, Var, as_function
from aotc.relay.transform.base import FunctionPass, outside_kernels, rewrite_nodes
from aotc.relay.visitor import children, depth_first, post_order, rebuild, with_children


def _meant(node: Expr, values: Mapping[Expr, Expr]) -> Expr | None:
    """What stands for a let or a variable where `values` has the variable's value; None for other nodes."""
    if isinstance(node, Let):
        return node.body if node.var in values else None
    return values.get(node)


def _meanings_first(root: Expr, values: Mapping[Expr, Expr]) -> Iterator[Expr]:
    """What `root` needs, each node after those that it needs itself: the values of those variables that are used."""

    def below(node: Expr) -> tuple[Expr, ...]:
        meant = _meant(node, values)
        if meant is not None:
            return (meant,)
        return children(node) if outside_kernels(node) else ()

    return depth_first([root], below)


def _holds_reference(ty: Type | None) -> bool:
    return ty is not None and (isinstance(ty, RefType) or any(map(_holds_reference, parts(ty))))


def _may_write(value: Expr) -> bool:
    """Whether a value writes to a reference, or calls a function, which may do so."""
    calls = (n for n in post_order(value) if isinstance(n, RefWrite | Call))
    return any(isinstance(n, RefWrite) or not isinstance(n.op, Op | Constructor) for n in calls)


class DeadCodeElimination(FunctionPass):
    """Remove lets whose variables do not matter to the result, chains of them too.

    Where there are references, lets that write to them or call functions stay.
    """

    opt_level = 1

    def rewritten(self, function: Function) -> Function:
        lets = [n for n in post_order(function) if isinstance(n, Let)]
        pure = not any(isinstance(n, RefWrite) or _holds_reference(n.checked_type) for n in post_order(function))
        values: dict[Expr, Expr] = {n.var: n.value for n in lets if pure or not _may_write(n.value)}
        kept_anyway = [n.value for n in lets if n.var not in values]
        live = {n for root in (function, *kept_anyway) for n in _meanings_first(root, values)}
        live.update(n.var for n in lets if n.var not in values)

        def kept(_: Expr, new: Expr) -> Expr:
            return new.body if isinstance(new, Let) and new.var not in live else new

        return rewrite_nodes(function, kept)


# --- variables instead of sharing


class _Normalizer:
    def __init__(self, function: Function, everything: bool) -> None:
        self.order = list(post_order(function, lambda n: not left_alone(n)))
        self.blocks = Blocks(self.order)
        self.everything = everything
        self.root = function
        # variables that stand for another variable or a constant
        self.same: dict[Expr, Expr] = {}
        # values of lets, with the variables that they are bound to
        self.claimed: dict[Expr, Var] = {}
        self.done: dict[Expr, Expr] = {}
        for node in self.order:
            if isinstance(node, Let):
                self._claim(node)

    def _claim(self, let: Let) -> None:
        value = let.value
        while isinstance(value, Let):
            value = value.body
        if is_atom(value):
            self.same[let.var] = value
        elif self.claimed.setdefault(value, let.var) is not let.var:
            self.same[let.var] = self.claimed[value]

    def _new(self, node: Expr) -> Expr:
        while node in self.same:
            node = self.same[node]
        return node if isinstance(node, Var) else self.done[node]

    def run(self) -> Function:
        for node in self.order:
            if not isinstance(node, Var):
                self.done[node] = self._finish(node)
        return as_function(self.done[self.root])

    def _finish(self, node: Expr) -> Expr:
        """The atom or expression that stands for a node, its let written down where it gets one."""
        if isinstance(node, Let):
            return self._new(node.body)
        value = self._rebuilt(node)
        if node is self.root or is_atom(node):
            return value
        var = self.claimed.get(node)
        if var is None:
            if not self.everything and node not in self.blocks.spread:
                return value
            var = Var("x", span=node.span)
        self.blocks.home[node].lets.append((var, value))
        return var

    def _rebuilt(self, node: Expr) -> Expr:
        if left_alone(node):
            return node
        fresh = [*map(self._new, children(node))]
        # of the last children: a body, or two branches
        inner = self.blocks.inner.get(node, [])
        for k, block in enumerate(inner, len(fresh) - len(inner)):
            fresh[k] = block.around(fresh[k])
        return node if fresh == [*children(node)] else with_children(node, tuple(fresh))


class ToANormalForm(FunctionPass):
    """Every step gets a name, in an order of evaluation; variables, constants and fused functions stay as they are."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        return _Normalizer(function, everything=True).run()


class ToBasicBlockNormalForm(FunctionPass):
    """No node is shared between blocks (bodies of functions, branches of ifs): what they share gets a name."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        return _Normalizer(function, everything=False).run()


# --- sharing instead of variables


def is_recursive(let: Let) -> bool:
    """Whether the value of a let mentions its variable: a recursive function."""
    return isinstance(let.value, Function) and let.var in free_vars(let.value)


class ToGraphNormalForm(FunctionPass):
    """Put the value of each let where its variable is used.  Lets of recursive functions stay."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        if any(isinstance(n, RefWrite) for n in post_order(function)):
            text = "a graph without lets does not say when references are written"
            raise AotcError("control-flow", text, span=function.span, hint="programs with ref_write keep their lets")
        lets = (n for n in post_order(function, outside_kernels) if isinstance(n, Let) and not is_recursive(n))
        values: dict[Expr, Expr] = {let.var: let.value for let in lets}
        memo: dict[Expr, Expr] = {}
        for node in _meanings_first(function, values):
            meant = _meant(node, values)
            if meant is not None:
                memo[node] = memo[meant]
            else:
                memo[node] = rebuild(node, memo.__getitem__) if outside_kernels(node) else node
        return as_function(memo[function])
