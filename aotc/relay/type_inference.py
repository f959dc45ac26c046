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

from aotc.ir import (
    AotcError,
    Diagnostic,
    GlobalVar,
    IncompleteType,
    Op,
    check_arity,
    did_you_mean_hint,
    infer_op_result_type,
)
from aotc.ir.types import (
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    is_fully_inferred,
    substitute_type_vars,
)
from aotc.relay import expr as graph_api
from aotc.relay.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, subpatterns
from aotc.relay.backward_type_propagation import types_implied_by_pattern_annotations, types_implied_by_result_type
from aotc.relay.expr import Call, Callee, Constant, Constructor, Expr, Function, If, Let, Match, RefRead, RefWrite
from aotc.relay.graph_api import (
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    diagnose_type_argument_counts,
    instantiate_function_type,
    join_types,
    merge_types,
)
from aotc.relay.match_exhaustiveness import unmatched_cases
from aotc.relay.type_error_hints import conversion_hint, correct_pattern_hint, tuple_fields_hint
from aotc.relay.visitor import children, depth_first_post_order, node_kind, with_children


class _FailedType(Enum):
    """Marker for the type of an expression whose error was reported; errors that follow from it are
    not reported.
    """

    FAILED = auto()


_FAILED_TYPE: Final = _FailedType.FAILED
InferredType: TypeAlias = "Type | _FailedType | None"
Signature: TypeAlias = "Callable[[GlobalVar], InferredType]"


class _TypeNotInferred(Exception):
    """Exception: a type that is needed has failed or is not known yet; `known` is _FAILED_TYPE or
    None.
    """

    def __init__(self, known: InferredType) -> None:
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


