# SPDX-License-Identifier: Apache-2.0
"""The graph interpreter: evaluates expressions with numpy, through each operator's reference
implementation.

Input: an expression or module, and the values of its inputs. Output: an array, or a (nested) tuple
of arrays.

evaluate(mod, x)                                 # @main(x)
evaluate(fn, x, params={"w": w})                 # a function; parameters by position, then by name
evaluate(relay.add(a, b), params={"a": 1, "b": 2})     # free variables by name
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    DType,
    GlobalVar,
    Op,
    SymDim,
    Task,
    bind_dims_in_attrs,
    check_until_symbols_are_known,
    convert_argument_to_array,
    did_you_mean_hint,
    dims_in_attrs,
    frozen,
    is_shape_compatible_binding_symbols,
    run_recursive_task,
    solve_dims,
)
from aotc.ir.op import infer_op_result_type
from aotc.ir.size_operands import (
    SIZE_CONDITIONS_ATTRIBUTE,
    SIZE_DEFINITIONS_ATTRIBUTE,
    SIZE_OPERANDS_ATTRIBUTE,
    SizeRequirement,
    size_conditions_of_rows,
    size_definitions_of_rows,
    size_operands_of_rows,
)
from aotc.ir.types import FuncType, RefType, TensorType, TupleType, Type, TypeCall
from aotc.relay.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, If, Let, Match, RefCreate, RefRead, RefWrite
from aotc.relay.graph_api import IRModule, Tuple, TupleGetItem, Var
from aotc.relay.visitor import children, dims_in_attributes, free_vars, post_order

#: An array, a tuple of values, a closure, an operator, a constructor, a value of a data type, or a
#: reference.
Value: TypeAlias = "np.ndarray[Any, Any] | tuple[Any, ...] | Closure | Op | Constructor | ConstructorValue | RefValue"


class _Frame(ChainMap[Expr, "Value"]):
    """The values of one function activation; unknown nodes are looked up in the enclosing
    activations.

    pending    number of reads of a node's value that are still to come; values without an entry are not freed
    sizes      values of the symbols in attributes
    """

    def __init__(self, *maps: MutableMapping[Expr, Value]) -> None:
        super().__init__(*maps)
        self.pending: Counter[Expr] = Counter()
        self.sizes: Mapping[str, int] = MappingProxyType({})

    def free_operands_not_read_again(self, node: Expr) -> list[Value]:
        """Free the values of operands that no node reads after `node`, and return them."""
        freed = []
        for child in children(node) if self.pending else ():
            if child in self.pending:
                self.pending[child] -= 1
                if not self.pending[child] and child in self.maps[0]:
                    freed.append(self.maps[0].pop(child))
        return freed


class EvaluationObserver(Protocol):
    """Observer of an evaluation, for example to limit its memory."""

    def check_before_op_call(self, call: Call) -> None:
        """Called before an operator is evaluated."""

    def add_buffers_of_held_value(self, value: Value) -> None:
        """Called when a value was computed and is held from now on, for instance to add its buffers
        to the memory in use.
        """

    def remove_buffers_of_released_value(self, value: Value) -> None:
        """Called when a node or activation that held a value does not need it any more."""


def _read_counts_if_each_node_runs_once(body: Expr) -> Counter[Expr]:
    """Return the number of reads of each node's value in a function body whose nodes are each
    evaluated exactly once.

    The result is empty for a body with branches, lets, matches or references; nodes read by an
    inner function are omitted.
    """
    nodes = list(post_order(body, lambda node: not isinstance(node, Function)))
    if any(isinstance(n, (If, Let, Match, RefCreate, RefRead, RefWrite)) for n in nodes):
        return Counter()
    captured = {inner for n in nodes if isinstance(n, Function) for inner in post_order(n)}
    read = Counter(child for n in nodes if not isinstance(n, Function) for child in children(n))
    return Counter({n: k for n, k in read.items() if isinstance(n, (Call, Tuple, TupleGetItem)) and n not in captured})


@frozen(eq=False)
class Closure:
    """A function value with the activation in which it was created."""

    function: Function
    frame: _Frame


@frozen(eq=False)
class ConstructorValue:
    """A value of a data type: its constructor and its fields."""

    constructor: Constructor
    fields: tuple[Any, ...]

    @property
    def tag(self) -> int:
        return self.constructor.tag


@dataclass(eq=False)
class RefValue:
    """A mutable reference and its current value."""

    value: Any


def evaluate(
    target: Expr | IRModule,
    *args: Any,
    params: Mapping[str, Any] | None = None,
    module: IRModule | None = None,
    watch: EvaluationObserver | None = None,
) -> Any:
    """Return the value of @main of a module, of a function applied to its inputs, or of an
    expression.

    args      inputs by position: arrays, numbers, tuples of them
    params    inputs (or free variables of an expression) by name
    module    defines the global functions; the target itself if it is a module
    watch     observes the evaluation; what it raises ends it

    Raise AotcError for inputs that are missing, superfluous or of the wrong type.
    """
    if isinstance(target, IRModule):
        return evaluate(target.main, *args, params=params, module=target, watch=watch)
    machine = _Machine(module, watch)
    frame = _Frame()
    variables = target.params if isinstance(target, Function) else tuple(free_vars(target))
    if args and not isinstance(target, Function):
        raise AotcError("interp", "pass the values of an expression's free variables by name, as params")
    values = bind_arguments(variables, args, params or {})
    if module is not None and "main" in module and target is module.main:
        frame.sizes = _sizes_of_main(module, variables, values)
        machine.state_conditions(size_conditions_of_rows(module.attrs.get(SIZE_CONDITIONS_ATTRIBUTE, ())), frame.sizes)
    if isinstance(target, Function):
        loose = free_vars(target)
        if loose:
            raise AotcError("interp", f"the function has a free variable %{loose[0].name}", span=loose[0].span)
        return run_recursive_task(machine.call_function_value(Closure(target, frame), values))
    frame.update(zip(variables, values, strict=True))
    frame.sizes = _sizes_of_symbols(variables, values)
    return run_recursive_task(machine.evaluate_node(target, frame))


def call_function_value(callee: Value, args: Sequence[Value], module: IRModule | None = None) -> Any:
    """Return the result of calling a function value, as returned by `evaluate`, on checked
    arguments.
    """
    return run_recursive_task(_Machine(module).call_function_value(callee, args))


def bind_arguments(variables: Sequence[Var], args: Sequence[Any], named_args: Mapping[str, Any]) -> list[Value]:
    """Return the values of the inputs in order, given by position or name and checked against their
    types.

    Raise AotcError for inputs that are missing, superfluous, given twice, or of the wrong type.
    """
    if len(args) > len(variables):
        raise AotcError("interp", f"{len(args)} inputs are given for a function of {len(variables)} parameters")
    names = [v.name for v in variables]
    for name in named_args:
        if name not in names:
            raise AotcError("interp", f"no input is called {name!r}", hint=did_you_mean_hint(name, names))
        if name in names[: len(args)]:
            raise AotcError("interp", f"input {name!r} is given by position and again by name")
    given = dict(zip(variables, args, strict=False))
    missing = [v.name for v in variables if v not in given and v.name not in named_args]
    if missing:
        raise AotcError("interp", f"no value for {', '.join(map(repr, missing))}")
    values = [(v, given[v] if v in given else named_args[v.name]) for v in variables]
    return check_until_symbols_are_known(
        lambda sizes: [_convert_and_check_input(variable, value, sizes) for variable, value in values]
    )


def _convert_and_check_input(var: Var, value: Any, symbol_sizes: dict[str, int]) -> Value:
    ty = var.checked_type
    result = _to_interpreter_value(value, ty)
    if ty is not None and not _match_type_and_bind_symbols(result, ty, symbol_sizes):
        raise AotcError("interp", f"input {var.name!r} must be {ty}, got {_describe_value_type(result)}", span=var.span)
    return result


def _to_interpreter_value(value: Any, ty: Type | None) -> Value:
    """Return an input value converted to the interpreter's representation: arrays, tuples,
    closures.
    """
    match value:
        case Closure() | Op():
            return value
        case tuple() | list() if isinstance(ty, TupleType) and len(value) == len(ty.fields):
            return tuple(map(_to_interpreter_value, value, ty.fields))
        case tuple():
            return tuple(_to_interpreter_value(item, None) for item in value)
        case _:
            return convert_argument_to_array(value, ty)


def _sizes_of_main(module: IRModule, variables: Sequence[Var], values: Sequence[Value]) -> Mapping[str, int]:
    """Return the sizes in the types of the inputs of @main, those that are elements of these inputs, and those that
    formulas define; none if a model has neither of the latter and states no conditions.
    """
    operands = size_operands_of_rows(module.attrs.get(SIZE_OPERANDS_ATTRIBUTE, ()))
    definitions = size_definitions_of_rows(module.attrs.get(SIZE_DEFINITIONS_ATTRIBUTE, ()))
    if not operands and not definitions and not module.attrs.get(SIZE_CONDITIONS_ATTRIBUTE):
        return MappingProxyType({})
    given = {v.name: value for v, value in zip(variables, values, strict=True)}
    try:
        sizes = _sizes_of_symbols(variables, values) | {o.name: o.size_of(given[o.input]) for o in operands}
    except ValueError as error:
        raise AotcError("interp", str(error)) from error
    for definition in definitions:
        value = definition.value(sizes)
        if value is None or not definition.least <= value <= definition.most:
            raise AotcError("interp", f"the size {definition} is {value}, not {definition.least} to {definition.most}")
        sizes[definition.name] = value
    return sizes


def _sizes_of_symbols(variables: Sequence[Var], values: Sequence[Value]) -> dict[str, int]:
    """Return the values of the symbols in the types of variables, for arrays of these types."""
    pairs: list[tuple[Any, Any]] = [(v.checked_type, value) for v, value in zip(variables, values, strict=True)]
    equations: list[tuple[SymDim, int]] = []
    while pairs:
        ty, value = pairs.pop()
        if isinstance(ty, TupleType) and isinstance(value, tuple):
            pairs += zip(ty.fields, value, strict=True)
        elif isinstance(ty, TensorType) and isinstance(value, np.ndarray):
            extents = zip(ty.shape, value.shape, strict=True)
            equations += [(d, size) for d, size in extents if isinstance(d, SymDim) and d.name]
    return solve_dims(equations)[0]


def _match_type_and_bind_symbols(value: Value, ty: Type, symbol_sizes: dict[str, int]) -> bool:
    """Return True if an interpreter value has a type; the first use of a symbolic dimension fixes
    its size in `symbol_sizes`.
    """
    match value, ty:
        case np.ndarray(), TensorType():
            return DType.from_numpy(value) == ty.dtype and is_shape_compatible_binding_symbols(
                ty.shape, value.shape, symbol_sizes
            )
        case tuple(), TupleType():
            return len(value) == len(ty.fields) and all(
                map(_match_type_and_bind_symbols, value, ty.fields, repeat(symbol_sizes))
            )
        case _:
            kind = _VALUE_CLASSES_BY_TYPE.get(type(ty))
            return kind is not None and isinstance(value, kind)


#: Python classes of the values of types other than tensors and tuples.
_VALUE_CLASSES_BY_TYPE: Final[Mapping[type, Any]] = MappingProxyType(
    {FuncType: (Closure, Op, Constructor), TypeCall: ConstructorValue, RefType: RefValue}
)


def _describe_value_type(value: Value) -> str:
    match value:
        case np.ndarray():
            return str(TensorType(value.shape, DType.from_numpy(value)))
        case tuple():
            return f"({', '.join(map(_describe_value_type, value))})"
        case _:
            return "a function"


class _Machine:
    """Evaluates nodes on demand without recursion on the Python stack: each node once, only in
    branches that are executed.
    """

    def __init__(self, module: IRModule | None, watch: EvaluationObserver | None = None) -> None:
        self.module = module
        self._watch = watch
        self.globals = _Frame()
        self._uses: dict[Function, Counter[Expr]] = {}
        self._dynamic_calls: dict[Call, bool] = {}
        self._sized_functions: dict[Function, bool] = {}
        self._found: dict[str, int] = {}
        self._conditions: list[SizeRequirement] = []
        self._stated_sizes: Mapping[str, int] = MappingProxyType({})

    def state_conditions(self, conditions: Sequence[SizeRequirement], sizes: Mapping[str, int]) -> None:
        """Require conditions on the sizes of an evaluation: those on known sizes hold now, others when the evaluation
        finds the last of their sizes. Raise AotcError for one that does not hold.

        sizes    the sizes that are known, by name
        """
        self._stated_sizes = sizes
        self._conditions = [c for c in conditions if not c.symbols <= sizes.keys()]
        for condition in conditions:
            if condition.symbols <= sizes.keys():
                _require_condition(condition, sizes)

    def call_function_value(self, callee: Value, args: Sequence[Value]) -> Task[Value]:
        """Return the result of calling a function value."""
        if isinstance(callee, Constructor):
            return ConstructorValue(callee, tuple(args))
        if not isinstance(callee, Closure):
            raise AotcError("interp", f"a call of {_describe_value_type(callee)}, which is not a function")
        function = callee.function
        if len(args) != len(function.params):
            message = f"{len(args)} arguments for a function of {len(function.params)} parameters"
            raise AotcError("interp", message, span=function.span)
        frame = callee.frame.new_child(dict(zip(function.params, args, strict=True)))
        if function not in self._uses:
            self._uses[function] = _read_counts_if_each_node_runs_once(function.body)
        frame.pending = self._uses[function].copy()
        if self._has_dims_in_attributes(function):
            frame.sizes = {**callee.frame.sizes, **_sizes_of_symbols(function.params, args)}
        self._report_to_observer(args)
        result: Value = yield self.evaluate_node(function.body, frame)
        self._report_to_observer((), frame.maps[0].values())
        return result

    def _report_to_observer(self, held: Iterable[Value], released: Iterable[Value] = ()) -> None:
        """Report to the observer the values that an activation begins to hold, and others that it
        frees.
        """
        if self._watch is not None:
            for value in held:
                self._watch.add_buffers_of_held_value(value)
            for value in released:
                self._watch.remove_buffers_of_released_value(value)

    def evaluate_node(self, node: Expr, frame: _Frame) -> Task[Value]:
        """Evaluate a node unless `frame` holds its value, and return it; the frame frees it after
        its last read.
        """
        value = frame.get(node)
        if value is None:
            value = frame[node] = yield self._evaluate_uncached_node(node, frame)
            self._report_to_observer([value], frame.free_operands_not_read_again(node))
        return value

    def _evaluate_nodes(self, nodes: Sequence[Expr], frame: _Frame) -> Task[list[Value]]:
        values = []
        for node in nodes:
            values.append((yield self.evaluate_node(node, frame)))
        return values

    def _evaluate_uncached_node(self, node: Expr, frame: _Frame) -> Task[Value]:
        value: Value
        match node:
            case Call(op=Op() as op):
                args = yield self._evaluate_nodes(node.args, frame)
                value = self._evaluate_op_call(node, op, args, frame.sizes)
            case Call():
                callee, *args = yield self._evaluate_nodes(children(node), frame)
                value = yield self.call_function_value(callee, args)
            case Tuple():
                value = tuple((yield self._evaluate_nodes(node.fields, frame)))
            case TupleGetItem():
                value = (yield self.evaluate_node(node.tuple_value, frame))[node.index]
            case If():
                cond = yield self.evaluate_node(node.cond, frame)
                value = yield self.evaluate_node(node.true_branch if cond.item() else node.false_branch, frame)
            case Let():
                if isinstance(node.value, Function):  # the function may be recursive
                    frame[node.var] = Closure(node.value, frame)
                frame[node.var] = yield self.evaluate_node(node.value, frame)
                value = yield self.evaluate_node(node.body, frame)
            case Match():
                value = yield self._evaluate_match(node, frame)
            case RefCreate():
                value = RefValue((yield self.evaluate_node(node.value, frame)))
            case RefRead():
                value = (yield self.evaluate_node(node.ref, frame)).value
            case RefWrite():
                place, content = yield self._evaluate_nodes((node.ref, node.value), frame)
                place.value, value = content, ()
            case _:
                value = self._evaluate_leaf(node, frame)
        return value

    def _evaluate_op_call(self, call: Call, op: Op, args: Sequence[Value], sizes: Mapping[str, int]) -> Value:
        if self._watch is not None:
            self._watch.check_before_op_call(call)
        attrs = call.attrs
        if dims_in_attrs(attrs):
            if op.finds is not None:
                self._find_size(call, op.finds, args)
            try:
                attrs = bind_dims_in_attrs(attrs, {**self._found, **sizes} if self._found else sizes)
            except ValueError as error:
                raise AotcError("interp", f"{op.name}: {error}", span=call.span) from error
        if attrs is not call.attrs or self._has_dynamic_argument(call):
            infer_op_result_type(op, attrs, [type_of_array_or_tuple(arg) for arg in args], call.span)
        try:
            return _reference_result_to_value(op.reference(attrs, *args))
        except AotcError as error:  # what only a run can check
            raise error.with_default_span(call.span) from None

    def _find_size(self, call: Call, finds: tuple[str, int], args: Sequence[Value]) -> None:
        """Note the value of the size that a call finds. Raise AotcError if it is negative, or larger than its
        bound.
        """
        name, position = finds
        dim, array = getattr(call.attrs, name), args[position]
        assert isinstance(array, np.ndarray)
        size = array.item()
        if size < 0 or (dim.upper is not None and size > dim.upper):
            bound = "" if dim.upper is None else f", at most {dim.upper}"
            text = f"the call finds the size {size}, but {dim.name} is at least 0{bound}"
            raise AotcError("interp", text, span=call.span)
        self._found[dim.name] = size
        sizes = {**self._stated_sizes, **self._found}
        for condition in self._conditions:
            if dim.name in condition.symbols <= sizes.keys():
                _require_condition(condition, sizes)

    def _has_dims_in_attributes(self, function: Function) -> bool:
        """Return True if an attribute in a function, or in a function in it, is known at run time only."""
        if function not in self._sized_functions:
            self._sized_functions[function] = bool(dims_in_attributes(function))
        return self._sized_functions[function]

    def _has_dynamic_argument(self, call: Call) -> bool:
        """Return True if an operator has an argument whose shape is not static, so that the type rule
        has not seen the sizes of this evaluation.
        """
        if call not in self._dynamic_calls:
            self._dynamic_calls[call] = any(map(_has_dynamic_shape, (a.checked_type for a in call.args)))
        return self._dynamic_calls[call]

    def _evaluate_match(self, node: Match, frame: _Frame) -> Task[Value]:
        data = yield self.evaluate_node(node.data, frame)
        for clause in node.clauses:
            bindings: dict[Expr, Value] = {}
            if _match_pattern_and_bind(clause.lhs, data, bindings):
                frame.update(bindings)
                result: Value = yield self.evaluate_node(clause.rhs, frame)
                return result
        raise AotcError("interp", "no clause of a match expression matches the value", span=node.span)

    def _evaluate_leaf(self, node: Var | GlobalVar | Constant | Op | Function | Constructor, frame: _Frame) -> Value:
        match node:
            case Constant():
                return node.data
            case Function():
                return Closure(node, frame)
            case GlobalVar():
                if self.module is None:
                    raise AotcError("interp", f"@{node.name} is not defined: no module is given", span=node.span)
                return Closure(self.module[node], self.globals)
            case Op() | Constructor():
                return node
            case Var():
                raise AotcError("interp", f"variable %{node.name} has no value", span=node.span)


def _require_condition(condition: SizeRequirement, sizes: Mapping[str, int]) -> None:
    """Raise AotcError for a condition that does not hold."""
    if not condition.holds(sizes):
        values = ", ".join(f"{name} is {sizes[name]}" for name in sorted(condition.symbols))
        raise AotcError("interp", f"{condition} does not hold: {values}")


def _has_dynamic_shape(ty: Type | None) -> bool:
    """Return True for a type of tensors, not all of which have static shapes."""
    match ty:
        case TensorType():
            return not ty.is_static
        case TupleType(fields=fields):
            return any(map(_has_dynamic_shape, fields))
        case _:
            return False


def type_of_array_or_tuple(value: Any) -> Type:
    """Return the type of an array, or of a (nested) tuple of arrays."""
    if isinstance(value, np.ndarray):
        return TensorType(value.shape, DType.from_numpy(value))
    assert isinstance(value, tuple), "operators take arrays and tuples of them"
    return TupleType(map(type_of_array_or_tuple, value))


def _match_pattern_and_bind(pattern: Pattern, value: Any, bindings: dict[Expr, Value]) -> bool:
    """Return True if a value matches a pattern, and add the values of the pattern's variables to
    `bindings`.
    """
    match pattern:
        case PatternVar():
            bindings[pattern.var] = value
            return True
        case PatternConstructor():
            alike = value.constructor is pattern.constructor or value.tag == pattern.constructor.tag
            return alike and all(
                _match_pattern_and_bind(p, v, bindings) for p, v in zip(pattern.patterns, value.fields, strict=True)
            )
        case PatternTuple():
            return all(_match_pattern_and_bind(p, v, bindings) for p, v in zip(pattern.patterns, value, strict=True))
        case PatternWildcard():
            return True


def _reference_result_to_value(value: Any) -> Value:
    """Convert the result of a reference (arrays, numpy scalars, or sequences of them) to an
    interpreter value.
    """
    if isinstance(value, (tuple, list)):
        return tuple(_reference_result_to_value(item) for item in value)
    return np.asarray(value)
