# SPDX-License-Identifier: Apache-2.0
"""Symbol table of the Relay parser: scopes of variables and of nodes named %0, %1, ...

names = SymbolTable(cursor)
with names.variable_scope():           # a scope: its bindings end with it
    names.bind_variable("x", Var("x"))
    names.lookup_variable(token)       # AotcError if the variable is not bound
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from aotc.ir import did_you_mean_hint
from aotc.relay.graph_api import Expr, Var, escaping_vars
from aotc.relay.text.lexer import Token
from aotc.relay.text.token_cursor_and_type_grammar import Cursor
from aotc.relay.visitor import free_vars

ExprT = TypeVar("ExprT", bound=Expr)


@dataclass(slots=True)
class _Block:
    """A scope: the names of the variables bound in it so far, and True for `goes_on` until the
    scope ends.
    """

    variables: set[str] = field(default_factory=set)
    goes_on: bool = True


class SymbolTable:
    """Symbol table of one source text.

    A node that was named in a block (%0 = ...) stays visible after the end of the block if it does
    not depend on a variable of the block.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._free: dict[str, Var] = {}
        self._blocks = [_Block()]
        # for each name its variables, with the nesting depth of the binding block, innermost last
        self._bound: dict[str, list[tuple[int, Var]]] = {}
        # for each name of a node (%0, %1, ...) the block in which it was named, and the node
        self._temps: dict[str, tuple[_Block, Expr]] = {}
        self._crossing: list[Token] = []  # uses of named nodes after the end of the naming block

    @contextmanager
    def variable_scope(self) -> Iterator[None]:
        """Context of a block: variables bound inside are unbound at its end."""
        self._blocks.append(_Block())
        yield
        block = self._blocks.pop()
        for name in block.variables:
            self._bound[name].pop()
        block.goes_on = False

    def forget_named_nodes(self) -> None:
        """Remove all named nodes (%0, %1, ...) at the start of another function."""
        self._temps = {}

    # --- variables

    def is_bound_in_innermost_block(self, name: str) -> bool:
        """Return True if the innermost block binds a variable of this name."""
        return name in self._blocks[-1].variables

    def bind_variable(self, name: str, var: Var) -> Var:
        """Bind `name` to a variable until the innermost block ends and return the variable.

        A second binding of the name in one block replaces the first.
        """
        bindings, depth = self._bound.setdefault(name, []), len(self._blocks)
        if bindings and bindings[-1][0] == depth:
            bindings.pop()
        bindings.append((depth, var))
        self._blocks[-1].variables.add(name)
        return var

    def bind_free_variable(self, name: str, var: Var) -> None:
        """Bind `name` to a free variable for the rest of the text; bindings of blocks shadow it."""
        self._free[name] = var
        bindings = self._bound.setdefault(name, [])
        bindings[:] = [(0, var), *(entry for entry in bindings if entry[0])]

    def lookup_variable(self, token: Token) -> Var:
        """Return the variable bound to the name in `token`; raise AotcError if there is none."""
        bindings = self._bound.get(token.text)
        if bindings:
            return bindings[-1][1]
        hint = did_you_mean_hint(token.text, [name for name, variables in self._bound.items() if variables])
        hint = hint or f"make it a parameter, or bind it: let %{token.text} = ...;"
        self._cursor.raise_syntax_error(f"variable %{token.text} is not defined", token, code="undefined", hint=hint)

    # --- nodes

    def define_named_node(self, token: Token, value: Expr) -> None:
        """Give a node the name in `token` (%0, %1, ...); raise AotcError if an open block has used
        the name.
        """
        if token.text in self._temps and self._temps[token.text][0].goes_on:
            self._cursor.raise_syntax_error(f"local variable %{token.text} is defined twice", token, code="redefined")
        self._temps[token.text] = self._blocks[-1], value

    def lookup_named_node(self, token: Token) -> Expr:
        """Return the node with the name in `token` (%0, %1, ...); raise AotcError if there is none."""
        if token.text not in self._temps:
            text = f"local variable %{token.text} has not yet been defined"
            self._cursor.raise_syntax_error(
                text, token, code="undefined", hint=f"write `%{token.text} = ...;` before it"
            )
        block, node = self._temps[token.text]
        if not block.goes_on:
            self._crossing.append(token)
        return node

    def check_named_nodes_in_scope(self, root: ExprT) -> ExprT:
        """Return `root`; raise AotcError if a named node is used where a variable on which it
        depends is out of scope.
        """
        if not self._crossing:
            return root
        unbound_vars = escaping_vars(root).union(free_vars(root)).difference(self._free.values())
        for token in self._crossing:
            for var in (v for v in free_vars(self._temps[token.text][1]) if v in unbound_vars):
                text = f"%{token.text} depends on %{var.name}, which is not defined here"
                self._cursor.raise_syntax_error(
                    text, token, code="undefined", hint=f"use %{token.text} inside, where %{var.name} is bound"
                )
        self._crossing = []
        return root
