# SPDX-License-Identifier: Apache-2.0
"""AnnotateTarget and MergeCompilerRegions: which operators an external compiler takes, and how many at once.

nn.relu(exp(%x))
compiler_end(nn.relu(compiler_begin(compiler_end(exp(compiler_begin(%x, "mine")), "mine"), "mine")), "mine")
compiler_end(nn.relu(exp(compiler_begin(%x, "mine"))), "mine")                      # merged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir import Op, get_op_attr
from aotc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem
from aotc.relay.op.annotation import compiler_begin, compiler_end
from aotc.relay.transform.base import FunctionPass
from aotc.relay.transform.regions import convex_groups, is_leaf, is_mark, marked, outside_scopes, unmarked
from aotc.relay.visitor import children, post_order, with_children


def supports(expr: Call, target: str) -> bool:
    """Whether the external compiler `target` takes a call: it says so of the operator, or names the composite."""
    match expr.op:
        case Op(name=name):
            check = get_op_attr(name, f"target.{target}")
            return bool(check(expr)) if callable(check) else bool(check)
        case Function(attrs=attrs):
            return str(attrs.get("Composite", "")).startswith(f"{target}.")
        case _:
            return False


def _with_marks(root: Expr, labels: dict[Expr, str], groups: dict[Expr, int]) -> Expr:
    """`root` with marks where edges enter and leave the groups of labelled nodes, and nowhere else.

    A labelled node without a group is a region of its own.
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
            keep = is_leaf(node) or not outside_scopes(node)
            new[node] = node if keep else with_children(node, tuple(operand(node, c) for c in children(node)))
    return ended(unmarked(root))


def _with_body(function: Function, body: Expr) -> Function:
    return Function(function.params, body, function.ret_type, function.attrs, function.span)


@dataclass(frozen=True, repr=False)
class AnnotateTarget(FunctionPass):
    """Put compiler_begin and compiler_end around each call that an external compiler takes.

    targets                names of external compilers, or one name; the first that takes a call gets it
    include_non_call_ops   tuples and their fields go where all that they are made of goes

    The others have no marks.  What lies in branches, lets and closures is left alone: ToGraphNormalForm first
    makes graphs of lets.  Marks that are there stay.
    """

    opt_level = 0

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
        return _with_body(function, _with_marks(root, labels, convex_groups(root, before)))

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
    """Merge regions of one compiler where one gives another its inputs, unless a path between them leaves both."""

    opt_level = 0

    def rewritten(self, function: Function) -> Function:
        root = function.body
        labels = marked(root)
        if not labels:
            return function
        return _with_body(function, _with_marks(root, labels, convex_groups(root, labels, across=True)))
