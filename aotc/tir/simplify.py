# SPDX-License-Identifier: Apache-2.0
"""The simplifier: rewrite index arithmetic, conditions and loops to equal, simpler ones.

Index expressions are normalized to linear sums (`Linear`), and conditions are decided by interval arithmetic:

    ranges = {i: (0, 15), j: (0, 3)}
    simplify((i * 4 + j) // 4, ranges)          # i
    simplify((i * 4 + j) % 4 < 4, ranges)       # true
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import Binary, all_of, mentioned, operands, with_operands, wrapped
from aotc.tir.expr import BOOL, COMPARE, INDEX, Cast, Const, Expr, Select, Unary, Var, binary, select, unary, walk_once
from aotc.tir.stmt import LAUNCHED, Block, For, If, Stmt, changed, rebuilt, refreshed, substituted, walk_stmts

#: An int, or an infinity where nothing is known.
Bound: TypeAlias = "int | float"
#: Least and greatest value, both included.
Interval: TypeAlias = "tuple[Bound, Bound]"
Ranges: TypeAlias = "Mapping[Var, Interval]"

_ALL: Interval = (-math.inf, math.inf)


@dataclass(slots=True)
class _Scope:
    """The ranges of variables in a scope, with memoized facts about expressions.  Ranges are shared, not copied.

    found   intervals of expressions; without memoization the work would be exponential in the depth
    forms   linear forms of index expressions, by identity, each with the expression to keep it alive
    made    simplified expressions by identity: a shared subexpression is simplified once and stays shared
    """

    known: Ranges
    found: dict[Expr, Interval] = field(default_factory=dict)
    forms: dict[int, tuple[Expr, Linear]] = field(default_factory=dict)
    made: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)


#: What functions take that call each other for the parts of an expression.
_Known: TypeAlias = "Ranges | _Scope"


def _scope(ranges: _Known) -> _Scope:
    return ranges if isinstance(ranges, _Scope) else _Scope(ranges)


@frozen
class Linear:
    """The linear form const + sum(coefficient * atom), without zero coefficients.

    Atoms are variables and nonlinear subexpressions.
    """

    terms: dict[Expr, int] = field(default_factory=dict)
    const: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        return Linear({a: c for a, c in terms.items() if c}, self.const + factor * other.const)

    def coefficient(self, var: Var) -> int | None:
        """The factor of `var`, None if the expression depends on it in another way too."""
        if any(var in walk_once(atom) for atom in self.terms if atom is not var):
            return None
        return self.terms.get(var, 0)

    def depends_on(self, var: Var) -> bool:
        return any(node is var for atom in self.terms for node in walk_once(atom))

    def expr(self) -> Expr:
        """The sum as an expression, positive terms first, the constant last."""
        total: Expr | None = None
        terms = [(atom, wrapped(c)) for atom, c in self.terms.items()]
        for atom, c in sorted(terms, key=lambda item: item[1] < 0):
            if total is None:
                total = atom * c
            else:
                total = total - atom * -c if INDEX.min < c < 0 else total + atom * c
        const = wrapped(self.const)
        if total is None:
            return Const(const, INDEX)
        return total - -const if INDEX.min < const < 0 else total + const


def linear(expr: Expr, ranges: _Known) -> Linear:
    """Return the linear form of an index expression."""
    ranges = _scope(ranges)
    match expr:
        case Const():
            return Linear(const=int(expr.value))
        case Var():
            single = _single(ranges.known.get(expr))
            return Linear(const=int(ranges.known[expr][0])) if single else _atom(expr)
    found = ranges.forms.get(id(expr))
    if found is None:
        found = ranges.forms[id(expr)] = expr, _form(expr, ranges)
    return found[1]


def _form(expr: Expr, ranges: _Scope) -> Linear:
    """Return the linear form of an index expression that has operands."""
    match expr:
        case Binary(op="add"):
            return linear(expr.a, ranges).plus(linear(expr.b, ranges))
        case Binary(op="sub"):
            return linear(expr.a, ranges).plus(linear(expr.b, ranges), -1)
        case Unary(op="neg"):
            return Linear().plus(linear(expr.a, ranges), -1)
        case Binary(op="mul"):
            return _product(linear(expr.a, ranges), linear(expr.b, ranges))
        case Binary(op="floordiv" | "floormod" | "truncdiv" | "truncmod"):
            return _division(expr.op, linear(expr.a, ranges), linear(expr.b, ranges), ranges)
        case Binary(op="min" | "max"):
            return _extreme(expr.op, linear(expr.a, ranges), linear(expr.b, ranges), ranges)
        case _:
            return _atom(_rebuilt(expr, ranges))


def _single(interval: Interval | None) -> bool:
    """Return True if an interval holds exactly one number, as for a loop of one iteration."""
    return interval is not None and interval[0] == interval[1]


def _atom(expr: Expr) -> Linear:
    return Linear(const=int(expr.value)) if isinstance(expr, Const) else Linear({expr: 1})


def _product(a: Linear, b: Linear) -> Linear:
    if not a.terms:
        return Linear().plus(b, a.const)
    if not b.terms:
        return Linear().plus(a, b.const)
    return _atom(binary("mul", a.expr(), b.expr()))


def _division(op: str, a: Linear, b: Linear, ranges: _Scope) -> Linear:
    divisor = b.const
    unknown = b.terms or divisor <= 0 or not _exact(a, ranges)
    if unknown or (op.startswith("trunc") and linear_bounds(a, ranges)[0] < 0):
        return _atom(Binary(op, a.expr(), b.expr()))
    quotient, rest = split_by(a, divisor)
    low, high = linear_bounds(rest, ranges)
    inner = _floordiv_atom(rest, divisor)
    if low > -math.inf and high < math.inf and low // divisor == high // divisor:
        inner = Linear(const=int(low // divisor))
    if op.endswith("div"):
        return quotient.plus(inner)
    if not inner.terms:
        return rest.plus(Linear(const=-divisor * inner.const))
    return _floormod_atom(rest, divisor)


def split_by(a: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Return (q, r) with a == q * divisor + r, where r has the terms that are not multiples of the divisor."""
    whole = {t: c // divisor for t, c in a.terms.items() if c % divisor == 0}
    rest = {t: c for t, c in a.terms.items() if c % divisor}
    return Linear(whole, a.const // divisor), Linear(rest, a.const % divisor)


def _reduced(a: Linear, divisor: int) -> tuple[int, Linear]:
    """Return the greatest common factor of a divisor and all terms, and the sum divided by it."""
    common = math.gcd(divisor, *a.terms.values())
    return common, Linear({t: c // common for t, c in a.terms.items()}, a.const // common)


def _floordiv_atom(a: Linear, divisor: int) -> Linear:
    """Return a // divisor with common factors canceled: (4i + 3) // 8 == i // 2; (i // 2) // 3 == i // 6."""
    common, reduced = _reduced(a, divisor)
    divisor //= common
    if divisor == 1 or not reduced.terms:
        return reduced if divisor == 1 else Linear(const=reduced.const // divisor)
    if reduced.const == 0 and len(reduced.terms) == 1:
        atom, c = next(iter(reduced.terms.items()))
        if c == 1 and isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const):
            return _atom(binary("floordiv", atom.a, int(atom.b.value) * divisor))
    return _atom(binary("floordiv", reduced.expr(), divisor))


def _floormod_atom(a: Linear, divisor: int) -> Linear:
    common, reduced = _reduced(a, divisor)
    if common == 1:
        return _atom(binary("floormod", a.expr(), divisor))
    inner = binary("floormod", reduced.expr(), divisor // common)
    return Linear(const=a.const % common).plus(_atom(inner), common)


def _extreme(op: str, a: Linear, b: Linear, ranges: _Scope) -> Linear:
    low, high = _difference(a, b, ranges)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (op == "max") else b
    return _atom(binary(op, a.expr(), b.expr()))


def recombined(a: Linear, ranges: _Known) -> Linear:
    """Combine quotients and remainders: x // c * (k * c) + x % c * k == x * k.

    The ranges of variables prove further quotients equal to x // c."""
    for atom, k in a.terms.items():
        match atom:
            case Binary(op="floormod", a=x, b=Const(value=c)) if int(c) * k in a.terms.values():
                whole = Linear({atom: 1}).plus(linear(binary("floordiv", x, c), ranges), int(c))
                found = all(a.terms.get(t) == k * factor for t, factor in whole.terms.items())
                if found and len(whole.terms) == 2:
                    return recombined(a.plus(whole, -k).plus(linear(x, ranges), k), ranges)
    return a


def bounds(expr: Expr, ranges: _Known) -> Interval:
    """Return the smallest and largest value of an integer expression; infinite if unknown or if it may wrap around."""
    ranges = _scope(ranges)
    if expr.lanes > 1:
        return _ALL
    if expr.dtype != INDEX:
        return _bounds_atom(expr, ranges)
    form = linear(expr, ranges)
    return linear_bounds(form, ranges) if _exact(form, ranges) else _ALL


def linear_bounds(a: Linear, ranges: _Known) -> Interval:
    """Return the smallest and largest value of a linear form; infinite if unknown."""
    ranges = _scope(ranges)
    ends = [sorted(c * end for end in _bounds_atom(atom, ranges)) for atom, c in a.terms.items()]
    return a.const + sum(low for low, _ in ends), a.const + sum(high for _, high in ends)


def _exact(a: Linear, ranges: _Scope) -> bool:
    """Return True if a linear form provably does not overflow."""
    low = high = a.const
    for atom, c in a.terms.items():
        least, greatest = _bounds_atom(atom, ranges)
        ends = sorted((c * int(max(least, INDEX.min)), c * int(min(greatest, INDEX.max))))
        low, high = low + ends[0], high + ends[1]
    return INDEX.min <= low and high <= INDEX.max


def _difference(a: Linear, b: Linear, ranges: _Scope) -> Interval:
    """Return the smallest and largest value of a - b without overflow; infinite if a sum may overflow."""
    exact = _exact(a, ranges) and _exact(b, ranges)
    difference = recombined(a.plus(b, -1), {})
    return linear_bounds(difference, ranges) if exact or (not difference.terms and not difference.const) else _ALL


def _bounds_atom(atom: Expr, ranges: _Scope) -> Interval:
    if isinstance(atom, Var):
        return ranges.known.get(atom, _ALL)
    known = ranges.found.get(atom)
    if known is None:
        known = ranges.found[atom] = _bounds_operation(atom, ranges)
    return known


def _bounds_operation(atom: Expr, ranges: _Scope) -> Interval:
    match atom:
        case Binary(op="floordiv" | "truncdiv" | "floormod" | "truncmod", b=Const(value=divisor)) if divisor > 0:
            return _bounds_division(atom.op, bounds(atom.a, ranges), int(divisor))
        case Binary(op="min" | "max"):
            pick = min if atom.op == "min" else max
            (a, b), (c, d) = bounds(atom.a, ranges), bounds(atom.b, ranges)
            return pick(a, c), pick(b, d)
        case Binary(op="mul"):
            ends = [_times(x, y) for x in bounds(atom.a, ranges) for y in bounds(atom.b, ranges)]
            return min(ends), max(ends)
        case Select():
            (a, b), (c, d) = bounds(atom.a, ranges), bounds(atom.b, ranges)
            return min(a, c), max(b, d)
        case Cast() if not atom.a.dtype.is_float:
            low, high = _bounds_atom(atom.a, ranges) if atom.a.dtype != INDEX else bounds(atom.a, ranges)
            least, greatest = _bounds_dtype(atom)
            return (low, high) if least <= low and high <= greatest else (least, greatest)
        case _:
            return _bounds_dtype(atom)


def _bounds_dtype(expr: Expr) -> Interval:
    if expr.dtype.is_float or expr.dtype == INDEX:
        return _ALL
    return int(expr.dtype.min), int(expr.dtype.max)


def _times(x: Bound, y: Bound) -> Bound:
    return 0 if 0 in (x, y) else x * y


def _bounds_division(op: str, operand: Interval, divisor: int) -> Interval:
    low, high = operand
    if op == "floormod":
        return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
    if op == "truncmod":
        return (0 if low >= 0 else 1 - divisor), (0 if high <= 0 else min(high, divisor - 1))
    rounded = _quotient if op == "floordiv" else _truncated
    return rounded(low, divisor), rounded(high, divisor)


def _quotient(value: Bound, divisor: int) -> Bound:
    return value if math.isinf(value) else value // divisor


def _truncated(value: Bound, divisor: int) -> Bound:
    return -_quotient(-value, divisor) if value < 0 else _quotient(value, divisor)


def simplify(expr: Expr, ranges: _Known) -> Expr:
    """Simplify an expression, given the inclusive ranges of its variables.

    Integer index arithmetic (int64 scalars) is normalized; floats are left as they are written, but for
    their indices and conditions.
    """
    ranges = _scope(ranges)
    if isinstance(expr, Const):
        return expr
    found = ranges.made.get(id(expr))
    if found is None:
        index = expr.dtype == INDEX and expr.lanes == 1
        simple = recombined(linear(expr, ranges), {}).expr() if index else _rebuilt(expr, ranges)
        found = ranges.made[id(expr)] = expr, simple
    return found[1]


def _rebuilt(expr: Expr, ranges: _Scope) -> Expr:
    match expr:
        case Var() | Const():
            return expr
        case Binary() if expr.op in COMPARE and expr.a.dtype == INDEX and expr.lanes == 1:
            a, b = linear(expr.a, ranges), linear(expr.b, ranges)
            always, never = _SURE[expr.op](*_difference(a, b, ranges))
            return Const(always, BOOL) if always or never else binary(expr.op, a.expr(), b.expr())
        case Select():
            cond = simplify(expr.cond, ranges)
            if isinstance(cond, Const):
                return simplify(expr.a if cond.value else expr.b, ranges)
            return select(cond, simplify(expr.a, ranges), simplify(expr.b, ranges))
        case _:
            return with_operands(expr, tuple(simplify(o, ranges) for o in operands(expr)))


#: Whether `d op 0` holds for every d of [low, high], and whether for none.
_SURE: Final[Mapping[str, Callable[[Bound, Bound], tuple[bool, bool]]]] = {
    "lt": lambda low, high: (high < 0, low >= 0),
    "le": lambda low, high: (high <= 0, low > 0),
    "gt": lambda low, high: (low > 0, high <= 0),
    "ge": lambda low, high: (low >= 0, high < 0),
    "eq": lambda low, high: (low == high == 0, low > 0 or high < 0),
    "ne": lambda low, high: (low > 0 or high < 0, low == high == 0),
}


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """Yield the conditions whose conjunction is `cond`."""
    stack = [cond]
    while stack:
        node = stack.pop()
        if isinstance(node, Binary) and node.op == "and" and node.dtype == BOOL:
            stack += [node.b, node.a]
        else:
            yield node


def half_space(cond: Expr, ranges: _Known) -> Linear | None:
    """Return d such that the index comparison `cond` is equivalent to d >= 0; None for other conditions."""
    if not (isinstance(cond, Binary) and cond.op in ("lt", "le", "gt", "ge") and cond.a.dtype == INDEX):
        return None
    ranges = _scope(ranges)
    a, b = linear(cond.a, ranges), linear(cond.b, ranges)
    difference = a.plus(b, -1)
    if not all(_exact(form, ranges) for form in (a, b, difference)):
        return None
    if cond.op in ("lt", "le"):
        difference = Linear().plus(difference, -1)
    return _undivided(difference.plus(Linear(const=-1)) if cond.op in ("lt", "gt") else difference, ranges)


def _undivided(d: Linear, ranges: _Scope) -> Linear:
    """Return a linear form that is non-negative exactly when d is, without the division if d is +-(x // c) + k."""
    match list(d.terms.items()):
        case [(Binary(op="floordiv", a=x, b=Const(value=c)), 1 | -1 as sign)] if c > 0:
            c = int(c)
            made = Linear(const=d.const * c + (c - 1 if sign < 0 else 0)).plus(linear(x, ranges), sign)
            return made if _exact(made, ranges) else d
    return d


def simplify_stmt(stmt: Stmt, ranges: _Known) -> Stmt:
    """Simplify a statement: normalize indices, remove loops of one iteration and decided branches.

    Affine conditions of a guarded loop body become loop bounds.
    """
    ranges = _scope(ranges)
    match stmt:
        case For():
            return _simplify_for(stmt, ranges)
        case If():
            return _simplify_if(stmt, ranges)
        case _:
            made = rebuilt(stmt, lambda s: simplify_stmt(s, ranges), lambda e: simplify(e, ranges))
            return made.stmts[0] if isinstance(made, Block) and len(made.stmts) == 1 else made


def is_empty(stmt: Stmt) -> bool:
    """Return True if the statement does nothing."""
    return all(isinstance(s, Block) for s in walk_stmts(stmt))


def _simplify_for(loop: For, ranges: _Scope) -> Stmt:
    begin, end = simplify(loop.begin, ranges), simplify(loop.end, ranges)
    inside = {**ranges.known, loop.var: (bounds(begin, ranges)[0], bounds(end, ranges)[1] - 1)}
    if loop.kind in LAUNCHED:  # these say how the kernel is launched
        return replace(loop, body=simplify_stmt(loop.body, inside))
    extent = linear(end, ranges).plus(linear(begin, ranges), -1)
    low, high = linear_bounds(extent, ranges)
    if high <= 0:
        return Block(())
    if low > 0 and high <= loop.step:
        # without its loop, the body is in one block with what may declare the same registers
        return simplify_stmt(substituted(refreshed(loop.body), {loop.var: begin}), ranges)
    body = simplify_stmt(loop.body, inside)
    if is_empty(body):
        return Block(())
    fresh = replace(loop, begin=begin, end=end, body=body)
    if isinstance(body, If) and body.orelse is None:
        return _tightened(fresh, body, inside, ranges)
    return fresh


def _tightened(loop: For, guard: If, inside: Ranges, ranges: _Scope) -> Stmt:
    """Rewrite `For v: If(c, s)`: conditions on v become bounds, conditions without v move out of the loop."""
    begin, end = loop.begin, loop.end
    conditions = list(conjuncts(guard.cond))
    outer: list[Expr] = []
    inner: list[Expr] = []
    for cond in conditions:
        half = half_space(cond, inside) or Linear()
        factor = half.coefficient(loop.var) or 0
        rest = half.plus(Linear({loop.var: 1}), -factor)
        if _invariant(cond, loop):
            outer.append(cond)
        elif not factor or loop.step != 1 or not _invariant(rest.expr(), loop):
            inner.append(cond)
        elif factor > 0:  # v >= ceil(-rest / factor)
            begin = binary("max", begin, binary("floordiv", Linear(const=factor - 1).plus(rest, -1).expr(), factor))
        else:  # v < floor(rest / -factor) + 1
            end = binary("min", end, binary("floordiv", rest.expr(), -factor) + 1)
    if len(inner) == len(conditions):
        return loop
    body = guard.then if not inner else If(all_of(*inner), guard.then)
    fresh: Stmt = replace(loop, begin=begin, end=end, body=body)
    fresh = fresh if not outer else If(all_of(*outer), fresh)
    return simplify_stmt(fresh, ranges)


def _invariant(cond: Expr, loop: For) -> bool:
    """Return True if `cond` is loop-invariant: it reads no loop variable, register or buffer that the loop changes."""
    return changed(loop).isdisjoint(mentioned(cond))


def _simplify_if(stmt: If, ranges: _Scope) -> Stmt:
    cond = simplify(stmt.cond, ranges)
    if isinstance(cond, Const):
        chosen = stmt.then if cond.value else stmt.orelse
        return Block(()) if chosen is None else simplify_stmt(refreshed(chosen), ranges)
    then = simplify_stmt(stmt.then, ranges)
    orelse = None if stmt.orelse is None else simplify_stmt(stmt.orelse, ranges)
    if orelse is None or is_empty(orelse):
        return Block(()) if is_empty(then) else If(cond, then)
    return If(unary("not", cond), orelse) if is_empty(then) else If(cond, then, orelse)
