# SPDX-License-Identifier: Apache-2.0
"""Type inference: return a module or expression with the type of every node filled in, or report
all type errors.

Types propagate from arguments to results and, through `Op.refine`, from uses back to variables,
until a fixpoint. Nodes whose types are already right stay the same objects.

    w = Var("w")                                             # no type
    infer_expr(dense(x, w, units=8))                         # %w is solved: Tensor[(8, k), float32]
    infer_module(module)                                     # global functions, recursion included
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

from aotc.ir import AotcError, Diagnostic, GlobalVar, IncompleteType, Op, check_arity, infer_op, nearest
from aotc.ir.types import FuncType, RefType, TensorType, TupleType, Type, TypeCall, is_complete, with_types
from aotc.relay import expr as graph_api
from aotc.relay.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, inner
from aotc.relay.expected_types import expected_fields, expected_types
from aotc.relay.expr import Call, Callee, Constant, Constructor, Expr, Function, If, Let, Match, RefRead, RefWrite
from aotc.relay.graph_api import IRModule, Tuple, TupleGetItem, Var, instance, join_types, merge_types, miscounted
from aotc.relay.match_exhaustiveness import unmatched_cases
from aotc.relay.type_hints import clause_for, conversion, fields_of
from aotc.relay.visitor import children, depth_first, kind_of, with_children


class _Failed(Enum):
    """Marker for the type of an expression whose error was reported; errors that follow from it are
    not reported.
    """

    FAILED = auto()


_FAILED: Final = _Failed.FAILED
Known: TypeAlias = "Type | _Failed | None"
Signature: TypeAlias = "Callable[[GlobalVar], Known]"


class _Unsettled(Exception):
    """Exception: a type that is needed has failed or is not known yet; `known` is _FAILED or None."""

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.known = known


class _Step(Enum):
    """Step of inference at a node: some steps are executed before its children, or between them."""

    FINISH = auto()  # the node's type follows from its children's types
    DECLARE = auto()  # a let: the type of a recursive function follows from its annotations
    BIND_LET = auto()  # a let: its variable gets the type of the value
    BIND_MATCH = auto()  # a match: variables of patterns get types from the matched value
    BIND_CALL = auto()  # a call of a function literal: its parameters get the types of the arguments


# --- one function or expression


class _Inference:
    """Type inference for all nodes below one root."""

    def __init__(self, root: Expr, signature: Signature) -> None:
        self.root = root
        self.steps = list(depth_first([(_Step.FINISH, root)], _due_before))
        self.types: dict[Expr, Known] = {}
        self.problems: list[Diagnostic] = []
        self.signature = signature
        self._known = 0

    def callees(self) -> list[str]:
        """Return the names of the global functions to which the expression refers."""
        return [node.name for step, node in self.steps if isinstance(node, GlobalVar) and step is _Step.FINISH]

    def solve(self) -> bool:
        """Repeat sweeps over all nodes until nothing new is inferred; return True if anything was
        inferred.
        """
        before = self._known
        while True:
            start = self._known
            for step, node in self.steps:
                self._take(step, node)
            if self._known == start or all(self.type_of(n) is not None for _, n in self.steps):
                return self._known > before

    def type_of(self, node: Expr) -> Known:
        return self.types.get(node)

    def _learn(self, node: Expr, ty: Known) -> None:
        if ty is not None and self.types.get(node) is None:
            self.types[node] = ty
            self._known += 1

    def _take(self, step: _Step, node: Expr) -> None:
        if step is _Step.FINISH:
            if self.types.get(node) is None:
                try:
                    self._learn(node, _TYPE_OF[kind_of(node).name](self, node))
                except _Unsettled as stop:
                    self._learn(node, stop.known)
        elif isinstance(node, Let):
            self._bind_let(step, node)
        elif isinstance(node, Match):
            for clause in node.clauses:
                for target, ty in expected_fields(node.data, clause.lhs):
                    self._assign(target, ty)
                _bind_pattern(self, clause.lhs, self.type_of(node.data), node)
        elif isinstance(node, Call) and isinstance(node.op, Function):
            for param, arg in zip(node.op.params, node.args, strict=False):
                self._assign(param, self.type_of(arg))

    def _bind_let(self, step: _Step, node: Let) -> None:
        declared = node.var.annotation
        value = self.type_of(node.value)
        if step is _Step.DECLARE:
            self._learn(node.var, declared or _declared_type(node.value))
        elif isinstance(value, _Failed) or value is None:
            self._learn(node.var, value)
        elif declared is not None and merge_types(declared, value) is None:
            text = f"%{node.var.name} is declared as {declared}, its value is {value}"
            self.problems.append(Diagnostic("type", text, node.span, hint=f"declare it as {value}, or leave that out"))
            self._learn(node, _FAILED)
        else:
            self._learn(node.var, value)

    def _assign(self, node: Expr, ty: Known) -> None:
        """Assign a type solved from a use to an unannotated variable, or to the fields of a tuple."""
        stack: list[tuple[Expr, Known]] = [(node, ty)]
        while stack:
            target, found = stack.pop()
            if isinstance(target, Var) and target.annotation is None:
                self._learn(target, found)
            elif isinstance(target, Tuple) and isinstance(found, TupleType):
                stack.extend(zip(target.fields, found.fields, strict=False))

    def settled(self, nodes: Sequence[Expr]) -> list[Type]:
        """Return the inferred types of nodes; raise _Unsettled if one has failed or is unknown."""
        known = [self.type_of(n) for n in nodes]
        if _FAILED in known:
            raise _Unsettled(_FAILED)
        types = [t for t in known if t is not None and not isinstance(t, _Failed)]
        if len(types) < len(known):
            raise _Unsettled(None)
        return types

    def _reject(self, node: Expr, message: str, hint: str) -> NoReturn:
        self.problems.append(Diagnostic("type", message, node.span, hint=hint))
        raise _Unsettled(_FAILED)

    def call(self, node: Call) -> Type:
        if not isinstance(node.op, Op):
            return self._apply(node, node.op)
        try:
            check_arity(node.op, len(node.args))
            self._refine(node, node.op)
            return infer_op(node.op, node.attrs, self.settled(node.args), node.span)
        except AotcError as error:
            self.problems.extend(error.at(node.span).diagnostics)
            raise _Unsettled(_FAILED) from None

    def _refine(self, node: Call, op: Op) -> None:
        """Assign types to untyped arguments that the operator's rule can solve backwards."""
        known = [self.type_of(a) for a in node.args]
        if op.refine is None or None not in known or _FAILED in known:
            return
        solved = op.refine(node.attrs, [t for t in known if not isinstance(t, _Failed)])
        for arg, ty in zip(node.args, solved, strict=False):
            self._assign(arg, ty)

    def _apply(self, node: Call, function: Callee) -> Type:
        """Return the result type of a call of a function value; report an error if the arguments do
        not fit.
        """
        (callee,) = self.settled([function])
        if not isinstance(callee, FuncType):
            self._reject(node, f"a value of type {callee} is called as a function", "call an operator, @function or fn")
        if len(callee.arg_types) != len(node.args):
            text = f"the function takes {len(callee.arg_types)} arguments, got {len(node.args)}"
            self._reject(node, text, f"its type is {callee}")
        if callee.type_params:
            callee = instance(callee, self.settled(node.args))
        for arg, wanted in zip(node.args, callee.arg_types, strict=True):
            self._assign(arg, wanted)
        for k, (have, wanted) in enumerate(zip(self.settled(node.args), callee.arg_types, strict=True)):
            if merge_types(have, wanted) is None:
                self._reject(node, f"argument {k} is {have}, the function takes {wanted}", conversion(have, wanted))
        return callee.ret_type

    def field(self, node: TupleGetItem) -> Type:
        (ty,) = self.settled([node.tuple_value])
        if not isinstance(ty, TupleType):
            self._reject(node, f"field {node.index} is taken of {ty}, which is no tuple", fields_of(ty))
        if not 0 <= node.index < len(ty.fields):
            self._reject(node, f"field {node.index} is outside the tuple {ty}", fields_of(ty))
        return ty.fields[node.index]

    def choice(self, node: If) -> Known:
        cond = self.type_of(node.cond)
        if isinstance(cond, (TensorType, TupleType, FuncType)) and cond != TensorType((), "bool"):
            self._reject(
                node, f"the condition must be a bool scalar, got {cond}", conversion(cond, TensorType((), "bool"))
            )
        yes, no = self.type_of(node.true_branch), self.type_of(node.false_branch)
        if isinstance(yes, _Failed) or isinstance(no, _Failed):
            return _FAILED
        if yes is None or no is None:
            # a recursive branch has the type of the other branch
            return yes or no
        return join_types(yes, no) or self._reject(node, f"the branches have types {yes} and {no}", conversion(no, yes))

    def function(self, node: Function) -> Type:
        body = self.type_of(node.body)
        if isinstance(body, _Failed):
            raise _Unsettled(_FAILED)
        if body is None and node.ret_type is not None:
            for target, ty in expected_types(node.body, node.ret_type, self.settled):
                self._assign(target, ty)
        params = self.settled(node.params)
        declared = node.ret_type
        if body is None or declared is None:
            if (result := body or declared) is None:
                raise _Unsettled(None)
            return FuncType(params, result, node.type_params)
        merged = merge_types(body, declared)
        if merged is None:
            text = f"the function returns `{body}`, which does not match the declared `{declared}`"
            self._reject(node, text, conversion(body, declared))
        return FuncType(params, merged, node.type_params)

    # --- results

    def unknown(self) -> list[Diagnostic]:
        """Return diagnostics for what was not inferred: the variables, or one other node if all
        variables are known.
        """
        nodes = dict.fromkeys(n for _, n in self.steps if self.type_of(n) is None and not isinstance(n, Op))
        named = [n for n in nodes if isinstance(n, (Var, GlobalVar))]
        return [
            Diagnostic("type-unknown", f"cannot infer the type of {mention(n)}", n.span, hint="annotate it")
            for n in named or list(nodes)[:1]
        ]

    def rebuilt(self) -> Expr:
        """Return the root expression with all types filled in."""
        memo: dict[Expr, Expr] = {}
        for step, node in self.steps:
            if step is _Step.FINISH:
                memo[node] = self._typed(node, memo)
        return memo[self.root]

    def _typed(self, node: Expr, memo: dict[Expr, Expr]) -> Expr:
        ty = self.type_of(node)
        if isinstance(node, Op) or ty is None or isinstance(ty, _Failed):
            return node
        if isinstance(node, Var):
            if node.checked_type == ty and (node.annotation is not None or not is_complete(ty)):
                return node
            return Var(node.name, ty, node.span) if is_complete(ty) else graph_api.with_type(node, ty)
        old = children(node)
        fresh = tuple(map(memo.__getitem__, old))
        new = node if fresh == old else with_children(node, fresh)
        if isinstance(new, Function) and isinstance(ty, FuncType) and is_complete(result := ty.ret_type):
            new = new if new.ret_type == result else replace(new, ret_type=result)
        return new if isinstance(new, (Op, Constant, Constructor)) else graph_api.with_type(new, ty)  # type: ignore[type-var]


