# SPDX-License-Identifier: Apache-2.0
"""`relay.create_executor`: programs evaluated from Python, one way or another.

executor = create_executor("graph", mod, params=params)
executor.evaluate()(x).numpy()                       # @main(x)
executor.evaluate(relay.add(a, b), binds={a: 1.0, b: 2.0})

debug        the interpreter, in numpy: every operator, closures, recursion, control flow, shapes that vary
graph, aot   the compiled C program of `relay.build`; static programs
vm           compiled kernels under a virtual machine: all that debug runs, but that functions stay inside the program
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.driver.import_model import with_params
from aotc.ir import AotcError, Array, Device, as_array, as_tensors, require_device, require_known
from aotc.ir.types import FuncType, TensorType, TupleType, Type, leaves, nested
from aotc.relay.analysis import free_vars
from aotc.relay.expr import Constant, Expr, Function, GlobalVar, Let, Tuple, Var, as_function, type_of
from aotc.relay.graph_api import IRModule, fresh_name, infer_module, mutated, substitute
from aotc.relay.interp import Closure, apply, bind_arguments, evaluate
from aotc.relay_api.build import compile_static, executor_threads, require_module
from aotc.relay_api.target import Target
from aotc.relay_api.vm import compile as compile_for_vm
from aotc.runtime.module import PREFIX
from aotc.runtime.vm import VirtualMachine
from aotc.tir.target import Target as MachineTarget

#: From the values of @main's parameters to its result, arrays and tuples of them.
Run: TypeAlias = Callable[[Sequence[Any]], Any]

#: The kinds for static programs.
_STATIC: Final = frozenset({"graph", "aot"})
#: Codes of what programs say that have no static form.
_BEYOND_STATIC: Final = frozenset({"control-flow", "first-class-function", "dynamic-shape", "not-fused"})
_MAIN: Final = "main"
#: What is to be evaluated, before it becomes @main.
_ENTRY: Final = ""


@dataclass(frozen=True, eq=False, repr=False)
class Executor:
    """Evaluates expressions in the context of a module.

    kind     of the executor
    mod      the module, parameters bound
    device   where it runs
    target   what it compiles for
    """

    kind: str
    mod: IRModule
    device: Device
    target: MachineTarget

    def evaluate(self, expr: Expr | None = None, binds: Mapping[Var, Any] | None = None) -> Any:
        """A function of Python for @main (None) or for a function or global variable; else the expression's value.

        binds    values of free variables of an expression: arrays, numbers, or expressions, also of variables before

        Functions take the values of their parameters by position or name: arrays, NDArrays, numbers, and tuples of
        them.  Results are NDArrays, tuples of results (lists on graph and aot), and functions.  Compilation obeys the
        pass context of this call.

        Raises AotcError for an expression that is ill-typed or has other free variables, and for what this kind of
        executor cannot express; the functions for arguments that are missing, superfluous or of the wrong type.
        """
        whole = self._module(expr, binds or {})
        loose = free_vars(whole.main)
        if loose:
            names = ", ".join(f"%{v.name}" for v in loose)
            hint = "parameters of the function, or binds of the expression, have values"
            raise AotcError("free-variable", f"no value is given for {names}", span=loose[0].span, hint=hint)
        module = infer_module(whole)
        # as with Relay's executors
        made = list if self.kind in _STATIC else tuple
        run = _PREPARE[self.kind](module, self.target, self.device)
        call = FunctionValue(module.main.params, run, sequence=made)
        return call if expr is None or isinstance(expr, (Function, GlobalVar)) else call()

    def _module(self, expr: Expr | None, binds: Mapping[Var, Any]) -> IRModule:
        """The module whose @main is what is to be evaluated."""
        if expr is None:
            if binds:
                raise AotcError("executor", "binds go with an expression, @main takes its inputs as arguments")
            # an error if there is none
            self.mod[_MAIN]
            return self.mod
        for var, value in reversed(list(binds.items())):
            if var not in free_vars(expr):
                name = f"%{var.name}" if isinstance(var, Var) else repr(var)
                text = f"the expression has no free variable {name}"
                raise AotcError("binds", text, hint="the keys of binds are the variables themselves")
            expr = Let(var, _expression(var, value), expr)
        return _with_entry(self.mod, expr)

    def __repr__(self) -> str:
        return f"<Executor {self.kind!r} for {self.target.name}>"


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: Device | None = None,
    target: str | MachineTarget = "llvm",
    params: Mapping[str, Any] | None = None,
) -> Executor:
    """An executor.

    kind      "debug", "graph", "aot" or "vm"; see the text of this module
    mod       what expressions may refer to, and @main; empty for None
    device    where to run, the processor for None
    target    see `aotc.relay_api.target.Target`
    params    values of parameters of @main by name

    Raises AotcError for an unknown kind, a device that is not there, unknown targets and wrong parameters.
    """
    require_known("executor", "kind of executor", kind, _PREPARE)
    module = mod if mod is not None else IRModule()
    require_module(module, "executor")
    where, machine = require_device(device, cuda=kind in _STATIC), Target(target)
    if (machine.gpu is not None) != (where.kind == "cuda"):
        text = f"{where} does not run what is compiled for {machine.name}"
        raise AotcError("device", text, hint='GPUs take device=aotc.cuda(0) and target="cuda"')
    return Executor(kind, with_params(module, params), where, machine)


def run_const_expr(expr: Expr) -> Array:
    """The value of an expression without free variables, as an array."""
    return np.asarray(create_executor("debug").evaluate(expr))


# --- what is evaluated


def _with_entry(module: IRModule, expr: Expr) -> IRModule:
    """`module` with `expr` as its @main.  A function @main that was there goes by another name."""
    functions = dict(module.functions)
    entry = module[expr] if isinstance(expr, GlobalVar) else expr
    functions[_ENTRY] = entry if isinstance(entry, Function) else Function((), entry)
    if _MAIN in functions:
        name = fresh_name(_MAIN, functions)

        def renamed(_: Expr, new: Expr) -> Expr:
            return GlobalVar(name, new.span) if isinstance(new, GlobalVar) and new.name == _MAIN else new

        functions[name] = functions.pop(_MAIN)
        functions = {other: as_function(mutated(f, renamed)) for other, f in functions.items()}
    return IRModule({_MAIN: functions.pop(_ENTRY), **functions})


def _expression(var: Var, value: Any) -> Expr:
    """What a variable is bound to: an expression, or a constant of a value."""
    data = hasattr(value, "__array__") or isinstance(value, (bool, int, float, list))
    return Constant(as_array(value, var.checked_type)) if data else value


# --- values


@dataclass(frozen=True, eq=False, repr=False)
class FunctionValue:
    """A function of the program as one of Python: of values by position or name, to a result.

    sequence    what results that are tuples become
    """

    params: Sequence[Var]
    run: Run
    closure: Closure | None = None
    sequence: type[list[Any]] | type[tuple[Any, ...]] = tuple

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        named = {name: _inside(value) for name, value in named.items()}
        return as_tensors(self.run(bind_arguments(self.params, _inside(args), named)), self.sequence)

    def __repr__(self) -> str:
        return f"<function of ({', '.join(p.name for p in self.params)})>"


def _inside(value: Any) -> Any:
    """An argument with the interpreter's functions in the place of those of Python."""
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(map(_inside, value))
    if isinstance(value, Constant):
        return value.data
    return value.closure if isinstance(value, FunctionValue) else value