class _ExpressionInference:
    """Type inference for all nodes below one root."""

    def __init__(self, root: Expr, signature: Signature) -> None:
        self.root = root
        self.steps = list(depth_first_post_order([(_Step.FINISH, root)], _prerequisite_steps))
        self.types: dict[Expr, InferredType] = {}
        self.problems: list[Diagnostic] = []
        self.signature = signature
        self._known = 0

    def referenced_global_functions(self) -> list[str]:
        """Return the names of the global functions to which the expression refers."""
        return [node.name for step, node in self.steps if isinstance(node, GlobalVar) and step is _Step.FINISH]

    def propagate_types_to_fixpoint(self) -> bool:
        """Repeat sweeps over all nodes until nothing new is inferred; return True if anything was
        inferred.
        """
        before = self._known
        while True:
            start = self._known
            for step, node in self.steps:
                self._execute_inference_step(step, node)
            if self._known == start or all(self.inferred_type(n) is not None for _, n in self.steps):
                return self._known > before

    def inferred_type(self, node: Expr) -> InferredType:
        return self.types.get(node)

    def _record_type_if_new(self, node: Expr, ty: InferredType) -> None:
        if ty is not None and self.types.get(node) is None:
            self.types[node] = ty
            self._known += 1

    def _execute_inference_step(self, step: _Step, node: Expr) -> None:
        if step is _Step.FINISH:
            if self.types.get(node) is None:
                try:
                    self._record_type_if_new(node, _TYPE_RULE_BY_NODE_KIND[node_kind(node).name](self, node))
                except _TypeNotInferred as stop:
                    self._record_type_if_new(node, stop.known)
        elif isinstance(node, Let):
            self._infer_let_variable(step, node)
        elif isinstance(node, Match):
            for clause in node.clauses:
                for target, ty in types_implied_by_pattern_annotations(node.data, clause.lhs):
                    self._assign_type_from_use(target, ty)
                _assign_pattern_variable_types(self, clause.lhs, self.inferred_type(node.data), node)
        elif isinstance(node, Call) and isinstance(node.op, Function):
            for param, arg in zip(node.op.params, node.args, strict=False):
                self._assign_type_from_use(param, self.inferred_type(arg))

    def _infer_let_variable(self, step: _Step, node: Let) -> None:
        declared = node.var.annotation
        value = self.inferred_type(node.value)
        if step is _Step.DECLARE:
            self._record_type_if_new(node.var, declared or _annotated_function_type(node.value))
        elif isinstance(value, _FailedType) or value is None:
            self._record_type_if_new(node.var, value)
        elif declared is not None and merge_types(declared, value) is None:
            text = f"%{node.var.name} is declared as {declared}, its value is {value}"
            self.problems.append(Diagnostic("type", text, node.span, hint=f"declare it as {value}, or leave that out"))
            self._record_type_if_new(node, _FAILED_TYPE)
        else:
            self._record_type_if_new(node.var, value)

    def _assign_type_from_use(self, node: Expr, ty: InferredType) -> None:
        """Assign a type solved from a use to an unannotated variable, or to the fields of a tuple."""
        stack: list[tuple[Expr, InferredType]] = [(node, ty)]
        while stack:
            target, target_type = stack.pop()
            if isinstance(target, Var) and target.annotation is None:
                self._record_type_if_new(target, target_type)
            elif isinstance(target, Tuple) and isinstance(target_type, TupleType):
                stack.extend(zip(target.fields, target_type.fields, strict=False))

    def require_inferred_types(self, nodes: Sequence[Expr]) -> list[Type]:
        """Return the inferred types of nodes; raise _TypeNotInferred if a type has failed or
        is unknown.
        """
        known = [self.inferred_type(n) for n in nodes]
        if _FAILED_TYPE in known:
            raise _TypeNotInferred(_FAILED_TYPE)
        types = [t for t in known if t is not None and not isinstance(t, _FailedType)]
        if len(types) < len(known):
            raise _TypeNotInferred(None)
        return types

    def _report_type_error(self, node: Expr, message: str, hint: str) -> NoReturn:
        self.problems.append(Diagnostic("type", message, node.span, hint=hint))
        raise _TypeNotInferred(_FAILED_TYPE)

    def infer_call(self, node: Call) -> Type:
        if not isinstance(node.op, Op):
            return self._infer_function_call(node, node.op)
        try:
            check_arity(node.op, len(node.args))
            self._infer_arguments_backwards(node, node.op)
            return infer_op_result_type(node.op, node.attrs, self.require_inferred_types(node.args), node.span)
        except AotcError as error:
            self.problems.extend(error.with_default_span(node.span).diagnostics)
            raise _TypeNotInferred(_FAILED_TYPE) from None

    def _infer_arguments_backwards(self, node: Call, op: Op) -> None:
        """Assign types to untyped arguments that the operator's rule can solve backwards."""
        known = [self.inferred_type(a) for a in node.args]
        if op.refine is None or None not in known or _FAILED_TYPE in known:
            return
        solved = op.refine(node.attrs, [t for t in known if not isinstance(t, _FailedType)])
        for arg, ty in zip(node.args, solved, strict=False):
            self._assign_type_from_use(arg, ty)

    def _infer_function_call(self, node: Call, callee_expr: Callee) -> Type:
        """Return the result type of a call of a function value; report an error if the arguments do
        not fit.
        """
        (callee,) = self.require_inferred_types([callee_expr])
        if not isinstance(callee, FuncType):
            self._report_type_error(
                node, f"a value of type {callee} is called as a function", "call an operator, @function or fn"
            )
        if len(callee.arg_types) != len(node.args):
            text = f"the function takes {len(callee.arg_types)} arguments, got {len(node.args)}"
            self._report_type_error(node, text, f"its type is {callee}")
        if callee.type_params:
            callee = instantiate_function_type(callee, self.require_inferred_types(node.args))
        for arg, param_type in zip(node.args, callee.arg_types, strict=True):
            self._assign_type_from_use(arg, param_type)
        for k, (have, param_type) in enumerate(
            zip(self.require_inferred_types(node.args), callee.arg_types, strict=True)
        ):
            if merge_types(have, param_type) is None:
                self._report_type_error(
                    node, f"argument {k} is {have}, the function takes {param_type}", conversion_hint(have, param_type)
                )
        return callee.ret_type

    def infer_tuple_field(self, node: TupleGetItem) -> Type:
        (ty,) = self.require_inferred_types([node.tuple_value])
        if not isinstance(ty, TupleType):
            self._report_type_error(
                node, f"field {node.index} is taken of {ty}, which is no tuple", tuple_fields_hint(ty)
            )
        if not 0 <= node.index < len(ty.fields):
            self._report_type_error(node, f"field {node.index} is outside the tuple {ty}", tuple_fields_hint(ty))
        return ty.fields[node.index]

    def infer_if(self, node: If) -> InferredType:
        cond = self.inferred_type(node.cond)
        if isinstance(cond, (TensorType, TupleType, FuncType)) and cond != TensorType((), "bool"):
            self._report_type_error(
                node, f"the condition must be a bool scalar, got {cond}", conversion_hint(cond, TensorType((), "bool"))
            )
        yes, no = self.inferred_type(node.true_branch), self.inferred_type(node.false_branch)
        if isinstance(yes, _FailedType) or isinstance(no, _FailedType):
            return _FAILED_TYPE
        if yes is None or no is None:
            # a recursive branch has the type of the other branch
            return yes or no
        return join_types(yes, no) or self._report_type_error(
            node, f"the branches have types {yes} and {no}", conversion_hint(no, yes)
        )

    def infer_function(self, node: Function) -> Type:
        body = self.inferred_type(node.body)
        if isinstance(body, _FailedType):
            raise _TypeNotInferred(_FAILED_TYPE)
        if body is None and node.ret_type is not None:
            for target, ty in types_implied_by_result_type(node.body, node.ret_type, self.require_inferred_types):
                self._assign_type_from_use(target, ty)
        params = self.require_inferred_types(node.params)
        declared = node.ret_type
        if body is None or declared is None:
            if (result := body or declared) is None:
                raise _TypeNotInferred(None)
            return FuncType(params, result, node.type_params)
        merged = merge_types(body, declared)
        if merged is None:
            text = f"the function returns `{body}`, which does not match the declared `{declared}`"
            self._report_type_error(node, text, conversion_hint(body, declared))
        return FuncType(params, merged, node.type_params)

    # --- results

    def diagnose_unknown_types(self) -> list[Diagnostic]:
        """Return diagnostics for what was not inferred: the variables, or one other node if all
        variables are known.
        """
        nodes = dict.fromkeys(n for _, n in self.steps if self.inferred_type(n) is None and not isinstance(n, Op))
        named = [n for n in nodes if isinstance(n, (Var, GlobalVar))]
        return [
            Diagnostic(
                "type-unknown", f"cannot infer the type of {describe_node_for_message(n)}", n.span, hint="annotate it"
            )
            for n in named or list(nodes)[:1]
        ]

    def rebuild_with_types(self) -> Expr:
        """Return the root expression with all inferred types filled in, the last step of type
        inference.
        """
        memo: dict[Expr, Expr] = {}
        for step, node in self.steps:
            if step is _Step.FINISH:
                memo[node] = self._rebuild_typed_node(node, memo)
        return memo[self.root]

    def _rebuild_typed_node(self, node: Expr, memo: dict[Expr, Expr]) -> Expr:
        ty = self.inferred_type(node)
        if isinstance(node, Op) or ty is None or isinstance(ty, _FailedType):
            return node
        if isinstance(node, Var):
            if node.checked_type == ty and (node.annotation is not None or not is_fully_inferred(ty)):
                return node
            return Var(node.name, ty, node.span) if is_fully_inferred(ty) else graph_api.with_checked_type(node, ty)
        old = children(node)
        fresh = tuple(map(memo.__getitem__, old))
        new = node if fresh == old else with_children(node, fresh)
        if isinstance(new, Function) and isinstance(ty, FuncType) and is_fully_inferred(result := ty.ret_type):
            new = new if new.ret_type == result else replace(new, ret_type=result)
        return new if isinstance(new, (Op, Constant, Constructor)) else graph_api.with_checked_type(new, ty)  # type: ignore[type-var]