def _bind_pattern(inference: _Inference, pattern: Pattern, ty: Known, node: Match) -> None:
    """Assign types to the variables of a pattern that matches values of type `ty`; report an error
    if it cannot match.
    """
    if ty is None or isinstance(ty, _Failed | IncompleteType):
        return
    wanted: Any = None
    match pattern, ty:
        case PatternWildcard(), _:
            return
        case PatternVar(var=var), _:
            if var.annotation is None:
                inference._learn(var, ty)
                return
            wanted = (var.annotation,)
        case PatternConstructor(constructor=c), TypeCall() if c.data and c.belong_to == ty.func:
            own = with_types(c.checked_type, dict(zip(c.data.type_vars, ty.args, strict=False)))
            wanted = own.arg_types
        case PatternTuple(), TupleType():
            wanted = ty.fields
    binds = isinstance(pattern, PatternVar)
    fits = merge_types(wanted[0], ty) if binds else wanted is not None and len(wanted) == len(inner(pattern))
    if not fits:
        text = f"a pattern does not match values of type {ty}"
        inference.problems.append(Diagnostic("type", text, node.span, hint=clause_for(pattern, ty)))
        inference._learn(node, _FAILED)
        return
    for part, part_type in zip(inner(pattern), wanted or (), strict=False):
        _bind_pattern(inference, part, part_type, node)


