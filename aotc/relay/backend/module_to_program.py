# SPDX-License-Identifier: Apache-2.0
"""Lowering of a module of fused functions to a Program: one kernel per function, one step per call.

Input: a typed IRModule after FuseOps, in which every call of @main calls a primitive function.
Output: a Program in which every tensor has memory of its own. Contiguous parts of tensors
(reshapes, slices) are copied to their own memory, and results are copied to the caller's outputs.
The tensor pass `TakeViews` removes such copies.

An If becomes a Branch. A node that only one branch of an If uses is computed in the arm of this
branch, so only what is needed runs; each arm ends with copies to the results of the If. A call of a
function that is recursive in its results only becomes a Loop.

    program = TakeViews()(lower_main_to_program(module, target, name="net"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from aotc.ir import (
    AotcError,
    DimRange,
    Op,
    Quantization,
    SymDim,
    TensorType,
    Type,
    bound_dim,
    flatten_nested_tuple,
    interval_of_dim,
    largest_size,
    nest_values_like_type,
    option_text,
    product_of_dims,
    report_progress,
    span_scope,
    symbol_of_multiples,
    tensor_types,
)
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.ir.failure_context import Failure, attach_failure_to_exceptions
from aotc.ir.parallel_memo import memoize_in_parallel
from aotc.ir.size_operands import SIZE_OPERANDS_ATTRIBUTE, size_operands_of_rows
from aotc.ir.string_slots import STRING_INPUTS_ATTRIBUTE, STRING_OUTPUTS_ATTRIBUTE
from aotc.relay.backend.found_sizes import (
    found_size_of_function,
    found_sizes_of_module,
    gives_first_operand,
    required_range_of_function,
    with_checks_of_found_sizes,
)
from aotc.relay.backend.function_to_kernel import (
    diagnose_dynamic_inputs,
    has_static_types,
    kernel_name_from_anchor_operator,
    reject_interpreter_only_node,
)
from aotc.relay.backend.kernel_deduplication import FunctionTable, lower_function_to_kernel
from aotc.relay.backend.row_movement_detection import row_pieces_of_result
from aotc.relay.backend.run_time_sizes import (
    RunTimeSizes,
    require_target_supports_sizes,
    size_ranges_of_inputs,
    sizes_of_module,
)
from aotc.relay.backend.sized_function_to_kernel import SizedKernel, lower_function_with_run_time_sizes
from aotc.relay.backend.tail_calls import TailCalls
from aotc.relay.backend.zero_copy_view_detection import view_offsets_of_results
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, type_of
from aotc.relay.graph_api import (
    BlockAssignment,
    IRModule,
    ScopeBlock,
    describe_node_for_message,
    output_names_or_default,
    post_order,
    quantizations_of_inputs_or_outputs,
)
from aotc.relay.state_pair import StatePair
from aotc.tir import (
    Branch,
    Define,
    GrowingState,
    Leave,
    Loop,
    Program,
    ProgramNode,
    StateTensor,
    Step,
    Storage,
    Target,
    View,
    const,
    make_copy_step,
    make_fill_step,
    value_of_dim,
    with_typical_operands,
)

#: Location of an expression's result: a view of a storage, or a tuple of values.
ResultLocation: TypeAlias = "View | tuple[Any, ...]"


def _create_storage(
    name: str,
    ty: TensorType,
    kind: str = "temp",
    data: Any = None,
    *,
    meaning: Quantization | None = None,
    strings: Container[str] = (),
) -> Storage:
    shape, dims = tuple(map(largest_size, ty.shape)), None if ty.is_static else tuple(ty.shape)
    return Storage(name=name, dtype=ty.dtype, shape=shape, kind=kind, data=data,
                   quantization=meaning, dims=dims, is_string=name in strings)  # fmt: skip


@dataclass(slots=True)
class _Lowering:
    """State of the lowering of a module's @main to a program: storages, kernels and calls so far.

    sizes    sizes that are known at run time only, and the conditions on them
    scopes   block (of @main or of a branch) in which each node is computed
    parts    calls of each block
    part     calls of the current block
    whole    outermost block
    splats   constants that repeat one value, by the storage that has all of their elements
    """

    target: Target
    module: IRModule
    lets: dict[Var, Expr]
    sizes: RunTimeSizes
    table: FunctionTable = field(default_factory=FunctionTable)
    kernels: dict[int, SizedKernel] = field(default_factory=dict)
    values: dict[Expr, ResultLocation] = field(default_factory=dict)
    scopes: BlockAssignment | None = None
    parts: dict[ScopeBlock, list[ProgramNode]] = field(default_factory=dict)
    part: list[ProgramNode] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    has_state: bool = False
    splats: dict[Storage, Constant] = field(default_factory=dict)
    whole_of_view: dict[Storage, Storage] = field(default_factory=dict)
    whole: ScopeBlock | None = None
    in_loop: bool = False

    def storage_location_of_result(self, node: Expr) -> ResultLocation:
        """Return the storage location of a visited node's result; a let-bound variable has the
        location of its value.
        """
        while isinstance(node, Var) and node in self.lets:
            node = self.lets[node]
        if isinstance(node, Function):
            raise AotcError("first-class-function", "a function as a value cannot be compiled", span=node.span)
        if isinstance(node, Var) and node not in self.values:
            raise AotcError(
                "free-variable",
                f"{describe_node_for_message(node)} has no value: it is not a parameter of the function",
                span=node.span,
            )
        return self.values[node]

    def fresh_storage_name(self, prefix: str) -> str:
        self.names[prefix] += 1
        return f"{prefix}{self.names[prefix] - 1}"

    def lower_node_to_kernel_call(self, node: Expr) -> None:
        """Record the storage location of a node's result, and add the kernel call that computes it.

        The node's operands must have been visited. Raise AotcError for nodes that cannot be
        compiled.
        """
        match node:
            case Constant():
                ty = node.checked_type
                assert isinstance(ty, TensorType)
                self.values[node] = View(self.create_constant_storage(node, ty))
            case Tuple():
                self.values[node] = tuple(self.storage_location_of_result(f) for f in node.fields)
            case TupleGetItem():
                whole = self.storage_location_of_result(node.tuple_value)
                assert isinstance(whole, tuple)
                self.values[node] = whole[node.index]
            case Call(op=Function() as function):
                self.values[node] = self.lower_call_to_kernel_call(node, function)
            case Call(op=GlobalVar(name=name)) if self.is_external_function(name):
                self.values[node] = self.lower_call_to_kernel_call(node, self.module[name])
            case Call(op=GlobalVar(name=name)) if name in self.module:
                self.values[node] = self.lower_recursive_call_to_loop(node, name)
            case Let():
                self.values[node] = self.storage_location_of_result(node.body)
            case If():
                self.values[node] = self.lower_if_to_branch(node)
            case Call(op=Op(name=name)):
                raise AotcError("not-fused", f"call of {name} is not a call of a fused function", span=node.span)
            case _:
                reject_interpreter_only_node(node)
                callee = node.op if isinstance(node, Call) else node
                text = (
                    f"{describe_node_for_message(callee)}, a function that calls "
                    "itself or is a value, cannot be compiled"
                )
                raise AotcError("first-class-function", text, span=node.span)

    def is_external_function(self, name: str) -> bool:
        return name in self.module and "Compiler" in self.module[name].attrs

    def lower_call_to_kernel_call(self, node: Call, function: Function) -> ResultLocation:
        args = [view for a in node.args for view in flatten_nested_tuple(self.storage_location_of_result(a))]
        types = [self.sizes.bounded_type(t, node, "a result") for t in tensor_types(type_of(node))]
        offsets = None if "Compiler" in function.attrs else view_offsets_of_results(function)
        if gives_first_operand(function):
            offsets = [0]
        if (found_range := required_range_of_function(function)) is not None:
            required, place = found_range
            text = required.requirement
            self.part.append(Define("", args[place], required.most, (), node.span, required.least, text))
        self.require_fitting_sizes(node, function)
        if (found := found_size_of_function(function)) is not None:
            part = self.new_temporary_storage_view(types[0], "v")
            self.part += self.definition_of_size(found.size, args[found.position], node)
            self.part.append(make_copy_step(args[0], part))
            return part
        if offsets is not None:
            parts = [self.new_temporary_storage_view(t, "v") for t in types]
            sources = [View(args[0].storage, args[0].offset + offset) for offset in offsets]
            self.whole_of_view |= {part.storage: args[0].storage for part in parts}
            self.part += map(make_copy_step, sources, parts)
            return nest_values_like_type(type_of(node), iter(parts))
        sized = self.kernel_shared_by_equal_functions(function)
        kernel, numbers = sized.kernel, tuple(const(s) if isinstance(s, int) else s for s in sized.sizes)
        for condition in sized.conditions:
            self.sizes.add_condition(condition.left, condition.relation, condition.right, node.span)
        outputs = [self.new_temporary_storage_view(t) for t in types]
        scratch = [self.new_temporary_storage_view(TensorType((b.size,), b.dtype)) for b in kernel.workspace]
        shapes = tuple(tuple(map(largest_size, t.shape)) for t in types)
        rows = row_pieces_of_result(function) if self.has_state and "Compiler" not in function.attrs else None
        self.part.append(Step(kernel, (*args, *outputs, *scratch), node.span, shapes, function, rows, numbers))
        return nest_values_like_type(type_of(node), iter(outputs))

    def definition_of_size(self, size: str, value: View, node: Expr) -> list[Define]:
        """Return the definition of a size that a call finds; none if the current block has it already."""
        is_new = (size, value) not in {(n.size, n.value) for n in self.part if isinstance(n, Define)}
        return [Define(size, value, self.sizes.found[size], (), node.span)] if is_new else []

    def begin_node(self, node: Expr) -> None:
        """Let the next calls be appended to the part of the schedule that the node belongs to."""
        assert self.scopes is not None
        home = self.scopes.home[node]
        self.part = self.parts.setdefault(home, [])
        self.sizes.in_part = self.in_loop or home is not self.whole

    def lower_nodes(self, nodes: Sequence[Expr], skipped: Container[Expr] = frozenset()) -> None:
        """Lower nodes in post order, except those of `skipped`."""
        self.scopes = BlockAssignment(list(nodes))
        self.whole = self.scopes.home[nodes[-1]]
        for k, node in enumerate(nodes):
            if isinstance(node, Call) and isinstance(node.op, Function):
                report_progress(k, len(nodes), f"kernel {kernel_name_from_anchor_operator(node.op)}")
            # nodes that calls use directly
            if node not in skipped and not isinstance(node, (Op, Function, GlobalVar, Var)):
                self.begin_node(node)
                self.lower_node_to_kernel_call(node)

    def lower_recursive_call_to_loop(self, node: Call, name: str) -> ResultLocation:
        """Append a loop that computes a call of a function whose calls of itself are its results;
        return where the results are.
        """
        function = self.module[name]
        tail = TailCalls(name, function)
        results = self.new_temporary_storage_views(type_of(node), "r", node, "the result of a loop")
        body = replace(self, lets=_let_bound_values(function), values={}, parts={}, part=[], scopes=None, in_loop=True)
        carried: dict[int, list[View]] = {}
        for k, (param, argument) in enumerate(zip(function.params, node.args, strict=True)):
            given = self.storage_location_of_result(argument)
            if tail.is_passed_on_unchanged(k):
                body.values[param] = given
                continue
            text = f"parameter {param.name!r} of @{name}"
            carried[k] = self.new_temporary_storage_views(type_of(param), "p", param, text)
            self.part += map(_make_copy_or_fill_step, flatten_nested_tuple(given), carried[k])
            body.values[param] = nest_values_like_type(type_of(param), iter(carried[k]))
        nodes = list(post_order(function.body, lambda n: not isinstance(n, Function)))
        body.lower_called_functions_into_memo_cache(nodes)
        body.lower_nodes(nodes, tail.nodes)
        held: list[Storage] = []
        sequence = (*body.part_of(function.body), *body.tail_of_iteration(function.body, tail, carried, results, held))
        storages = tuple(view.storage for views in carried.values() for view in views)
        self.part.append(Loop(sequence, storages, tuple(held), tuple(view.storage for view in results), node.span))
        return nest_values_like_type(type_of(node), iter(results))

    def part_of(self, node: Expr) -> tuple[ProgramNode, ...]:
        """Return the calls of the block of a node."""
        assert self.scopes is not None
        return tuple(self.parts.get(self.scopes.home[node], ()))

    def tail_of_iteration(
        self,
        node: Expr,
        tail: TailCalls,
        carried: Mapping[int, Sequence[View]],
        results: Sequence[View],
        held: list[Storage],
    ) -> tuple[ProgramNode, ...]:
        """Return the end of an iteration: a call of the function itself sets the carried values, and
        any other value is the result with which the loop is left.

        carried   values of the parameters that change, by position
        held      storages that hold values while others change, to which this function appends
        """
        assert self.scopes is not None
        if isinstance(node, Let):
            return self.tail_of_iteration(node.body, tail, carried, results, held)
        if isinstance(node, If) and node in tail.nodes:
            arms: list[tuple[ProgramNode, ...]] = []
            for block, value in zip(self.scopes.inner[node], (node.true_branch, node.false_branch), strict=True):
                end = self.tail_of_iteration(value, tail, carried, results, held)
                arms.append((*self.parts.get(block, ()), *end))
            condition = self.storage_location_of_result(node.cond)
            assert isinstance(condition, View)
            return (Branch(condition, (arms[0], arms[1]), (), node.span),)
        if node not in tail.nodes:
            values = flatten_nested_tuple(self.storage_location_of_result(node))
            return (*map(make_copy_step, values, results), Leave())
        assert isinstance(node, Call)
        changes = [
            (source, target)
            for k, targets in carried.items()
            for source, target in zip(
                flatten_nested_tuple(self.storage_location_of_result(node.args[k])), targets, strict=True
            )
            if source != target
        ]
        first: list[Step] = []
        last: list[Step] = []
        changing = {target.storage for _, target in changes}
        for source, target in changes:
            if self._whole(source.storage) in changing:
                # the value is a part of one that changes, too
                copy = View(replace(target.storage, name=self.fresh_storage_name("h")))
                held.append(copy.storage)
                first.append(make_copy_step(source, copy))
                source = copy
            last.append(make_copy_step(source, target))
        return (*first, *last)

    def _whole(self, storage: Storage) -> Storage:
        while storage in self.whole_of_view:
            storage = self.whole_of_view[storage]
        return storage

    def lower_if_to_branch(self, node: If) -> ResultLocation:
        """Append a branch whose arms compute the values of an If; return where its results are."""
        assert self.scopes is not None
        _require_equal_types_of_branches(node)
        results = self.new_temporary_storage_views(type_of(node), "r", node, "the result of an If")
        arms: list[tuple[ProgramNode, ...]] = []
        for block, value in zip(self.scopes.inner[node], (node.true_branch, node.false_branch), strict=True):
            values = flatten_nested_tuple(self.storage_location_of_result(value))
            arms.append((*self.parts.get(block, ()), *map(make_copy_step, values, results)))
        if any(arms):
            condition = self.storage_location_of_result(node.cond)
            assert isinstance(condition, View)
            storages = tuple(view.storage for view in results)
            self.part.append(Branch(condition, (arms[0], arms[1]), storages, node.span))
        return nest_values_like_type(type_of(node), iter(results))

    def require_fitting_sizes(self, node: Call, function: Function) -> None:
        """Add the conditions of a call's type: no negative dimension, and as many elements as a view has."""
        if has_static_types(function):
            return
        for inner in post_order(function.body):
            if not isinstance(inner, (Op, Function)):
                self.sizes.require_not_negative(type_of(inner), node.span)
        if view_offsets_of_results(function) is not None:
            (source,), (result,) = (tensor_types(type_of(n)) for n in (function.params[0], function.body))
            counts = product_of_dims(result.shape), product_of_dims(source.shape)
            self.sizes.add_condition(counts[0], "==", counts[1], node.span)

    def kernel_shared_by_equal_functions(self, function: Function) -> SizedKernel:
        """Return the kernel of a function; structurally equal functions share one kernel."""
        number = self.table.find_or_add_structurally_equal_function(function)
        if number not in self.kernels:
            self.kernels[number] = self.lower_function(function)
        return self.kernels[number]

    def lower_function(self, function: Function) -> SizedKernel:
        """Return the kernel of a function, and what its calls pass for the numbers of the kernel."""
        if has_static_types(function) or "Compiler" in function.attrs:
            return SizedKernel(lower_function_to_kernel(function, self.target), ())
        name = kernel_name_from_anchor_operator(function)
        with attach_failure_to_exceptions(Failure("kernel", name, function, self.target)):
            known = self.sizes.intervals, self.sizes.computed
            return lower_function_with_run_time_sizes(function, name, self.target, *known)

    def lower_called_functions_into_memo_cache(self, nodes: Iterable[Expr]) -> None:
        """Lower the functions that nodes call to kernels, which later calls find in the cache."""
        for function in [n.op for n in nodes if isinstance(n, Call) and isinstance(n.op, Function)]:
            if "Compiler" not in function.attrs and view_offsets_of_results(function) is None:
                self.table.find_or_add_structurally_equal_function(function)
        memoize_in_parallel([partial(self.lower_function, f) for f in self.table.functions])

    def create_constant_storage(self, node: Constant, ty: TensorType) -> Storage:
        """Return the storage of a constant that a kernel reads from memory; a splat is expanded to
        all of its elements.
        """
        storage = _create_storage(self.fresh_storage_name("const"), ty, "constant", node.data)
        if node.is_splat:
            self.splats[storage] = node
        return storage

    def new_temporary_storage_view(self, ty: TensorType, name_prefix: str = "t") -> View:
        return View(_create_storage(self.fresh_storage_name(name_prefix), ty))

    def new_temporary_storage_views(self, ty: Type, name_prefix: str, node: Expr, description: str) -> list[View]:
        """Return views of new storages for the tensors of a type, in order.

        Raise AotcError (code "dynamic-shape") for a dimension that no size of the run bounds.
        """
        types = [self.sizes.bounded_type(t, node, description) for t in tensor_types(ty)]
        return [self.new_temporary_storage_view(t, name_prefix) for t in types]


