# SPDX-License-Identifier: Apache-2.0
"""ScopeBuilder: build one expression of lets and branches in program order.

sb = ScopeBuilder()
with sb.if_scope(flag):
    sb.ret(sb.let("t", relay.exp(x)))
with sb.else_scope():
    sb.ret(x)
sb.get()                               # if (flag) { let t = exp(x); t } else { x }
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aotc.ir import AotcError, Type
from aotc.relay.graph_api import Expr, If, ScopeBlock, Var


@dataclass(slots=True, eq=False)
class _Scope(ScopeBlock):
    """State of a block of lets under construction: its pending if, and its result."""

    choice: tuple[Expr, Expr] | None = None
    result: Expr | None = None

    def finish_let_block(self, description: str) -> Expr:
        if self.choice is not None:
            raise AotcError("scope", f"{description} ends after an if_scope", hint="an else_scope must follow it")
        if self.result is None:
            raise AotcError("scope", f"{description} has no result", hint="give it one with ret")
        return self.wrap_in_lets(self.result)


class ScopeBuilder:
    """Builds an expression of lets and branches. Methods raise AotcError if they are called in a
    wrong order.
    """

    def __init__(self) -> None:
        self._scopes = [_Scope()]

    def _require_unfinished_let_block(self, step_description: str) -> _Scope:
        """Return the innermost block; raise AotcError if it already has a result or waits for an
        else_scope.
        """
        scope = self._scopes[-1]
        if scope.result is not None:
            raise AotcError("scope", f"{step_description} after the result of the block")
        if scope.choice is not None:
            raise AotcError("scope", f"{step_description} after an if_scope", hint="an else_scope must follow it")
        return scope

    def let(self, var: Var | str | tuple[str, Type], value: Expr) -> Var:
        """Add a let that binds a value to a variable for the rest of the block, and return the
        variable.

        var     a variable, or the name of a new one, or its name and type
        """
        scope = self._require_unfinished_let_block("let")
        declared = (var, value.checked_type) if isinstance(var, str) else var
        named = Var(*declared) if isinstance(declared, tuple) else declared
        scope.lets.append((named, value))
        return named

    @contextmanager
    def if_scope(self, cond: Expr) -> Iterator[None]:
        """Context manager: a block that is evaluated if `cond` is true; an `else_scope` must follow
        it.
        """
        outer = self._require_unfinished_let_block("if_scope")
        branch = yield from self._build_nested_let_block("the if_scope")
        outer.choice = cond, branch

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """Context manager: the block for a false condition. The resulting if expression is the
        result of the enclosing block.
        """
        outer = self._scopes[-1]
        if outer.choice is None:
            raise AotcError("scope", "an else_scope must follow an if_scope")
        branch = yield from self._build_nested_let_block("the else_scope")
        cond, true_branch = outer.choice
        outer.choice, outer.result = None, If(cond, true_branch, branch)

    def _build_nested_let_block(self, description: str) -> Generator[None, None, Expr]:
        inner = _Scope()
        depth = len(self._scopes)
        self._scopes.append(inner)
        try:
            yield
        finally:
            del self._scopes[depth:]
        return inner.finish_let_block(description)

    def ret(self, value: Expr) -> None:
        """Set the result of the innermost block under construction."""
        self._require_unfinished_let_block("ret").result = value

    def get(self) -> Expr:
        """Return the built expression. Raise AotcError if a block is still open or has no result."""
        if len(self._scopes) > 1:
            raise AotcError("scope", "get inside of a scope")
        return self._scopes[0].finish_let_block("the program")