def _matched(inference: _Inference, node: Match) -> Known:
    if _FAILED in (found := [inference.type_of(c.rhs) for c in node.clauses]):
        return _FAILED
    known = [ty for ty in found if ty is not None and not isinstance(ty, _Failed)]
    for ty in known[1:]:
        known[0] = join_types(known[0], ty) or inference._reject(
            node, f"clauses have types {known[0]} and {ty}", conversion(ty, known[0])
        )
    missing = unmatched_cases(node) if node.complete else []
    if missing:
        text = f"a match does not cover all values: {len(missing)} cases are missing"
        inference._reject(node, text, f"add a clause for {clause_for(missing[0])}, or write match?")
    return known[0] if known else None


def _place(inference: _Inference, node: RefRead | RefWrite) -> Type:
    """Return the type of the value of a reference; report an error if the operand is not a
    reference.
    """
    (ty,) = inference.settled([node.ref])
    if not isinstance(ty, RefType):
        inference._reject(node, f"a value of type {ty} is no reference", "make one of it: ref(value)")
    return ty.value


def _written(inference: _Inference, node: RefWrite) -> Type:
    wanted, (have,) = _place(inference, node), inference.settled([node.value])
    if merge_types(wanted, have) is None:
        text = f"a value of type {have} is written to a reference of type {wanted}"
        inference._reject(node, text, conversion(have, wanted))
    return TupleType(())


