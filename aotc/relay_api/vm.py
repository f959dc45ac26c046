# SPDX-License-Identifier: Apache-2.0
"""`relay.vm.compile`: programs with control flow, closures, recursion and varying shapes, to a virtual machine's code.

exe = compile(mod, "llvm", params=params)
VirtualMachine(exe, cpu()).invoke("main", x)

Kernels of static types are compiled here, in one go.  Those whose types have unknown dimensions are compiled for the
shapes of each call when these come up first, and kept, the least recently used ones given up beyond a bound.
Results whose shape depends on values, tensors without elements, and operators that others define once their dimensions
are known, are computed by the operators' references in numpy: no static kernel could.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aotc.driver.import_model import with_params
from aotc.driver.pipeline import Compilation
from aotc.ir import AotcError, DType, FuncType, PassContext, TensorType, TupleType, Type, tensor_types, types_in
from aotc.relay.backend.function_to_kernel import anchor_name
from aotc.relay.backend.vm import compile_bytecode
from aotc.relay.expr import Call, Function, Var, as_function, type_of
from aotc.relay.graph_api import IRModule, evaluate, infer_function, post_order, substitute
from aotc.relay.op.opdef import OpDef
from aotc.relay.text.parser import parse_expr
from aotc.relay.text.printer import astext
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.let_conversion import ToANormalForm
from aotc.relay.transform.module_functions import LambdaLift
from aotc.relay_api.build import require_module
from aotc.relay_api.target import Target
from aotc.runtime.fork_safety import Turns
from aotc.runtime.module import KernelModule
from aotc.runtime.vm import Executable, Run, SavedKernel, Value, install_compiler, runner
from aotc.tir.target import Target as MachineTarget

#: Most kernels for shapes that came up at run time, of one executable.
MAX_KERNELS: Final = 256


def compile(mod: IRModule, target: str | MachineTarget = "llvm", params: Mapping[str, Any] | None = None) -> Executable:
    """Compile a module under the current pass context.

    target   see `aotc.relay_api.target.Target`
    params   values of parameters of @main by name; they are baked in

    Raises AotcError for ill-typed programs, a context without FuseOps, an @main that takes or gives functions, and
    what kernels of static shape refuse.
    """
    require_module(mod, "vm")
    if not PassContext.current().pass_enabled(FuseOps().info):
        raise AotcError("vm", "the pass context disables FuseOps, which is required to form kernels")
    machine = Target(target)
    if machine.gpu is not None:
        text = "the virtual machine calls kernels on processors"
        raise AotcError("target", text, hint="relay.build compiles static programs for GPUs")
    work = Compilation(with_params(mod, params), machine, "main", PassContext.current())
    with work.running():
        _require_data(work.graph.main)
        # function literals lifted, every value named: bytecode needs these passes at any level
        program = compile_bytecode(ToANormalForm()(LambdaLift()(work.graph)))
        names = [f"{k}:{anchor_name(f)}" for k, f in enumerate(program.kernels)]
        kernels = Kernels(work, dict(enumerate(program.kernels)), dict(enumerate(names)))
        return Executable(program.functions, program.constants, names, kernels)


def _require_data(main: Function) -> None:
    types = types_in(*map(type_of, main.params), type_of(main.body))
    if any(isinstance(ty, FuncType) for ty in types):
        hint = 'create_executor("debug", ...) gives and takes functions'
        text = "@main takes or gives a function"
        raise AotcError("first-class-function", text, span=main.span, hint=hint)


@dataclass(eq=False)
class Kernels:
    """Calls of primitive functions by number, each compiled for the types that it meets.

    work           what compiles them
    names          by which the functions are known in libraries
    limit          most kernels that are kept for types found at run time
    compilations   how many kernels were compiled for such types
    """

    work: Compilation
    functions: Mapping[int, Function]
    names: Mapping[int, str]
    limit: int = MAX_KERNELS
    compilations: int = 0

    def __post_init__(self) -> None:
        self._turns = Turns()
        self._found: OrderedDict[tuple[int, tuple[Type, ...]], Run] = OrderedDict()
        static = {self.names[k]: f for k, f in self.functions.items() if _is_compiled(f)}
        self._library = self.work.compile_functions(static)
        self._static = {n: runner(self._library, n, type_of(f.body)) for n, f in static.items()}

    def __call__(self, number: int, args: Sequence[Value]) -> Value:
        """The result of kernel `number`; AotcError naming the operator and the types for what it refuses."""
        run = self._static.get(self.names[number])
        if run is None:
            types = tuple(map(_type_of_value, args))
            key = number, types
            with self._turns:
                run = self._found.get(key)
                if run is None:
                    run = self._found[key] = self._specialized(number, types)
                    while len(self._found) > self.limit:
                        self._found.popitem(last=False)
                self._found.move_to_end(key)
        return run(args)

    def saved(self) -> tuple[str, Sequence[SavedKernel], KernelModule]:
        """What stands for the kernels in saved code; AotcError (code "vm") for one of another compiler."""
        library = self._library if self._static else self.work.compile_functions({"none": _nothing()})
        kernels = []
        for number, function in self.functions.items():
            if "Compiler" in function.attrs:
                raise AotcError("vm", f"kernels of the compiler {function.attrs['Compiler']!r} cannot be saved")
            info = library.infos.get(self.names[number])
            text = "" if info is not None else astext(function)
            kernels.append(SavedKernel(info, type_of(function.body), text))
        return self.work.target.name, kernels, KernelModule(library.path, library)

    def _specialized(self, number: int, types: Sequence[Type]) -> Run:
        function, name = self.functions[number], self.names[number]
        try:
            concrete = _retyped(function, types)
            if not _is_compiled(concrete):
                return lambda args: evaluate(concrete, *args)
            library = self.work.compile_functions({name: concrete})
        except AotcError as error:
            text = f"{anchor_name(function)} on ({', '.join(map(str, types))}): {error.diagnostics[0].message}"
            raise AotcError(error.code, text, span=error.diagnostics[0].span or function.span) from error
        self.compilations += 1
        return runner(library, name, type_of(concrete.body))


def _nothing() -> Function:
    """A function for libraries that would be empty."""
    x = Var("x", TensorType(()))
    return Function((x,), -x)


def _late_kernels(texts: Mapping[int, str], target: str) -> Kernels:
    """Kernels of functions for the shapes that come up."""
    work = Compilation(IRModule(), Target(target), "main", PassContext.current())
    functions = {k: as_function(parse_expr(text)) for k, text in texts.items()}
    return Kernels(work, functions, {k: f"{k}:{anchor_name(f)}" for k, f in functions.items()})


install_compiler(_late_kernels)


def _retyped(function: Function, types: Sequence[Type]) -> Function:
    """A primitive function on arguments of more precise types."""
    params = [Var(p.name, ty, p.span) for p, ty in zip(function.params, types, strict=True)]
    body = substitute(function.body, dict(zip(function.params, params, strict=True)))
    return infer_function(Function(params, body, attrs=function.attrs, span=function.span))


def _is_compiled(function: Function) -> bool:
    """Whether all shapes are known, none of them an argument, no tensor is empty, and operators have programs."""
    ops = (n.op for n in post_order(function.body) if isinstance(n, Call))
    if any(isinstance(op, OpDef) and op.compute is None for op in ops):
        return False
    tensors = [t for ty in (*map(type_of, function.params), type_of(function.body)) for t in tensor_types(ty)]
    return all(t.is_static and t.numel for t in tensors)


def _type_of_value(value: Value) -> Type:
    if isinstance(value, np.ndarray):
        return TensorType(value.shape, DType.of(value))
    assert isinstance(value, tuple), "kernels take arrays and tuples of them"
    return TupleType(map(_type_of_value, value))
