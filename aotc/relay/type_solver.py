# SPDX-License-Identifier: Apache-2.0
"""TypeSolver: solve equations and relations between types by unification (Robinson, 1965).

solver, x = TypeSolver(), relay.IncompleteType()
solver.unify(relay.TupleType([x, x]), relay.TupleType([a, x]))
solver.resolve(x)                                # a
"""

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from aotc.ir import (
    AotcError,
    Dim,
    FuncType,
    IncompleteType,
    TensorType,
    Type,
    component_types,
    replace_component_types,
    same_dim,
    substitute_type_vars,
)
from aotc.ir.types import TypeCall, TypeRelation, TypeVar, walk_nested_types
from aotc.relay.merge_and_join_types import merge_types


class TypeSolver:
    """Solver for incomplete types; methods raise AotcError (code "type") for contradictory
    equations.

    The supported relations are "Identity" of two equal types, and "Broadcast" of two tensors and
    their broadcast result.
    """

    def __init__(self) -> None:
        self._solution_by_type_var: dict[Type, Type] = {}
        self._renamed: dict[TypeVar, TypeVar] = {}
        self._relations: list[TypeRelation] = []

    def resolve(self, t: Type) -> Type:
        """Return a type with its incomplete parts replaced by the types solved so far."""
        whole = self._follow_type_variable_solutions(t)
        new_type: Type = replace_component_types(whole, tuple(map(self.resolve, component_types(whole))))
        if isinstance(new_type, FuncType) and new_type.type_params:
            params = [self._renamed.get(v, v) for v in new_type.type_params]
            return FuncType(new_type.arg_types, new_type.ret_type, params, new_type.type_constraints)
        return new_type

    def unify(self, a: Type, b: Type) -> Type:
        """Make two types equal and return the resulting type."""
        a, b = self._follow_type_variable_solutions(a), self._follow_type_variable_solutions(b)
        match a, b:
            case IncompleteType(), _:
                return self._solve_incomplete_type(a, b)
            case _, IncompleteType():
                return self._solve_incomplete_type(b, a)
            case FuncType(), FuncType():
                return self._unify_function_types(a, b)
            case TensorType(), TensorType() if (merged := merge_types(a, b)) is not None:
                return merged
            case _ if a == b:
                return a
        alike = type(a) is type(b) and len(component_types(a)) == len(component_types(b)) > 0
        if not alike or (isinstance(a, TypeCall) and isinstance(b, TypeCall) and a.func != b.func):
            raise AotcError("type", f"types {self.resolve(a)} and {self.resolve(b)} cannot be unified")
        new_type: Type = replace_component_types(a, tuple(map(self.unify, component_types(a), component_types(b))))
        return new_type

    def add_constraint(self, relation: TypeRelation) -> None:
        """Add a relation to be solved by `solve`."""
        self._relations.append(relation)

    def solve(self) -> bool:
        """Solve the relations as far as possible; return True if all of them hold."""
        count = len(self._relations) + 1
        while len(self._relations) < count:
            count = len(self._relations)
            self._relations = [r for r in self._relations if not self._try_solve_relation(r)]
        return not self._relations

    def _follow_type_variable_solutions(self, ty: Type) -> Type:
        while isinstance(ty, IncompleteType) and ty in self._solution_by_type_var:
            ty = self._solution_by_type_var[ty]
        return ty

    def _solve_incomplete_type(self, unknown: Type, ty: Type) -> Type:
        if unknown is not ty:
            if unknown in walk_nested_types(whole := self.resolve(ty)):
                raise AotcError("type", f"a type would contain itself: {whole}")
            self._solution_by_type_var[unknown] = ty
        return self.resolve(ty)

    def _unify_function_types(self, a: FuncType, b: FuncType) -> Type:
        """Unify two function types: their first type parameters are identified, the remaining ones
        are solved for.
        """
        if len(a.type_params) < len(b.type_params):
            a, b = b, a
        if len(a.arg_types) != len(b.arg_types):
            raise AotcError("type", f"types {a} and {b} cannot be unified")
        given: dict[TypeVar, Type] = {v: IncompleteType(v.kind) for v in a.type_params}
        given.update(zip(a.type_params, b.type_params, strict=False))
        self._renamed.update((v, w) for v, w in zip(a.type_params, b.type_params, strict=False) if v is not w)
        args = [self.unify(substitute_type_vars(x, given), y) for x, y in zip(a.arg_types, b.arg_types, strict=True)]
        return FuncType(args, self.unify(substitute_type_vars(a.ret_type, given), b.ret_type), b.type_params)

    def _try_solve_relation(self, relation: TypeRelation) -> bool:
        """Return True if a relation holds or was made to hold; False if its inputs are not known
        yet.
        """
        counts = {"Identity": 1, "Broadcast": 2}
        func, given = relation.func, relation.num_inputs
        count = counts.get(func.relation_name) if func else None
        if given != count or len(relation.args) != given + 1:
            raise AotcError("type", f"the type relation {relation} has no solving rule")
        *inputs, out = map(self._follow_type_variable_solutions, relation.args)
        if count == 1:
            self.unify(inputs[0], out)
            return True
        tensors = [t for t in inputs if isinstance(t, TensorType)]
        if len(tensors) < len(inputs):
            return False
        self.unify(_broadcast_tensor_types(*tensors), out)
        return True


def _broadcast_tensor_types(a: TensorType, b: TensorType) -> TensorType:
    pairs = zip_longest(reversed(a.shape), reversed(b.shape), fillvalue=1)
    if a.dtype != b.dtype:
        raise AotcError("type", f"data types {a.dtype} and {b.dtype} do not match")
    return TensorType([_broadcast_dims(d, e) for d, e in pairs][::-1], a.dtype)


def _broadcast_dims(a: Dim, b: Dim) -> Dim:
    if b == 1 or same_dim(a, b):
        return a
    if a != 1:
        raise AotcError("shape", f"dimensions {a} and {b} do not broadcast")
    return b


def new_solver_methods_by_name() -> Callable[[str], Callable[..., Any]]:
    """Return a function that gives access to a new solver's methods by name, as Relay's tests
    expect.
    """
    solver = TypeSolver()
    methods: list[Callable[..., Any]] = [solver.unify, solver.resolve, solver.add_constraint, solver.solve]
    method_by_name = dict(zip(("Unify", "Resolve", "AddConstraint", "Solve"), methods, strict=True))
    return lambda name: method_by_name[name]  # a function accepts attributes, as these tests need