#: Type rule of each kind of node, from the types of its children; None or _Unsettled while these
#: are not known.
_TYPE_OF: Final[Mapping[str, Callable[[_Inference, Any], Known]]] = MappingProxyType(
    {
        "var": lambda _, node: node.annotation,
        "global_var": lambda inference, node: inference.signature(node),
        "constant": lambda _, node: node.checked_type,
        "op": lambda _, node: None,
        "call": _Inference.call,
        "tuple": lambda inference, node: TupleType(inference.settled(node.fields)),
        "tuple_getitem": _Inference.field,
        "let": lambda inference, node: inference.type_of(node.body),
        "if": _Inference.choice,
        "match": _matched,
        "constructor": lambda _, node: node.checked_type,
        "ref_create": lambda inference, node: RefType(*inference.settled([node.value])),
        "ref_read": _place,
        "ref_write": _written,
        "function": _Inference.function,
    }
)


def _declared_type(expr: Expr) -> FuncType | None:
    """Return the type of a function if its annotations determine it; None otherwise."""
    if not isinstance(expr, Function) or expr.ret_type is None:
        return None
    params = [p.annotation for p in expr.params if p.annotation is not None]
    return FuncType(params, expr.ret_type, expr.type_params) if len(params) == len(expr.params) else None


def mention(node: Expr) -> str:
    """Return the description of a node for an error message, e.g. "%x" or "the result of nn.relu"."""
    match node:
        case Var():
            return f"%{node.name}"
        case GlobalVar():
            return f"@{node.name}"
        case Call():
            return f"the result of {mention(node.op)}"
        case Op():
            return node.name
        case _:
            return f"a {type(node).__name__}"