def _assign_pattern_variable_types(
    inference: _ExpressionInference, pattern: Pattern, ty: InferredType, match_node: Match
) -> None:
    """Assign types to the variables of a pattern that matches values of type `ty`; report an error
    if it cannot match.
    """
    if ty is None or isinstance(ty, _FailedType | IncompleteType):
        return
    expected_types: Any = None
    match pattern, ty:
        case PatternWildcard(), _:
            return
        case PatternVar(var=var), _:
            if var.annotation is None:
                inference._record_type_if_new(var, ty)
                return
            expected_types = (var.annotation,)
        case PatternConstructor(constructor=c), TypeCall() if c.data and c.belong_to == ty.func:
            constructor_type = substitute_type_vars(c.checked_type, dict(zip(c.data.type_vars, ty.args, strict=False)))
            expected_types = constructor_type.arg_types
        case PatternTuple(), TupleType():
            expected_types = ty.fields
    binds = isinstance(pattern, PatternVar)
    fits = (
        merge_types(expected_types[0], ty)
        if binds
        else expected_types is not None and len(expected_types) == len(subpatterns(pattern))
    )
    if not fits:
        text = f"a pattern does not match values of type {ty}"
        inference.problems.append(Diagnostic("type", text, match_node.span, hint=correct_pattern_hint(pattern, ty)))
        inference._record_type_if_new(match_node, _FAILED_TYPE)
        return
    for part, part_type in zip(subpatterns(pattern), expected_types or (), strict=False):
        _assign_pattern_variable_types(inference, part, part_type, match_node)


