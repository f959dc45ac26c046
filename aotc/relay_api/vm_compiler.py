# SPDX-License-Identifier: Apache-2.0
"""`relay.vm.compile`: compile programs with control flow, closures, recursion and dynamic shapes to
code of a virtual machine.

exe = compile(mod, "llvm", params=params)
VirtualMachine(exe, cpu()).invoke("main", x)

Kernels with static types are compiled in advance, as one library. Kernels with unknown dimensions
are compiled at run time, when a call with new shapes occurs first, and cached; beyond a limit the
least recently used ones are discarded. Operators whose result shape depends on values, tensors
without elements, and operators that are defined through other operators at known dimensions are
evaluated with their reference implementations in numpy, since no static kernel can compute them.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aotc.driver.import_model import bind_params_as_constants
from aotc.driver.pipeline import Compilation
from aotc.ir import AotcError, FuncType, PassContext, TensorType, Type, tensor_types, walk_nested_types
from aotc.relay.backend.bytecode_compiler import compile_bytecode
from aotc.relay.backend.function_to_kernel import kernel_name_from_anchor_operator
from aotc.relay.expr import Call, Function, Var, require_function, type_of
from aotc.relay.graph_api import IRModule, evaluate, infer_function, post_order, substitute_variables
from aotc.relay.interpreter import type_of_array_or_tuple
from aotc.relay.op.found_sizes import RequireRangeAttrs
from aotc.relay.op.opdef import OpDef
from aotc.relay.text.parser import parse_expr
from aotc.relay.text.printer import astext
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.inline_eta_expand_lambda_lift import LambdaLift
from aotc.relay.transform.let_conversion import ToANormalForm
from aotc.relay_api.build import require_ir_module
from aotc.relay_api.target import Target
from aotc.runtime.fork_safety import ForkSafeMutex
from aotc.runtime.module import KernelModule
from aotc.runtime.vm import (
    Executable,
    KernelFunction,
    SavedKernel,
    Value,
    install_dynamic_kernel_compiler,
    make_kernel_function,
)
from aotc.tir.target import Target as MachineTarget

#: Largest number of kernels that one executable caches for shapes found at run time.
MAX_CACHED_DYNAMIC_KERNELS: Final = 256


def compile(mod: IRModule, target: str | MachineTarget = "llvm", params: Mapping[str, Any] | None = None) -> Executable:
    """Compile a module for the virtual machine under the current pass context.

    target   see `aotc.relay_api.target.Target`
    params   values of parameters of @main by name; they become constants

    Raises AotcError for ill-typed programs, a pass context that disables FuseOps, an @main whose
    arguments or results are functions, GPU targets, and errors of compiling kernels with static
    shapes.
    """
    require_ir_module(mod, "vm")
    if not PassContext.current().pass_enabled(FuseOps().info):
        raise AotcError("vm", "the pass context disables FuseOps, which is required to form kernels")
    machine = Target(target)
    if machine.gpu is not None:
        text = "the virtual machine calls kernels on processors"
        raise AotcError("target", text, hint="use relay.build, which compiles programs of static shapes for GPUs")
    work = Compilation(bind_params_as_constants(mod, params), machine, "main", PassContext.current())
    with work.activate_cache_tilings_and_reports():
        _check_main_has_no_function_values(work.optimized_graph.main)
        # bytecode needs lambda lifting and A-normal form at every optimization level
        program = compile_bytecode(ToANormalForm()(LambdaLift()(work.optimized_graph)))
        names = [f"{k}:{kernel_name_from_anchor_operator(f)}" for k, f in enumerate(program.kernels)]
        kernels = LateCompiledKernels(work, dict(enumerate(program.kernels)), dict(enumerate(names)))
        return Executable(program.functions, program.constants, names, kernels)


def _check_main_has_no_function_values(main: Function) -> None:
    types = walk_nested_types(*map(type_of, main.params), type_of(main.body))
    if any(isinstance(ty, FuncType) for ty in types):
        hint = 'create_executor("debug", ...) gives and takes functions'
        text = "@main takes or gives a function"
        raise AotcError("first-class-function", text, span=main.span, hint=hint)


@dataclass(eq=False)
class LateCompiledKernels:
    """The kernels of a virtual machine executable: primitive functions by number, each compiled for
    the argument types with which it is called.

    work           compilation that compiles them
    names          names of the functions in libraries
    limit          largest number of cached kernels for types found at run time
    compilations   number of kernels compiled for types found at run time
    """

    work: Compilation
    functions: Mapping[int, Function]
    names: Mapping[int, str]
    limit: int = MAX_CACHED_DYNAMIC_KERNELS
    compilations: int = 0

    def __post_init__(self) -> None:
        self._turns = ForkSafeMutex()
        self._kernel_cache: OrderedDict[tuple[int, tuple[Type, ...]], KernelFunction] = OrderedDict()
        static = {self.names[k]: f for k, f in self.functions.items() if _can_be_compiled(f)}
        self._library = self.work.compile_functions(static)
        self._static = {n: make_kernel_function(self._library, n, type_of(f.body)) for n, f in static.items()}

    def __call__(self, number: int, args: Sequence[Value]) -> Value:
        """Call kernel `number` and return its result. Raises AotcError naming the operator and the
        types if the kernel cannot be compiled for them.
        """
        run = self._static.get(self.names[number])
        if run is None:
            types = tuple(map(type_of_array_or_tuple, args))
            key = number, types
            with self._turns:
                run = self._kernel_cache.get(key)
                if run is None:
                    run = self._kernel_cache[key] = self._compile_kernel_for_types(number, types)
                    while len(self._kernel_cache) > self.limit:
                        self._kernel_cache.popitem(last=False)
                self._kernel_cache.move_to_end(key)
        return run(args)

    def kernels_for_saving(self) -> tuple[str, Sequence[SavedKernel], KernelModule]:
        """Return the target's name, the description of each kernel and the library, for saving an
        executable. Raises AotcError (code "vm") for a kernel of an external compiler.
        """
        library = (
            self._library if self._static else self.work.compile_functions({"none": _placeholder_scalar_function()})
        )
        kernels = []
        for number, function in self.functions.items():
            if "Compiler" in function.attrs:
                raise AotcError("vm", f"kernels of the compiler {function.attrs['Compiler']!r} cannot be saved")
            info = library.infos.get(self.names[number])
            text = "" if info is not None else astext(function)
            kernels.append(SavedKernel(info, type_of(function.body), text))
        return self.work.target.name, kernels, KernelModule(library.path, library)

    def _compile_kernel_for_types(self, kernel_number: int, types: Sequence[Type]) -> KernelFunction:
        function, name = self.functions[kernel_number], self.names[kernel_number]
        try:
            concrete = _specialize_parameter_types(function, types)
            if not _can_be_compiled(concrete):
                return lambda args: evaluate(concrete, *args)
            library = self.work.compile_functions({name: concrete})
        except AotcError as error:
            text = (
                f"{kernel_name_from_anchor_operator(function)} on "
                f"({', '.join(map(str, types))}): {error.diagnostics[0].message}"
            )
            raise AotcError(error.code, text, span=error.diagnostics[0].span or function.span) from error
        self.compilations += 1
        return make_kernel_function(library, name, type_of(concrete.body))


def _placeholder_scalar_function() -> Function:
    """Return a function that negates a scalar, for a kernel library that would otherwise be empty."""
    x = Var("x", TensorType(()))
    return Function((x,), -x)


def _kernels_compiled_at_run_time(function_texts: Mapping[int, str], target: str) -> LateCompiledKernels:
    """Return kernels for functions given as text, which are compiled for a target when shapes are
    known at run time.
    """
    work = Compilation(IRModule(), Target(target), "main", PassContext.current())
    functions = {k: require_function(parse_expr(text)) for k, text in function_texts.items()}
    return LateCompiledKernels(
        work, functions, {k: f"{k}:{kernel_name_from_anchor_operator(f)}" for k, f in functions.items()}
    )


install_dynamic_kernel_compiler(_kernels_compiled_at_run_time)


def _specialize_parameter_types(function: Function, types: Sequence[Type]) -> Function:
    """Return a primitive function with the types of its parameters replaced by more precise ones."""
    params = [Var(p.name, ty, p.span) for p, ty in zip(function.params, types, strict=True)]
    body = substitute_variables(function.body, dict(zip(function.params, params, strict=True)))
    return infer_function(Function(params, body, attrs=function.attrs, span=function.span))


def _can_be_compiled(function: Function) -> bool:
    """Return True if a function can be compiled: all shapes are static, no tensor is empty, all operators have a
    compute definition, and none checks the values of its operands.
    """
    calls = [n for n in post_order(function.body) if isinstance(n, Call)]
    if any(isinstance(n.op, OpDef) and n.op.compute is None for n in calls):
        return False
    if any(isinstance(n.attrs, RequireRangeAttrs) for n in calls):
        return False
    tensors = [t for ty in (*map(type_of, function.params), type_of(function.body)) for t in tensor_types(ty)]
    return all(t.is_static and t.numel for t in tensors)
