# SPDX-License-Identifier: Apache-2.0
"""`relay.create_executor`: evaluate programs from Python with an interpreter, compiled code or the
virtual machine.

executor = create_executor("graph", mod, params=params)
executor.evaluate()(x).numpy()                       # @main(x)
executor.evaluate(relay.add(a, b), binds={a: 1.0, b: 2.0})

debug        the interpreter, in numpy: all operators, closures, recursion, control flow, dynamic
             shapes
graph, aot   the compiled C program of `relay.build`; static programs only
vm           compiled kernels in a virtual machine: all programs that debug runs, except that
             arguments and results of @main cannot be functions
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.driver.import_model import bind_params_as_constants
from aotc.ir import (
    AotcError,
    Array,
    Device,
    convert_argument_to_array,
    convert_arrays_to_ndarrays,
    require_known_name,
    require_usable_device,
)
from aotc.ir.types import FuncType, TensorType, TupleType, Type, flatten_nested_tuple, nest_values_like_type
from aotc.relay.analysis import free_vars
from aotc.relay.expr import Constant, Expr, Function, GlobalVar, Let, Tuple, Var, require_function, type_of
from aotc.relay.graph_api import IRModule, infer_module, rewrite_bottom_up, substitute_variables, unused_name
from aotc.relay.interpreter import Closure, bind_arguments, call_function_value, evaluate
from aotc.relay_api.build import compile_static_module, configured_executor_threads, require_ir_module
from aotc.relay_api.target import Target
from aotc.relay_api.vm_compiler import compile as compile_for_vm
from aotc.runtime.module import MODEL_NAME_PREFIX
from aotc.runtime.vm import VirtualMachine
from aotc.tir.target import Target as MachineTarget

#: A prepared program: a function from the values of @main's parameters to its result, made of
#: arrays and tuples.
RunFunction: TypeAlias = Callable[[Sequence[Any]], Any]

#: Kinds of executors that run static programs only.
_STATIC_EXECUTOR_KINDS: Final = frozenset({"graph", "aot"})
#: Diagnostic codes of programs that cannot be compiled statically.
_NON_STATIC_PROGRAM_ERROR_CODES: Final = frozenset(
    {"control-flow", "first-class-function", "dynamic-shape", "not-fused"}
)
_MAIN_NAME: Final = "main"
#: Temporary name of the function to evaluate, until it becomes @main.
_TEMPORARY_ENTRY_NAME: Final = ""


@dataclass(frozen=True, eq=False, repr=False)
class Executor:
    """An executor that evaluates Relay expressions in the context of a module: with the
    interpreter, compiled code or the virtual machine.

    kind     kind of executor
    mod      the module, with parameters bound
    device   device on which it runs
    target   target for which it compiles
    """

    kind: str
    mod: IRModule
    device: Device
    target: MachineTarget

    def evaluate(self, expr: Expr | None = None, binds: Mapping[Var, Any] | None = None) -> Any:
        """Return a Python function for @main (if `expr` is None), a function or a global variable;
        return the value of any other expression.

        binds    values of free variables of an expression: arrays, numbers, or expressions, which
                 may use earlier variables

        Functions take the values of their parameters by position or name: arrays, NDArrays,
        numbers, and tuples of them. Results are NDArrays, tuples of results (lists for graph and
        aot), and functions. Compilation uses the pass context of this call.

        Raises AotcError for an expression that is ill-typed or has other free variables, and for
        programs that this kind of executor does not support; the returned function raises it for
        missing, superfluous or ill-typed arguments.
        """
        whole = self._module_with_main_expression(expr, binds or {})
        loose = free_vars(whole.main)
        if loose:
            names = ", ".join(f"%{v.name}" for v in loose)
            hint = "parameters of the function, or binds of the expression, have values"
            raise AotcError(
                "free-variable",
                f"the expression has free variables without values: {names}",
                span=loose[0].span,
                hint=hint,
            )
        module = infer_module(whole)
        # as in Relay: graph and aot return lists, other executors tuples
        sequence_type = list if self.kind in _STATIC_EXECUTOR_KINDS else tuple
        run = _PREPARE_BY_EXECUTOR_KIND[self.kind](module, self.target, self.device)
        call = FunctionValue(module.main.params, run, sequence=sequence_type)
        return call if expr is None or isinstance(expr, (Function, GlobalVar)) else call()

    def _module_with_main_expression(self, expr: Expr | None, binds: Mapping[Var, Any]) -> IRModule:
        """Return the module whose @main is the expression to evaluate, with `binds` bound by let.
        Raises AotcError for keys of `binds` that are not free in the expression.
        """
        if expr is None:
            if binds:
                raise AotcError("executor", "binds go with an expression, @main takes its inputs as arguments")
            # raises an error if there is no @main
            self.mod[_MAIN_NAME]
            return self.mod
        for var, value in reversed(list(binds.items())):
            if var not in free_vars(expr):
                name = f"%{var.name}" if isinstance(var, Var) else repr(var)
                text = f"the expression has no free variable {name}"
                raise AotcError("binds", text, hint="the keys of binds are the variables themselves")
            expr = Let(var, _binding_as_expression(var, value), expr)
        return _replace_main(self.mod, expr)

    def __repr__(self) -> str:
        return f"<Executor {self.kind!r} for {self.target.name}>"


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: Device | None = None,
    target: str | MachineTarget = "llvm",
    params: Mapping[str, Any] | None = None,
) -> Executor:
    """Create an executor, which evaluates expressions in the context of a Relay module.

    kind      "debug", "graph", "aot" or "vm"; see the docstring of this module
    mod       module with @main and the functions to which expressions may refer; None for an empty
              one
    device    device on which to run; None for the CPU
    target    see `aotc.relay_api.target.Target`
    params    values of parameters of @main by name

    Raises AotcError for an unknown kind, a missing device, an unknown target and wrong parameters.
    """
    require_known_name("executor", "kind of executor", kind, _PREPARE_BY_EXECUTOR_KIND)
    module = mod if mod is not None else IRModule()
    require_ir_module(module, "executor")
    where, machine = require_usable_device(device, allow_cuda=kind in _STATIC_EXECUTOR_KINDS), Target(target)
    if (machine.gpu is not None) != (where.kind == "cuda"):
        text = f"{where} does not run what is compiled for {machine.name}"
        raise AotcError("device", text, hint='GPUs take device=aotc.cuda(0) and target="cuda"')
    return Executor(kind, bind_params_as_constants(module, params), where, machine)


def run_const_expr(expr: Expr) -> Array:
    """Evaluate an expression without free variables with the interpreter and return its value as an
    array.
    """
    return np.asarray(create_executor("debug").evaluate(expr))


# --- the expression to evaluate


def _replace_main(module: IRModule, expr: Expr) -> IRModule:
    """Return `module` with `expr` as its @main; an existing function @main is renamed."""
    functions = dict(module.functions)
    entry = module[expr] if isinstance(expr, GlobalVar) else expr
    functions[_TEMPORARY_ENTRY_NAME] = entry if isinstance(entry, Function) else Function((), entry)
    if _MAIN_NAME in functions:
        name = unused_name(_MAIN_NAME, functions)

        def rename_main_reference(_: Expr, new: Expr) -> Expr:
            return GlobalVar(name, new.span) if isinstance(new, GlobalVar) and new.name == _MAIN_NAME else new

        functions[name] = functions.pop(_MAIN_NAME)
        functions = {
            other: require_function(rewrite_bottom_up(f, rename_main_reference)) for other, f in functions.items()
        }
    return IRModule({_MAIN_NAME: functions.pop(_TEMPORARY_ENTRY_NAME), **functions})


def _binding_as_expression(var: Var, value: Any) -> Expr:
    """Return the expression to which a variable is bound: `value` itself if it is an expression,
    otherwise a constant.
    """
    data = hasattr(value, "__array__") or isinstance(value, (bool, int, float, list))
    return Constant(convert_argument_to_array(value, var.checked_type)) if data else value


# --- conversion of values


@dataclass(frozen=True, eq=False, repr=False)
class FunctionValue:
    """A function of the program as a Python function: it takes values by position or name and
    returns the result.

    sequence    Python type of results that are tuples
    """

    params: Sequence[Var]
    run: RunFunction
    closure: Closure | None = None
    sequence: type[list[Any]] | type[tuple[Any, ...]] = tuple

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        named = {name: _to_interpreter_arguments(value) for name, value in named.items()}
        return convert_arrays_to_ndarrays(
            self.run(bind_arguments(self.params, _to_interpreter_arguments(args), named)), self.sequence
        )

    def __repr__(self) -> str:
        return f"<function of ({', '.join(p.name for p in self.params)})>"


def _to_interpreter_arguments(value: Any) -> Any:
    """Replace Python functions in an argument by the closures of the interpreter, and constants by
    their arrays.
    """
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(map(_to_interpreter_arguments, value))
    if isinstance(value, Constant):
        return value.data
    return value.closure if isinstance(value, FunctionValue) else value


# --- kinds of executors


def _prepare_interpreter(module: IRModule, target: MachineTarget, device: Device) -> RunFunction:
    return lambda values: _closures_to_python_functions(evaluate(module, *values), module)


def _closures_to_python_functions(value: Any, module: IRModule) -> Any:
    """Convert closures in a result of the interpreter to Python functions."""
    match value:
        case tuple():
            return tuple(_closures_to_python_functions(item, module) for item in value)
        case Closure():

            def run_closure(values: Sequence[Any]) -> Any:
                return _closures_to_python_functions(call_function_value(value, values, module), module)

            return FunctionValue(value.function.params, run_closure, value)
        case _:
            return value


def _prepare_compiled_library(kind: str, module: IRModule, target: MachineTarget, device: Device) -> RunFunction:
    with _add_executor_hint_to_errors(kind):
        flat = flatten_tuple_inputs(module)
        work, compiled_model = compile_static_module(flat, target, f"{MODEL_NAME_PREFIX}default")
    number = device.index if device.kind == "cuda" else None
    session = compiled_model.session(configured_executor_threads(work.context), number)
    names = [p.name for p in flat.main.params]
    result = type_of(module.main.body)

    def run_session(values: Sequence[Any]) -> Any:
        inputs = dict(zip(names, flatten_nested_tuple(tuple(values)), strict=True))
        return nest_values_like_type(result, iter(session.run(None, inputs)))

    return run_session


def _prepare_virtual_machine(module: IRModule, target: MachineTarget, device: Device) -> RunFunction:
    program = compile_for_vm(module, target)
    machine, main = VirtualMachine(program), program.function_by_name(_MAIN_NAME)
    return lambda values: machine.execute_function(main, values)


@contextmanager
def _add_executor_hint_to_errors(executor_kind: str) -> Iterator[None]:
    """Return a context manager that adds to errors about programs without a static form a hint that
    names executors that run them.
    """
    try:
        yield
    except AotcError as error:
        if error.code not in _NON_STATIC_PROGRAM_ERROR_CODES:
            raise
        able = " or ".join(
            f'create_executor("{name}", ...)'
            for name in _PREPARE_BY_EXECUTOR_KIND
            if name not in _STATIC_EXECUTOR_KINDS
        )
        hint = f"{able} runs such programs"
        raise AotcError.collect(
            replace(d, message=f"not for executor {executor_kind!r}: {d.message}", hint=hint) for d in error.diagnostics
        ) from error


def flatten_tuple_inputs(module: IRModule) -> IRModule:
    """Return `module` with tuple inputs replaced by one input per tensor, so that all inputs are
    tensors of distinct names.

    Raises AotcError (code "first-class-function") for an input that is a function.
    """
    old = module.main.params
    if all(isinstance(p.checked_type, TensorType) for p in old) and len({p.name for p in old}) == len(old):
        return module
    params: list[Var] = []
    mapping: dict[Var, Expr] = {p: _append_new_parameters_as_tuple(type_of(p), params, p) for p in old}
    body = substitute_variables(module.main.body, mapping)
    return infer_module(module.with_function(_MAIN_NAME, Function(params, body, attrs=module.main.attrs)))


def _append_new_parameters_as_tuple(ty: Type, new_params: list[Var], origin: Var) -> Expr:
    """Return an expression of type `ty`, a nested tuple of tensors, over new parameters, one per
    tensor, which are appended to `new_params`. Raises AotcError (code "first-class-function") for a
    function type.
    """
    match ty:
        case TensorType():
            new_params.append(Var(f"p{len(new_params)}", ty, origin.span))
            return new_params[-1]
        case TupleType():
            return Tuple([_append_new_parameters_as_tuple(f, new_params, origin) for f in ty.fields], origin.span)
        case _:
            kind = "a function" if isinstance(ty, FuncType) else f"of type {ty}"
            raise AotcError("first-class-function", f"input {origin.name!r} is {kind}", span=origin.span)


#: For each kind of executor, the function that compiles or prepares a program.
_PREPARE_BY_EXECUTOR_KIND: Final[Mapping[str, Callable[[IRModule, MachineTarget, Device], RunFunction]]] = {
    "debug": _prepare_interpreter,
    "graph": partial(_prepare_compiled_library, "graph"),
    "aot": partial(_prepare_compiled_library, "aot"),
    "vm": _prepare_virtual_machine,
}