def _infer_match(inference: _ExpressionInference, node: Match) -> InferredType:
    if _FAILED_TYPE in (clause_types := [inference.inferred_type(c.rhs) for c in node.clauses]):
        return _FAILED_TYPE
    known = [ty for ty in clause_types if ty is not None and not isinstance(ty, _FailedType)]
    for ty in known[1:]:
        known[0] = join_types(known[0], ty) or inference._report_type_error(
            node, f"clauses have types {known[0]} and {ty}", conversion_hint(ty, known[0])
        )
    missing = unmatched_cases(node) if node.complete else []
    if missing:
        text = f"a match does not cover all values: {len(missing)} cases are missing"
        inference._report_type_error(
            node, text, f"add a clause for {correct_pattern_hint(missing[0])}, or write match?"
        )
    return known[0] if known else None


def _infer_referenced_value(inference: _ExpressionInference, node: RefRead | RefWrite) -> Type:
    """Return the type of the value of a reference; report an error if the operand is not a
    reference.
    """
    (ty,) = inference.require_inferred_types([node.ref])
    if not isinstance(ty, RefType):
        inference._report_type_error(node, f"a value of type {ty} is no reference", "make one of it: ref(value)")
    return ty.value


def _infer_reference_write(inference: _ExpressionInference, node: RefWrite) -> Type:
    ref_type, (have,) = _infer_referenced_value(inference, node), inference.require_inferred_types([node.value])
    if merge_types(ref_type, have) is None:
        text = f"a value of type {have} is written to a reference of type {ref_type}"
        inference._report_type_error(node, text, conversion_hint(have, ref_type))
    return TupleType(())


#: Type rule of each kind of node, from the types of its children; a rule returns None
#: or raises _TypeNotInferred while these are not known.
_TYPE_RULE_BY_NODE_KIND: Final[Mapping[str, Callable[[_ExpressionInference, Any], InferredType]]] = MappingProxyType(
    {
        "var": lambda _, node: node.annotation,
        "global_var": lambda inference, node: inference.signature(node),
        "constant": lambda _, node: node.checked_type,
        "op": lambda _, node: None,
        "call": _ExpressionInference.infer_call,
        "tuple": lambda inference, node: TupleType(inference.require_inferred_types(node.fields)),
        "tuple_getitem": _ExpressionInference.infer_tuple_field,
        "let": lambda inference, node: inference.inferred_type(node.body),
        "if": _ExpressionInference.infer_if,
        "match": _infer_match,
        "constructor": lambda _, node: node.checked_type,
        "ref_create": lambda inference, node: RefType(*inference.require_inferred_types([node.value])),
        "ref_read": _infer_referenced_value,
        "ref_write": _infer_reference_write,
        "function": _ExpressionInference.infer_function,
    }
)


