# SPDX-License-Identifier: Apache-2.0
"""Scalar and short-vector expressions of tensor programs.

Values have a `dtype` and `lanes` (1 for a scalar).  Operators build and fold:

    i = Var("i"); x = Buffer("x", DType("float32"), 16)
    Load(x, i * 4 + 1) * 2.0
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, TypeVar

from aotc.ir import DType, SymDim, frozen
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.numpy_semantics import wrap_to_int64

T = TypeVar("T")
#: The type of index arithmetic.
INDEX: Final = DType("int64")
BOOL: Final = DType("bool")

#: `div` is for floats; `floor*` round to minus infinity, `trunc*` to zero, both for integers.  `min` and
#: `max` are NaN-propagating on floats, as numpy.minimum and numpy.maximum; of two zeros, the first one.
ARITHMETIC: Final = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"}
)
#: Bitwise on integers, logical on bool.  A shift by the width or more gives 0 (sign fill for signed shr).
BITWISE: Final = frozenset({"and", "or", "xor", "shl", "shr"})
COMPARE: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def _binary_dunder_method(op: str) -> Callable[[Any, Operand], Expr]:
    return lambda a, b: binary(op, a, b)


def _reflected_dunder_method(op: str) -> Callable[[Any, Operand], Expr]:
    return lambda a, b: binary(op, b, a)


class _Operators:
    """Operator syntax for every expression class; each builds through the folding constructors.

    Three attributes cache facts about a node when they are first requested: `_hash` (see
    `_cache_node_hash`), `_loads` and `_leaves` (see `loads_in` and `vars_and_buffers_in`).
    """

    __slots__: ClassVar[tuple[str, ...]] = ("_hash", "_leaves", "_loads")
    _leaves: tuple[Var | Buffer, ...]
    _loads: tuple[Load, ...]

    def __reduce__(self) -> str | tuple[Any, ...]:
        # kernels have very many: what dataclasses would do looks for the fields of each
        return type(self), tuple([getattr(self, name) for name in self.__slots__])

    __add__, __radd__ = _binary_dunder_method("add"), _reflected_dunder_method("add")
    __sub__, __rsub__ = _binary_dunder_method("sub"), _reflected_dunder_method("sub")
    __mul__, __rmul__ = _binary_dunder_method("mul"), _reflected_dunder_method("mul")
    __truediv__, __rtruediv__ = _binary_dunder_method("div"), _reflected_dunder_method("div")
    __floordiv__, __rfloordiv__ = _binary_dunder_method("floordiv"), _reflected_dunder_method("floordiv")
    __mod__, __rmod__ = _binary_dunder_method("floormod"), _reflected_dunder_method("floormod")
    __lt__, __le__, __gt__, __ge__ = map(_binary_dunder_method, ("lt", "le", "gt", "ge"))
    __and__, __or__, __xor__ = map(_binary_dunder_method, ("and", "or", "xor"))
    __lshift__, __rshift__ = map(_binary_dunder_method, ("shl", "shr"))
    # elementwise comparisons; `==` compares the expressions themselves
    equal, not_equal = _binary_dunder_method("eq"), _binary_dunder_method("ne")

    def __bool__(self) -> NoReturn:
        # `if i < n` and `max(i, n)` would take one branch for all values of `i`
        raise TypeError(f"{type(self).__name__} has no truth value: build an If or a Select, or compare with None")

    def __neg__(self) -> Expr:
        return unary("neg", self)  # type: ignore[arg-type]

    def __invert__(self) -> Expr:
        return unary("not", self)  # type: ignore[arg-type]

    def astype(self, dtype: str) -> Expr:
        """This value converted to `dtype`."""
        return cast(self, dtype)  # type: ignore[arg-type]


def _cache_node_hash(cls: type[T]) -> type[T]:
    """Class decorator that caches the hash of a node.

    The hash combines those of the operands: without the cache, each dictionary look-up would walk
    the whole expression as a tree, even where subexpressions are shared.
    """
    computed = cls.__hash__

    def cached_hash(self: Any) -> int:
        try:
            hash_value: int = self._hash
        except AttributeError:
            hash_value = computed(self)
            object.__setattr__(self, "_hash", hash_value)
        return hash_value

    cls.__hash__ = cached_hash  # type: ignore[method-assign]
    return cls


def _attribute_path_property(path: str, _type: type[T]) -> T:
    """Return a property that reads an attribute path: "a.lanes" is the number of lanes of the
    operand `a`.
    """
    return property(operator.attrgetter(path))  # type: ignore[return-value]


@frozen(eq=False)
class Var(_Operators):
    """A loop variable or a named register.  Compares by identity; the printer makes names unique."""

    name: str
    dtype: DType = INDEX
    lanes: int = 1


@frozen
class Const(_Operators):
    """A literal; `value` is an int, a float or a bool according to `dtype`."""

    value: int | float | bool
    dtype: DType
    lanes: int = 1

    def __eq__(self, other: object) -> bool:
        # repr tells 0.0 from -0.0 and finds nan equal to itself
        return isinstance(other, Const) and (repr(self.value), self.dtype, self.lanes) == (
            repr(other.value),
            other.dtype,
            other.lanes,
        )

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype, self.lanes))

    def __index__(self) -> int:
        return operator.index(self.value)  # type: ignore[arg-type]


@_cache_node_hash
@frozen
class Binary(_Operators):
    """`op` of ARITHMETIC, BITWISE or COMPARE on two operands of one dtype and lane count."""

    op: str
    a: Expr
    b: Expr
    lanes = _attribute_path_property("a.lanes", int)

    @property
    def dtype(self) -> DType:
        return BOOL if self.op in COMPARE else self.a.dtype


@_cache_node_hash
@frozen
class Unary(_Operators):
    """`op` is "neg" or "not" (bitwise on integers, logical on bool)."""

    op: str
    a: Expr
    dtype = _attribute_path_property("a.dtype", DType)
    lanes = _attribute_path_property("a.lanes", int)


@_cache_node_hash
@frozen
class Cast(_Operators):
    """Conversion to another dtype, as numpy's astype; the C printer handles the cases that C leaves
    undefined.
    """

    dtype: DType
    a: Expr
    lanes = _attribute_path_property("a.lanes", int)


@_cache_node_hash
@frozen
class Bitcast(_Operators):
    """Reinterpretation of the bits of `a` as another dtype of equal width."""

    dtype: DType
    a: Expr
    lanes = _attribute_path_property("a.lanes", int)


@_cache_node_hash
@frozen
class Select(_Operators):
    """`a` where `cond` holds, else `b`.  Only the chosen operand is evaluated (a load may be out of
    range).
    """

    cond: Expr
    a: Expr
    b: Expr
    dtype = _attribute_path_property("a.dtype", DType)
    lanes = _attribute_path_property("a.lanes", int)


@_cache_node_hash
@frozen
class Load(_Operators):
    """A load of `lanes` elements of a buffer, starting at flat `index`, `stride` elements apart,
    possibly unaligned.
    """

    buffer: Buffer
    index: Expr
    lanes: int = 1
    stride: int = 1
    dtype = _attribute_path_property("buffer.dtype", DType)

    @property
    def lowest_index_and_extent(self) -> tuple[Expr, int]:
        """The lowest index that is read, and the number of elements from it to the highest index."""
        distance = (self.lanes - 1) * self.stride
        return self.index + min(distance, 0), abs(distance) + 1


@_cache_node_hash
@frozen
class Broadcast(_Operators):
    """A vector of `lanes` copies of a scalar."""

    a: Expr
    lanes: int
    dtype = _attribute_path_property("a.dtype", DType)


@_cache_node_hash
@frozen
class Pack(_Operators):
    """A vector built from scalars of one dtype, one for each lane."""

    parts: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.parts[0].dtype

    @property
    def lanes(self) -> int:
        return len(self.parts)


@_cache_node_hash
@frozen
class Call(_Operators):
    """A call of an elementary function, or of an instruction that is a function of values;
    INSTRUCTIONS has its operand and result types.  All other instructions are statements
    (`aotc.tir.stmt.Execute`).

    fused    True if its definition (`aotc.tir.functions`) uses fused multiply-adds
    """

    name: str
    args: tuple[Expr, ...]
    fused: bool = False

    @property
    def dtype(self) -> DType:
        return INSTRUCTIONS[self.name].result_dtype_and_lanes(self.args[0].dtype, 1)[0]

    @property
    def lanes(self) -> int:
        return INSTRUCTIONS[self.name].result_dtype_and_lanes(BOOL, self.args[0].lanes)[1]


@_cache_node_hash
@frozen
class Element(_Operators):
    """A read of a te tensor at indices.  Only in tensor expressions: scheduling replaces it by
    `Load`.
    """

    tensor: Any  # te.Tensor; the module above this one
    indices: tuple[Expr, ...]
    dtype = _attribute_path_property("tensor.dtype", DType)
    lanes = 1


Expr: TypeAlias = "Var | Const | Binary | Unary | Cast | Bitcast | Select | Load | Broadcast | Pack | Call | Element"
Operand: TypeAlias = "Expr | _Operators | SymDim | int | float | bool"


@frozen(eq=False)
class Buffer:
    """Flat memory: `size` elements of `dtype`, aligned to `align` bytes.  Compares by identity.

    scope: "param" (passed by the caller of the kernel), "workspace" (kernel scratch, planned into
    the arena and passed like a parameter), "stack" (a small array inside the kernel) or "shared"
    (memory that the threads of a device's block share). private: scratch memory that each loop
    iteration writes before it reads it.
    """

    name: str
    dtype: DType
    size: int
    scope: str = "param"
    align: int = 4
    private: bool = False

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def new_private_scratch_buffer(name: str, dtype: DType, size: int, scope: str = "workspace") -> Buffer:
    """Return a buffer of private scratch memory that is aligned to a cache line."""
    return Buffer(name, dtype, size, scope, 64, private=True)


#: Index literals of which there is one object each, by value: tilings and simplification create them very often.
_INDEX_LITERALS: Final[dict[int, Const]] = {}
_MAX_SHARED_INDEX_LITERAL: Final = 1 << 16


def _index_literal(value: int) -> Const:
    """Return the literal of an index; small ones are shared."""
    literal = _INDEX_LITERALS.get(value)
    if literal is None:
        literal = Const(value, INDEX)
        if -_MAX_SHARED_INDEX_LITERAL <= value <= _MAX_SHARED_INDEX_LITERAL:
            literal = _INDEX_LITERALS.setdefault(value, literal)
    return literal


def const(value: int | float | bool, dtype: str = INDEX, lanes: int = 1) -> Const:
    """A literal, its Python value normalized to the dtype (not wrapped)."""
    if lanes == 1 and dtype == INDEX:
        return _index_literal(int(value))
    dt = DType(dtype)
    item: int | float | bool = float(value) if dt.is_float else bool(value) if dt.is_bool else int(value)
    return Const(item, dt, lanes)


_VARIABLE_OF_SYMBOL: Final[dict[str, Var]] = {}
_OP_OF_FORMULA: Final = {"+": "add", "*": "mul", "//": "floordiv", "min": "min", "max": "max"}


def variable_of_symbol(name: str) -> Var:
    """Return the index variable that stands for a symbol of dimensions in expressions."""
    return _VARIABLE_OF_SYMBOL.setdefault(name, Var(name))


def index_of_dim(dim: SymDim) -> Expr:
    """Return a dimension as an index expression over the variables of its symbols."""
    return dim.compute(variable_of_symbol, const, lambda op, a, b: binary(_OP_OF_FORMULA[op], a, b))


def as_expr(value: Operand, like: Expr | None = None) -> Expr:
    """A number or dimension as a value of the dtype and lanes of `like`; expressions unchanged."""
    if isinstance(value, SymDim):
        return index_of_dim(value) if like is None else cast(index_of_dim(value), like.dtype)
    if isinstance(value, (int, float)):
        if like is None:
            return const(value, "bool" if isinstance(value, bool) else "float32" if isinstance(value, float) else INDEX)
        return const(value, like.dtype, like.lanes)
    return value  # type: ignore[return-value]


#: Functions that compute an operation on two index literals, for constant folding.
_INTEGER_FOLDERS: Final[Mapping[str, Callable[[int, int], int]]] = {
    **{op: getattr(operator, op) for op in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    "floordiv": operator.floordiv, "floormod": operator.mod, "min": min, "max": max,
}  # fmt: skip


def _convert_to_common_type(op: str, a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Return two operands as expressions of one type: a Python number becomes a constant of the
    type of the expression that it is combined with.

    Raise TypeError if two expressions differ in dtype or lanes.
    """
    if isinstance(b, (int, float, SymDim)):
        left = as_expr(a)
        return left, as_expr(b, left)
    right: Expr = b  # type: ignore[assignment]
    left = as_expr(a, right)
    if left.dtype != right.dtype or left.lanes != right.lanes:
        raise TypeError(f"{op}: operands are {left.dtype}x{left.lanes} and {right.dtype}x{right.lanes}")
    return left, right


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """Return `a op b`, folded where both operands are index literals or one is a neutral element.

    A Python number gets the type of the expression that it is combined with; raise TypeError if two
    expressions differ in dtype or lanes.
    """
    left, right = _convert_to_common_type(op, a, b)
    if op in ("min", "max") and isinstance(left, Const):
        left, right = right, left  # one comparison is enough where the second one is a number
    folded = _fold_index_or_bool_op(op, left, right)
    return Binary(op, left, right) if folded is None else folded


def _fold_index_or_bool_op(op: str, a: Expr, b: Expr) -> Expr | None:
    """The result of an index (or bool) operation with literal operands; None if there is nothing to
    fold.
    """
    if (dtype := a.dtype) != INDEX:
        is_logical = op in ("and", "or") and dtype == BOOL and a.lanes == 1
        return _fold_bool_op(op, a, b) if is_logical else None
    if a.lanes != 1:
        return None
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is not None and y is not None:
        if op not in _INTEGER_FOLDERS or (y == 0 and op in ("floordiv", "floormod")):
            return None
        value = _INTEGER_FOLDERS[op](int(x), int(y))
        return Const(value, BOOL) if op in COMPARE else _index_literal(wrap_to_int64(value))
    if (op in ("add", "sub") and y == 0) or (op in ("mul", "floordiv") and y == 1):
        return a
    if (op == "add" and x == 0) or (op == "mul" and x == 1):
        return b
    if (op == "mul" and 0 in (x, y)) or (op == "floormod" and y == 1):
        return _index_literal(0)
    return None


def _fold_bool_op(op: str, a: Expr, b: Expr) -> Expr | None:
    for this, other in ((a, b), (b, a)):
        if isinstance(this, Const):
            return other if bool(this.value) == (op == "and") else this
    return None


def unary(op: str, a: Expr) -> Expr:
    """Return `neg` or `not` of a value; index and bool literals are folded."""
    if isinstance(a, Const) and a.lanes == 1:
        if op == "not" and a.dtype == BOOL:
            return Const(not a.value, BOOL)
        if op == "neg" and a.dtype == INDEX:
            return _index_literal(wrap_to_int64(-int(a.value)))
    return Unary(op, a)


def cast(a: Expr, dtype: str) -> Expr:
    """Return `a` converted to `dtype`, or `a` itself if it has that dtype."""
    return a if a.dtype == dtype else Cast(DType(dtype), a)


def bitcast(a: Expr, dtype: str) -> Expr:
    """Return the bits of `a` reinterpreted as `dtype`; raise TypeError if the widths differ."""
    new_dtype = DType(dtype)
    if new_dtype.bits != a.dtype.bits:
        raise TypeError(f"bitcast of {a.dtype} to {dtype}")
    return a if a.dtype == new_dtype else Bitcast(new_dtype, a)


def select(cond: Expr, a: Operand, b: Operand) -> Expr:
    """Return the expression `a if cond else b`, folded if `cond` is a literal."""
    left, right = _convert_to_common_type("select", a, b)
    if isinstance(cond, Const):
        return left if cond.value else right
    return Select(cond, left, right)


def call(name: str, *args: Operand) -> Expr:
    """Return a call of a function or an instruction; Python numbers adopt the dtype of the first
    value.

    Raise TypeError for operands of other types, and for an instruction that is a statement.
    """
    if INSTRUCTIONS[name].execution is not None:
        raise TypeError(f"{name} is a statement, not a function: build it by aotc.tir.instruction_statements")
    first = next(a for a in args if not isinstance(a, (bool, int, float, SymDim)))
    values = tuple(as_expr(a, first) for a in args)  # type: ignore[arg-type]
    if problem := INSTRUCTIONS[name].operand_type_problem((v.dtype, v.lanes) for v in values):
        raise TypeError(problem)
    return Call(name, values)


def minimum(a: Operand, b: Operand) -> Expr:
    """Return the smaller operand, or NaN if either is NaN."""
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """Return the larger operand, or NaN if either is NaN."""
    return binary("max", a, b)


def all_of(*conditions: Expr) -> Expr:
    """Return the conjunction of conditions; true without conditions."""
    result: Expr = Const(True, BOOL)
    for condition in conditions:
        result = binary("and", result, condition)
    return result


def _no_operands(_: Any) -> tuple[()]:
    return ()


_Exprs: TypeAlias = "Callable[[Any], tuple[Expr, ...]]"
#: For each kind of expression its operands, and how it is made of others, folded again.
_OPERANDS_AND_BUILDER_OF_KIND: Final[dict[type, tuple[_Exprs, Callable[..., Any]]]] = {
    Var: (_no_operands, lambda e: e),
    Const: (_no_operands, lambda e: e),
    Binary: (lambda e: (e.a, e.b), lambda e, a, b: binary(e.op, a, b)),
    Unary: (lambda e: (e.a,), lambda e, a: unary(e.op, a)),
    Cast: (lambda e: (e.a,), lambda e, a: cast(a, e.dtype)),
    Bitcast: (lambda e: (e.a,), lambda e, a: bitcast(a, e.dtype)),
    Broadcast: (lambda e: (e.a,), lambda e, a: Broadcast(a, e.lanes)),
    Pack: (lambda e: e.parts, lambda _, *parts: Pack(parts)),
    Select: (lambda e: (e.cond, e.a, e.b), lambda _, cond, a, b: select(cond, a, b)),
    Load: (lambda e: (e.index,), lambda e, index: Load(e.buffer, index, e.lanes, e.stride)),
    Call: (lambda e: e.args, lambda e, *args: Call(e.name, args, e.fused)),
    Element: (lambda e: e.indices, lambda e, *indices: Element(e.tensor, indices)),
}
EXPR_KINDS: Final = tuple(_OPERANDS_AND_BUILDER_OF_KIND)


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions."""
    return _OPERANDS_AND_BUILDER_OF_KIND[type(expr)][0](expr)


def with_operands(expr: Expr, new_operands: tuple[Expr, ...]) -> Expr:
    """Return `expr` with its operands replaced and folded; return `expr` itself if nothing changed."""
    get_operands, build = _OPERANDS_AND_BUILDER_OF_KIND[type(expr)]
    return expr if all(map(operator.is_, get_operands(expr), new_operands)) else build(expr, *new_operands)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every sub-expression, users before operands (shared ones as often as they occur)."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (Var, Const)):
            stack.extend(reversed(operands(node)))


def walk_once(expr: Expr) -> Iterator[Expr]:
    """Every sub-expression, users before operands, an object that is shared by several users only
    once.

    Expressions with shared subexpressions may represent trees of exponential size: use this walk to
    ask which nodes occur, and `walk` only to count occurrences.
    """
    stack, visited_ids = [expr], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in visited_ids:
            continue
        visited_ids.add(id(node))
        yield node
        if not isinstance(node, (Var, Const)):
            stack.extend(reversed(operands(node)))


def loads_in(expr: Expr) -> tuple[Load, ...]:
    """Return each load in an expression once, including loads within indices."""
    try:
        loads = expr._loads
    except AttributeError:
        loads = tuple([n for n in walk_once(expr) if isinstance(n, Load)])
        object.__setattr__(expr, "_loads", loads)
    return loads


def vars_and_buffers_in(expr: Expr) -> tuple[Var | Buffer, ...]:
    """Return each variable of an expression and each buffer that it loads from."""
    try:
        leaves = expr._leaves
    except AttributeError:
        leaves = tuple([n.buffer if isinstance(n, Load) else n for n in walk_once(expr) if isinstance(n, (Load, Var))])
        object.__setattr__(expr, "_leaves", leaves)
    return leaves


def substitute(expr: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Return `expr` with variables replaced and the result folded; shared subexpressions stay
    shared.
    """
    return mapping.get(expr, expr) if isinstance(expr, Var) else _substitute_memoized(expr, mapping, {})


def _substitute_memoized(expr: Expr, mapping: Mapping[Var, Expr], memo: dict[int, Expr]) -> Expr:
    """Implement `substitute`; `memo` memoizes the results by the identity of expressions."""
    match expr:
        case Var():
            return mapping.get(expr, expr)
        case Const():
            return expr
    fresh = memo.get(id(expr))
    if fresh is None:
        fresh = with_operands(expr, tuple([_substitute_memoized(o, mapping, memo) for o in operands(expr)]))
        memo[id(expr)] = fresh
    return fresh