def _require_equal_types_of_branches(node: If) -> None:
    """Raise AotcError unless both branches of an If have the same type."""
    yes, no = (type_of(branch) for branch in (node.true_branch, node.false_branch))
    if yes != no:
        text = f"the branches of an If have the types {yes} and {no}; compiled code needs equal ones"
        hint = "pad, reshape or cast the result of one branch, so that both have the same shape and data type"
        raise AotcError("control-flow", text, span=node.span, hint=hint)


def lower_main_to_program(
    module: IRModule,
    target: Target,
    name: str = "model",
    state: Sequence[StatePair] = (),
    typical_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Program:
    """Return the program of @main, in which no two tensors share memory.

    state            inputs and outputs that are kept between runs
    typical_sizes    size of a typical run for some of the sizes that are known at run time only

    The outputs are named by the module attribute "output_names" if it is set.

    Raise AotcError for dynamic shapes, branches of different types and operators without `compute`.
    """
    main = module.main
    if main.is_primitive or "Compiler" in main.attrs:
        hint = "a function without the attributes Primitive and Compiler calls it"
        raise AotcError("not-fused", "@main is one kernel, not calls of kernels", span=main.span, hint=hint)
    if dynamic := diagnose_dynamic_inputs(main):
        raise AotcError.collect(dynamic)
    growing = _growing_state(state)
    operands = size_operands_of_rows(module.attrs.get(SIZE_OPERANDS_ATTRIBUTE, ()))
    sizes = sizes_of_module(module, operands, _ranges_with_room(size_ranges_of_inputs(main, typical_sizes), growing))
    sizes.found = found_sizes_of_module(module, sizes.ranges, target)
    require_target_supports_sizes(sizes, target, main, operands)
    lowering = _Lowering(target, module, _let_bound_values(main), sizes, has_state=bool(state))
    inputs = _create_input_storages(module, sizes)
    lowering.values.update(zip(main.params, map(View, inputs), strict=True))
    nodes = list(post_order(main.body, lambda n: not isinstance(n, Function)))
    lowering.lower_called_functions_into_memo_cache(nodes)
    lowering.lower_nodes(nodes)
    lowering.begin_node(main.body)
    views = flatten_nested_tuple(lowering.storage_location_of_result(main.body))
    types = [sizes.bounded_type(t, main.body, "an output") for t in tensor_types(type_of(main.body))]
    meanings = quantizations_of_inputs_or_outputs(module, "output", len(views))
    rows = zip(output_names_or_default(module, len(views)), types, meanings, strict=True)
    texts = module.attrs.get(STRING_OUTPUTS_ATTRIBUTE, ())
    outputs = tuple(_create_storage(n, ty, "output", meaning=meaning, strings=texts) for n, ty, meaning in rows)
    lowering.part += map(make_copy_step, views, map(View, outputs))
    body, checks = with_checks_of_found_sizes(lowering.part, outputs, sizes, main)
    program = Program(
        name=name, inputs=tuple(inputs), outputs=outputs, body=body,
        state=_state_tensors(inputs, outputs, state), sizes=sizes.ranges, checks=checks,
        growing=growing, operands={o.name: o for o in operands}, definitions=tuple(sizes.definitions),
    )  # fmt: skip
    _check_bytes_of_expanded_splats(program, lowering.splats)
    _require_checks_before_run(program, main, sizes.of_parts)
    return with_typical_operands(program)


def _create_input_storages(module: IRModule, sizes: RunTimeSizes) -> list[Storage]:
    """Return the memory of the inputs of @main, with the bounds of their sizes."""
    params = module.main.params
    texts = module.attrs.get(STRING_INPUTS_ATTRIBUTE, ())
    storages = []
    for param, meaning in zip(params, quantizations_of_inputs_or_outputs(module, "input", len(params)), strict=True):
        ty = type_of(param)
        if not isinstance(ty, TensorType):
            raise AotcError("input-type", f"input {param.name!r} is not a tensor but {ty}", span=param.span)
        sizes.require_declared_bounds(ty, param.span)
        ty = sizes.bounded_type(ty, param, f"input {param.name!r}")
        storages.append(_create_storage(param.name, ty, "input", meaning=meaning, strings=texts))
    return storages


def _require_checks_before_run(program: Program, main: Function, of_parts: Container[str]) -> None:
    """Raise AotcError if only a part of the program needs a condition on sizes, or if the sizes of a typical
    run violate one.

    of_parts    texts of the conditions that only parts of the program need
    """
    checks = (*program.checks, *(check for node in program.found for check in node.checks))
    for check in [c for c in checks if str(c) in of_parts]:
        text = f"sizes of a model with branches or loops must fulfill {check}, which is not known"
        hint = "compile one size, for example: " + option_text("dims", program.typical_sizes)
        raise AotcError("dynamic-shape", text, span=check.span or main.span, hint=hint)
    for check in program.checks if not program.operands else ():
        if not check.holds(program.symbols_of_sizes(program.typical_sizes)):
            typical = ", ".join(f"{name} {size}" for name, size in program.typical_sizes.items())
            hint = "give typical sizes that do, for example: " + option_text("dims", {"NAME": "LEAST..MOST~TYPICAL"})
            text = f"the typical sizes {typical} do not fulfill {check}"
            raise AotcError("dims", text, span=check.span or main.span, hint=hint)


def _check_bytes_of_expanded_splats(program: Program, splats: Mapping[Storage, Constant]) -> None:
    """Raise AotcError if the splats that are written out as constants exceed the budget
    "compile.max_bytes".
    """
    total = 0
    for storage in program.constants:
        if (node := splats.get(storage)) is not None:
            total += storage.nbytes
            with span_scope(node.span):
                current_budget().require_within_compile_time_limit(
                    "compile.max_bytes", total, f"writing out a constant of type {type_of(node)}"
                )


def _make_copy_or_fill_step(source: View, target: View) -> Step:
    """Return a step that gives the whole storage of `target` the elements of a view: a fill for a
    constant that repeats one value.
    """
    data = source.storage.data
    if data is not None and 0 < data.size == target.storage.size and (data.size == 1 or not any(data.strides)):
        return make_fill_step(const(data.reshape(-1)[0].item(), target.storage.dtype), target)
    return make_copy_step(source, target)


def _state_tensors(
    inputs: Sequence[Storage], outputs: Sequence[Storage], pairs: Sequence[StatePair]
) -> tuple[StateTensor, ...]:
    for pair in pairs:
        for storage in (*inputs, *outputs):
            is_state = storage.name in (pair.past, pair.present) and pair.growth is None
            if is_state and storage.dims is not None:
                text = f"the state {pair.past!r} has a shape that varies at run time: {storage.dim_texts}"
                raise AotcError("state", text, hint="pin its dimensions by " + option_text("dims", {"NAME": 1}))
    past_by_name, present_by_name = ({s.name: s for s in side} for side in (inputs, outputs))
    return tuple(
        StateTensor(
            past=past_by_name[p.past], present=present_by_name[p.present], initial=p.initial, grows=p.growth is not None
        )
        for p in pairs
    )


def _growing_state(pairs: Sequence[StatePair]) -> GrowingState | None:
    """Return the length of the states that grow, which is one for all of them; None if there are none."""
    growths = [pair.growth for pair in pairs if pair.growth is not None]
    return GrowingState(growths[0].size, growths[0].added, growths[0].capacity) if growths else None


def _ranges_with_room(ranges: Mapping[str, DimRange], growing: GrowingState | None) -> Mapping[str, DimRange]:
    """Return the ranges of sizes in which the length of the state is at most its capacity, and has room for
    what a typical run appends in a typical run.
    """
    if growing is None:
        return ranges
    given = ranges[growing.size]
    intervals = {symbol_of_multiples(n, r.step): (r.least // r.step, r.most // r.step) for n, r in ranges.items()}
    least_added, _ = interval_of_dim(growing.added)
    if isinstance(growing.added, SymDim):
        least_added, _ = interval_of_dim(bound_dim(growing.added, intervals))
    length = DimRange(given.least, max(min(given.most, growing.capacity - int(least_added)), given.least))
    symbols = {symbol_of_multiples(n, r.step): (r.typical or r.most) // r.step for n, r in ranges.items()}
    room = growing.capacity - value_of_dim(growing.added, symbols)
    typical = max(min(given.typical or length.most, length.most, room), length.least)
    return {**ranges, growing.size: replace(length, typical=typical)}


def _let_bound_values(main: Function) -> dict[Var, Expr]:
    return {n.var: n.value for n in post_order(main.body, lambda n: not isinstance(n, Function)) if isinstance(n, Let)}
