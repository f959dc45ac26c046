# SPDX-License-Identifier: Apache-2.0
"""Lower the definitions of tensors to scalar expressions: elements become loads, registers or
inlined values.

    body = ElementLowering(plan, memory, ranges)
    value = body.lower_element_read(tensor, indices)  # the expression of one element ...
    body.statements  # ... and the registers it needs, to be placed before its use
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aotc.ir import Task, frozen, run_recursive_task, same_dim
from aotc.tir import Assign, Block, Declare, If, Stmt, all_exprs_in_stmt, bind_to_new_register, te, tensor_graph
from aotc.tir.expr import Binary, Buffer, Const, Element, Expr, Load, Select, Var, const, operands, with_operands
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan
from aotc.tir.simplify import Ranges, bounds, simplify


@frozen
class TensorLocation:
    """The location of a tensor in memory.

    buffer   the buffer
    skip     number of leading axes that are not in memory, as the stages share the loops over them
    place    function from indices to an address in the buffer, if the layout is not row-major
    """

    buffer: Buffer
    skip: int = 0
    place: Callable[[Sequence[Expr]], Expr] | None = None

    def element_address(self, tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
        """Return the address of a tensor's element in its buffer."""
        if self.place is not None:
            return self.place(indices)
        return te.flat_index(tensor.shape[self.skip :], indices[self.skip :])

    def load_element(self, tensor: te.Tensor, indices: Sequence[Expr], ranges: Ranges) -> Load:
        """Return the load of a tensor's element from its buffer."""
        return Load(self.buffer, simplify(self.element_address(tensor, indices), ranges))


Memory: TypeAlias = "Mapping[te.Tensor, TensorLocation]"


@dataclass(slots=True)
class _LoweringScope:
    """Statements and known element values of a branch of a selection, or of the whole body."""

    statements: list[Stmt] = field(default_factory=list)
    values: dict[tuple[te.Tensor, tuple[Expr, ...]], Expr] = field(default_factory=dict)


