# SPDX-License-Identifier: Apache-2.0
"""Blocks: bodies of functions, branches of ifs and clauses of matches, and in which of them each node belongs.

A node belongs to the innermost block that contains all of its uses.

blocks = Blocks(list(post_order(function)))
blocks.home[node]                                # its block
node in blocks.spread                            # several blocks use it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aotc.ir import Op
from aotc.relay.expr import Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, Var
from aotc.relay.graph_api import children, pattern_vars


@dataclass(slots=True, eq=False)
class Block:
    """A body or branch, what it is inside of, and the lets that it begins with."""

    outer: Block | None = None
    depth: int = 0
    lets: list[tuple[Var, Expr]] = field(default_factory=list)

    def inner(self) -> Block:
        """A new block inside of this one."""
        return Block(self, self.depth + 1)

    def around(self, body: Expr) -> Expr:
        """`body` below the lets of the block."""
        for var, value in reversed(self.lets):
            body = Let(var, value, body, value.span)
        return body


def _common(a: Block, b: Block) -> Block:
    """The innermost block that is around two blocks."""
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.outer is not None
        a = a.outer
    return a


def left_alone(node: Expr) -> bool:
    """Whether a node is a function whose body is someone else's: a fused one, or one for another compiler."""
    return isinstance(node, Function) and (node.is_primitive or "Compiler" in node.attrs)


def outside_scopes(expr: Expr) -> bool:
    """Whether regions may lie below `expr`: what branches, lets and closures hold stays where it is."""
    return not isinstance(expr, (Function, If, Let, Match))


def is_atom(node: Expr) -> bool:
    """Whether a node is used as it is, needing no name."""
    return isinstance(node, (Var, GlobalVar, Constant, Op, Constructor))


def _used_in(node: Expr, block: Block, as_text: bool) -> Iterator[tuple[Expr, Block]]:
    """The children of a node with the blocks that they are used in; those of bodies and branches are new."""
    if left_alone(node) and not as_text:
        return
    match node:
        case Function():
            inner = block.inner()
            yield from ((child, inner) for child in children(node))
        case If():
            yield from ((node.cond, block), (node.true_branch, block.inner()), (node.false_branch, block.inner()))
        case Match():
            yield node.data, block
            for clause in node.clauses:
                inner = block.inner()
                yield from ((child, inner) for child in (*pattern_vars(clause.lhs), clause.rhs))
        case Let():
            rest = block.inner() if as_text else block
            yield from ((node.var, rest), (node.value, block), (node.body, rest))
        case _:
            yield from ((child, block) for child in children(node))


class Blocks:
    """Where each node of a function belongs.

    home     the block of each node
    inner    the new blocks of functions (one), ifs (two), matches (one a clause) and, where these have any, lets
    spread   nodes that are used in several blocks
    """

    def __init__(self, order: list[Expr], as_text: bool = False) -> None:
        """`as_text`: what follows a let is a block, too, and all functions are looked into."""
        self.home: dict[Expr, Block] = {order[-1]: Block()}
        self.inner: dict[Expr, list[Block]] = {}
        self.spread: set[Expr] = set()
        for node in reversed(order):
            if node not in self.home:
                continue
            uses = list(_used_in(node, self.home[node], as_text))
            self.inner[node] = list(dict.fromkeys(b for _, b in uses if b is not self.home[node]))
            for child, block in uses:
                self._use(child, block)
            if isinstance(node, Let) and node in self.spread:
                self.spread.add(node.body)  # the value of a let is that of its body

    def _use(self, child: Expr, block: Block) -> None:
        known = self.home.setdefault(child, block)
        if known is not block:
            self.home[child] = _common(known, block)
            self.spread.add(child)