def _annotated_function_type(expr: Expr) -> FuncType | None:
    """Return the type of a function if its annotations determine it; None otherwise."""
    if not isinstance(expr, Function) or expr.ret_type is None:
        return None
    params = [p.annotation for p in expr.params if p.annotation is not None]
    return FuncType(params, expr.ret_type, expr.type_params) if len(params) == len(expr.params) else None


def describe_node_for_message(node: Expr) -> str:
    """Return the description of a node for an error message, e.g. "%x" or "the result of nn.relu"."""
    match node:
        case Var():
            return f"%{node.name}"
        case GlobalVar():
            return f"@{node.name}"
        case Call():
            return f"the result of {describe_node_for_message(node.op)}"
        case Op():
            return node.name
        case _:
            return f"a {type(node).__name__}"


def _prerequisite_steps(step: tuple[_Step, Expr]) -> list[tuple[_Step, Expr]]:
    """Return the inference steps that must precede a step, in the order in which types become
    known.
    """
    match step:
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
        self.functions = {
            name: _ExpressionInference(f, self._type_of_global_function) for name, f in module.functions.items()
        }
        self.problems: list[Diagnostic] = []

    def _type_of_global_function(self, callee: GlobalVar) -> InferredType:
        if callee.name not in self.functions:
            hint = did_you_mean_hint(callee.name, self.functions) or f"functions: {', '.join(self.functions)}"
            text = f"no function @{callee.name}"
            self.problems.append(Diagnostic("unknown-function", text, callee.span, hint=hint))
            return _FAILED_TYPE
        inference = self.functions[callee.name]
        return inference.inferred_type(inference.root) or _annotated_function_type(inference.root)

    def infer_all_functions(self) -> None:
        order = list(depth_first_post_order(self.functions, self._callees_in_module))
        # the sum evaluates `propagate_types_to_fixpoint` for every function, without a short circuit
        while sum(self.functions[name].propagate_types_to_fixpoint() for name in order):
            if all(f.inferred_type(f.root) is not None for f in self.functions.values()):
                break

    def _callees_in_module(self, name: str) -> list[str]:
        return [callee for callee in self.functions[name].referenced_global_functions() if callee in self.functions]


def _raise_type_errors(problems: Iterable[Diagnostic], inferences: Iterable[_ExpressionInference]) -> None:
    """Raise all type errors as one AotcError; if there are none, raise an error for types that
    remain unknown.
    """
    parts = list(inferences)
    diagnostics = [*problems, *(d for i in parts for d in i.problems)]
    diagnostics = diagnostics or [d for i in parts for d in i.diagnose_unknown_types()]
    if diagnostics:
        raise AotcError.collect(dict.fromkeys(diagnostics))


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
    _raise_type_errors(diagnose_type_argument_counts(module), ())
    inference = _ModuleInference(module)
    inference.infer_all_functions()
    _raise_type_errors(inference.problems, inference.functions.values())
    rebuilt = {name: f.rebuild_with_types() for name, f in inference.functions.items()}
    return module.with_functions({name: graph_api.require_function(f) for name, f in rebuilt.items()})


def infer_expr(expr: Expr, module: IRModule | None = None) -> Expr:
    """Return `expr` typed; the global functions that it calls are looked up in `module` and must be
    typed already.

    Raise AotcError with one diagnostic per ill-typed expression.
    """

    def type_of_global_function(callee: GlobalVar) -> InferredType:
        if module is None or callee.name not in module:
            hint = did_you_mean_hint(callee.name, module.functions if module else ()) or "give a module that has it"
            raise AotcError("unknown-function", f"no function @{callee.name}", span=callee.span, hint=hint)
        return module[callee.name].checked_type or _annotated_function_type(module[callee.name])

    inference = _ExpressionInference(expr, type_of_global_function)
    inference.propagate_types_to_fixpoint()
    _raise_type_errors((), [inference])
    return inference.rebuild_with_types()


def infer_function(function: Function, module: IRModule | None = None) -> Function:
    """Return `function` typed, with `ret_type` set; see infer_expr."""
    return graph_api.require_function(infer_expr(function, module))