# --- the kinds


def _debug(module: IRModule, target: MachineTarget, device: Device) -> Run:
    return lambda values: _callable(evaluate(module, *values), module)


def _callable(value: Any, module: IRModule) -> Any:
    """A result of the interpreter, its functions made such of Python."""
    match value:
        case tuple():
            return tuple(_callable(item, module) for item in value)
        case Closure():
            run: Run = lambda values: _callable(apply(value, values, module), module)  # noqa: E731
            return FunctionValue(value.function.params, run, value)
        case _:
            return value


def _compiled(kind: str, module: IRModule, target: MachineTarget, device: Device) -> Run:
    with _static_only(kind):
        flat = with_flat_inputs(module)
        work, made = compile_static(flat, target, f"{PREFIX}default")
    number = device.index if device.kind == "cuda" else None
    session = made.session(executor_threads(work.context), number)
    names = [p.name for p in flat.main.params]
    result = type_of(module.main.body)

    def run(values: Sequence[Any]) -> Any:
        inputs = dict(zip(names, leaves(tuple(values)), strict=True))
        return nested(result, iter(session.run(None, inputs)))

    return run


def _vm(module: IRModule, target: MachineTarget, device: Device) -> Run:
    program = compile_for_vm(module, target)
    machine, main = VirtualMachine(program), program.function(_MAIN)
    return lambda values: machine.execute(main, values)


@contextmanager
def _static_only(kind: str) -> Iterator[None]:
    """Errors about programs that have no static form name the executors for such programs."""
    try:
        yield
    except AotcError as error:
        if error.code not in _BEYOND_STATIC:
            raise
        able = " or ".join(f'create_executor("{name}", ...)' for name in _PREPARE if name not in _STATIC)
        hint = f"{able} runs such programs"
        raise AotcError.collect(
            replace(d, message=f"not for executor {kind!r}: {d.message}", hint=hint) for d in error.diagnostics
        ) from error


def with_flat_inputs(module: IRModule) -> IRModule:
    """`module` with inputs that are tensors of different names: tuples are taken apart."""
    old = module.main.params
    if all(isinstance(p.checked_type, TensorType) for p in old) and len({p.name for p in old}) == len(old):
        return module
    params: list[Var] = []
    mapping: dict[Var, Expr] = {p: _spread(type_of(p), params, p) for p in old}
    body = substitute(module.main.body, mapping)
    return infer_module(module.with_function(_MAIN, Function(params, body, attrs=module.main.attrs)))


def _spread(ty: Type, params: list[Var], origin: Var) -> Expr:
    """An expression of type `ty` over new parameters, one for each tensor."""
    match ty:
        case TensorType():
            params.append(Var(f"p{len(params)}", ty, origin.span))
            return params[-1]
        case TupleType():
            return Tuple([_spread(f, params, origin) for f in ty.fields], origin.span)
        case _:
            kind = "a function" if isinstance(ty, FuncType) else f"of type {ty}"
            raise AotcError("first-class-function", f"input {origin.name!r} is {kind}", span=origin.span)


#: What makes a program ready to run, by kind of executor.
_PREPARE: Final[Mapping[str, Callable[[IRModule, MachineTarget, Device], Run]]] = {
    "debug": _debug,
    "graph": partial(_compiled, "graph"),
    "aot": partial(_compiled, "aot"),
    "vm": _vm,
}