@dataclass(slots=True)
class ElementLowering:
    """Lowers the tensor elements needed at one place of a loop nest to scalar expressions.

    plan, memory, ranges   storage plan, memory of tensors, ranges of variables
    extents                the extents of the axes that are variables here
    current                values of tensors whose element at this place is known already
    """

    plan: StoragePlan
    memory: Memory
    ranges: Ranges
    extents: Mapping[Var, te.Extent] = field(default_factory=dict)
    current: dict[te.Tensor, Expr] = field(default_factory=dict)
    loads_in_range: set[Load] = field(default_factory=set)
    _scopes: list[_LoweringScope] = field(default_factory=lambda: [_LoweringScope()])

    @property
    def needed_register_declarations(self) -> list[Stmt]:
        """The declarations of registers that the expressions lowered so far need, in order."""
        return self._scopes[-1].statements

    def lower_element_read(self, tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
        """Return the expression of a tensor's element: a load, a register or its inlined
        definition.
        """
        element: Expr = run_recursive_task(self._lower_element_read_task(tensor, tuple(indices)))
        return element

    def lower_tensor_expr(self, expr: Expr, mapping: Mapping[Var, Expr]) -> Expr:
        """Lower a tensor expression, with its axes replaced by expressions as in `mapping`."""
        result: Expr = run_recursive_task(self._lower_expr_task(expr, mapping))
        return result

    def lower_definition_of_element(self, tensor: te.Compute, indices: Sequence[Expr]) -> Expr:
        """Return the value of an element of a stored tensor, computed from its definition."""
        return self.lower_tensor_expr(tensor.body, tensor_graph.substitution_for_axes(tensor.axes, indices))

    def bind_known_value_of_current_element(self, tensor: te.Tensor, value: Expr) -> Expr:
        """Record `value` as the known value of the element of `tensor` at this place, which later
        reads use; nothing is stored. Return it, in a register if it is complex.
        """
        value = self.current[tensor] = self._bind_to_register_unless_trivial(tensor, value)
        return value

    def _bind_to_register_unless_trivial(self, tensor: te.Tensor, value: Expr) -> Expr:
        """Return an element's value in a register, unless it is a variable or constant."""
        return (
            value
            if isinstance(value, (Var, Const))
            else bind_to_new_register(tensor.name, value, self.needed_register_declarations)
        )

    def _lower_expr_task(self, expr: Expr, mapping: Mapping[Var, Expr]) -> Task[Any]:
        """Lower a te expression (a generator for `run_recursive_task`, which avoids deep
        recursion).
        """
        match expr:
            case Var():
                return mapping.get(expr, expr)
            case Const():
                return expr
            case Select():
                return (yield self._lower_select_task(expr, mapping))
        fresh: list[Expr] = []
        for operand in operands(expr):
            fresh.append((yield self._lower_expr_task(operand, mapping)))
        if isinstance(expr, Element):
            return (yield self._lower_element_read_task(expr.tensor, tuple(fresh)))
        return with_operands(expr, tuple(fresh))

    def _lower_element_read_task(self, tensor: te.Tensor, indices: tuple[Expr, ...]) -> Task[Any]:
        """Lower the read of an element: through views, from a register, from memory, or inlined."""
        indices = tuple(simplify(i, self.ranges) for i in indices)
        while isinstance(tensor, te.View):
            slot = self.memory.get(tensor_graph.strip_views(tensor))
            if (
                slot is not None
                and slot.skip == 0
                and not slot.place
                and tensor_graph.strip_views(tensor) not in self.current
            ):
                return self._load_from_memory(slot, tensor, indices)
            indices = tensor_graph.indices_in_reshaped_tensor(tensor, indices, tensor.source, self.ranges)
            tensor = tensor.source
        if tensor in self.current:
            return self.current[tensor]
        if tensor in self.memory:
            return self._load_from_memory(self.memory[tensor], tensor, indices)
        for scope in self._scopes:
            if (tensor, indices) in scope.values:
                return scope.values[tensor, indices]
        if not isinstance(tensor, te.Compute):
            raise AssertionError(f"{tensor!r} has no memory")
        value = yield self._lower_expr_task(tensor.body, tensor_graph.substitution_for_axes(tensor.axes, indices))
        if tensor in self.plan.registers:
            value = self._scopes[-1].values[tensor, indices] = self._bind_to_register_unless_trivial(tensor, value)
        return value

    def _load_from_memory(self, slot: TensorLocation, tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
        """Return the load of a tensor's element.

        In a branch of a selection, with sizes that are known at run time only, an element that exists
        wherever the stage is computed is loaded to a register: in both branches, so that vectors need not
        choose what they load.
        """
        load = slot.load_element(tensor, indices, self.ranges)
        if self.plan.is_static or len(self._scopes) == 1:
            return load
        if not all(map(self._is_index_of_loop, indices, tensor.shape)):
            return load
        self.loads_in_range.add(load)
        return bind_to_new_register(tensor.name, load, self.needed_register_declarations)

    def _is_index_of_loop(self, index: Expr, extent: te.Extent) -> bool:
        """Return True if an index is the variable of a loop over an axis of this extent, or 0."""
        if isinstance(index, Var):
            return same_dim(self.extents.get(index, 0), extent)
        return index == const(0) and isinstance(extent, int) and extent > 0

    def _lower_select_task(self, expr: Select, mapping: Mapping[Var, Expr]) -> Task[Any]:
        """Lower a selection: to a Select if both branches may be evaluated, else to an If that sets
        a register.
        """
        cond = simplify((yield self._lower_expr_task(expr.cond, mapping)), self.ranges)
        if isinstance(cond, Const):
            return (yield self._lower_expr_task(expr.a if cond.value else expr.b, mapping))
        branches: list[tuple[Expr, list[Stmt]]] = []
        for branch in (expr.a, expr.b):
            self._scopes.append(_LoweringScope())
            value = yield self._lower_expr_task(branch, mapping)
            branches.append((value, self._scopes.pop().statements))
        (a, a_statements), (b, b_statements) = branches
        if all(map(self._is_safe_to_speculate, all_exprs_in_stmt(Block((*a_statements, *b_statements))))):
            self.needed_register_declarations.extend((*a_statements, *b_statements))
            return Select(cond, a, b)
        register = Var("chosen", a.dtype)
        then = Block((*a_statements, Assign(register, a)))
        orelse = Block((*b_statements, Assign(register, b)))
        self.needed_register_declarations.extend((Declare(register, const(0, a.dtype)), If(cond, then, orelse)))
        return register

    def _is_safe_to_speculate(self, node: Expr) -> bool:
        """Return True if an operation may be evaluated where its value is not used: no access or
        division can fail.
        """
        if isinstance(node, Load):
            if not self.plan.is_static:
                return (
                    node in self.loads_in_range
                )  # elements behind a live extent are not read, even if the value is not used
            low, high = bounds(node.index, self.ranges)
            return low >= 0 and high + node.lanes <= node.buffer.size
        if isinstance(node, Binary) and node.op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            return isinstance(node.b, Const) and node.b.value not in (0, -1)
        return True