def _due_before(task: tuple[_Step, Expr]) -> list[tuple[_Step, Expr]]:
    """Return the inference steps that must precede a step, in the order in which types become
    known.
    """
    match task:
        case _Step.FINISH, Let() as node:
            declare, bind = (_Step.DECLARE, node), (_Step.BIND_LET, node)
            return [(_Step.FINISH, node.var), declare, (_Step.FINISH, node.value), bind, (_Step.FINISH, node.body)]
        case _Step.FINISH, Match() as node:
            rest = [(_Step.FINISH, c) for c in children(node)[1:]]
            return [(_Step.FINISH, node.data), (_Step.BIND_MATCH, node), *rest]
        case _Step.FINISH, Call(op=Function() as function) as node:
            return [*((_Step.FINISH, a) for a in node.args), (_Step.BIND_CALL, node), (_Step.FINISH, function)]
        case _Step.FINISH, node:
            return [(_Step.FINISH, c) for c in children(node)]
        case _:
            return []


# --- modules


class _ModuleInference:
    """Type inference for global functions that call each other."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.functions = {name: _Inference(f, self._signature) for name, f in module.functions.items()}
        self.problems: list[Diagnostic] = []

    def _signature(self, callee: GlobalVar) -> Known:
        if callee.name not in self.functions:
            hint = nearest(callee.name, self.functions) or f"functions: {', '.join(self.functions)}"
            text = f"no function @{callee.name}"
            self.problems.append(Diagnostic("unknown-function", text, callee.span, hint=hint))
            return _FAILED
        inference = self.functions[callee.name]
        return inference.type_of(inference.root) or _declared_type(inference.root)

    def run(self) -> None:
        order = list(depth_first(self.functions, self._callees))
        # the sum evaluates `solve` for every function, without a short circuit
        while sum(self.functions[name].solve() for name in order):
            if all(f.type_of(f.root) is not None for f in self.functions.values()):
                break

    def _callees(self, name: str) -> list[str]:
        return [callee for callee in self.functions[name].callees() if callee in self.functions]


def _report(problems: Iterable[Diagnostic], inferences: Iterable[_Inference]) -> None:
    """Raise all type errors as one AotcError; if there are none, raise an error for types that
    remain unknown.
    """
    parts = list(inferences)
    found = [*problems, *(d for i in parts for d in i.problems)]
    found = found or [d for i in parts for d in i.unknown()]
    if found:
        raise AotcError.collect(dict.fromkeys(found))


def infer_module(module: IRModule) -> IRModule:
    """Return `module` with every expression typed; the same object if it was typed.

    A module returned by this function is recognized at no cost. Raise AotcError with one diagnostic
    per ill-typed expression, or per variable whose type nothing determines.
    """
    if module.typed:
        return module
    result = reinfer_module(module)
    result.typed = True
    return result


def reinfer_module(module: IRModule) -> IRModule:
    """Return `module` typed like infer_module, but process every expression even if the module is
    marked as typed.
    """
    _report(miscounted(module), ())
    inference = _ModuleInference(module)
    inference.run()
    _report(inference.problems, inference.functions.values())
    rebuilt = {name: f.rebuilt() for name, f in inference.functions.items()}
    return module.with_functions({name: graph_api.as_function(f) for name, f in rebuilt.items()})


def infer_expr(expr: Expr, module: IRModule | None = None) -> Expr:
    """Return `expr` typed; the global functions that it calls are looked up in `module` and must be
    typed already.

    Raise AotcError with one diagnostic per ill-typed expression.
    """

    def signature(callee: GlobalVar) -> Known:
        if module is None or callee.name not in module:
            hint = nearest(callee.name, module.functions if module else ()) or "give a module that has it"
            raise AotcError("unknown-function", f"no function @{callee.name}", span=callee.span, hint=hint)
        return module[callee.name].checked_type or _declared_type(module[callee.name])

    inference = _Inference(expr, signature)
    inference.solve()
    _report((), [inference])
    return inference.rebuilt()


def infer_function(function: Function, module: IRModule | None = None) -> Function:
    """Return `function` typed, with `ret_type` set; see infer_expr."""
    return graph_api.as_function(infer_expr(function, module))
