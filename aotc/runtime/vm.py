# SPDX-License-Identifier: Apache-2.0
"""Virtual machine: execute bytecode that calls compiled kernels, with unlimited recursion depth.

vm = VirtualMachine(executable, cpu())
vm.invoke("main", x)                                 # an NDArray, or a (nested) tuple of them
vm.set_input("main", x=x); vm.run()

Values are arrays, tuples of values, and closures.  An array is released as soon as no instruction
can read it.

code, lib = executable.save()                        # bytes, and a library of kernels: `lib.export_library`
Executable.load_exec(code, lib)
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    Device,
    DType,
    JsonFormat,
    ParameterFileReader,
    SymDim,
    check_until_symbols_are_known,
    did_you_mean_hint,
    frozen,
    is_shape_compatible_binding_symbols,
    require_usable_device,
    serialize_array,
)
from aotc.ir.ndarray import convert_argument_to_array, convert_arrays_to_ndarrays
from aotc.ir.quantization import Quantization
from aotc.ir.types import (
    FuncType,
    TensorType,
    TupleType,
    Type,
    flatten_nested_tuple,
    nest_values_like_type,
    tensor_types,
)
from aotc.ir.vm_bytecode import Instruction, Opcode, VMFunction
from aotc.runtime.kernel_library import KernelInfo, KernelLibrary
from aotc.runtime.library_integrity import require_file_checksum, sha256_of_file
from aotc.runtime.module import KernelModule
from aotc.runtime.tensor_info import TensorInfo

Array: TypeAlias = "np.ndarray[Any, Any]"


@frozen(eq=False)
class VMClosure:
    """A closure of the virtual machine: the number of a bytecode function and the values of its
    first arguments.
    """

    function: int
    captured: tuple[Value, ...]


Value: TypeAlias = "Array | tuple[Any, ...] | VMClosure"
KernelFunction: TypeAlias = Callable[[Sequence[Value]], Value]


@frozen
class SavedKernel:
    """A kernel in a saved executable: compiled in the library (`info`), or Relay text of a function
    to compile later.
    """

    info: KernelInfo | None
    result: Type
    text: str = ""


class KernelCaller(Protocol):
    """Interface for calling compiled kernels of an executable by number; argument values are not
    modified.
    """

    def __call__(self, number: int, args: Sequence[Value], /) -> Value: ...

    def kernels_for_saving(self) -> tuple[str, Sequence[SavedKernel], KernelModule]:
        """Return the name of the target, all kernels in order, and the module of the compiled ones."""


#: Function from Relay texts of kernels by number, and a target's name, to a caller of these kernels
#: that compiles each for the shapes that occur.
CompileDynamicKernels: TypeAlias = "Callable[[Mapping[int, str], str], KernelCaller]"


def make_kernel_function(library: KernelLibrary, kernel_name: str, result_type: Type) -> KernelFunction:
    """Return a function that calls a compiled kernel and returns results of known static types."""
    outputs = [(t.static_shape, t.dtype.numpy) for t in tensor_types(result_type)]

    def call_compiled_kernel(args: Sequence[Value]) -> Value:
        arrays = [np.empty(shape, dtype) for shape, dtype in outputs]
        library.run_kernel(kernel_name, [np.asarray(a, order="C") for a in flatten_nested_tuple(tuple(args))], arrays)
        value: Value = nest_values_like_type(result_type, iter(arrays))
        return value

    return call_compiled_kernel


@dataclass(frozen=True, eq=False, repr=False)
class Executable:
    """A compiled program: bytecode, constants and kernels; any number of virtual machines and
    threads may run it.

    functions      functions by number
    constants      arrays by number, for `load_const`
    kernel_names   names of the kernels by number
    call_kernel    calls a kernel by number on values, which it does not modify
    """

    functions: Sequence[VMFunction]
    constants: Sequence[Array]
    kernel_names: Sequence[str]
    call_kernel: KernelCaller

    @cached_property
    def _functions_by_name(self) -> Mapping[str, VMFunction]:
        return {function.name: function for function in self.functions}

    def function_by_name(self, name: str) -> VMFunction:
        """Return the bytecode function called `name`; raise AotcError if there is none."""
        if name not in self._functions_by_name:
            raise AotcError(
                "unknown-function", f"no function @{name}", hint=did_you_mean_hint(name, self._functions_by_name)
            )
        return self._functions_by_name[name]

    def save(self) -> tuple[bytearray, KernelModule]:
        """Return the serialized bytecode with constants, and the module of kernels with static
        shapes.

        Kernels with dynamic shapes are saved as Relay text in the bytecode.  Raises AotcError (code
        "vm") for a kernel of an external compiler.
        """
        target, kernels, module = self.call_kernel.kernels_for_saving()
        dtypes = tuple(DType.from_numpy(a) for a in self.constants)
        saved = _SavedExecutable(
            tuple(self.functions), tuple(self.kernel_names), tuple(kernels), dtypes, target, sha256_of_file(module.path)
        )
        text = _EXECUTABLE_FORMAT.dump_json(saved)
        body = b"".join([struct.pack("<Q", len(text)), text, *map(serialize_array, self.constants)])
        return bytearray(_EXECUTABLE_MAGIC + hashlib.sha256(body).digest() + body), module

    @staticmethod
    def load_exec(bytecode: bytes | bytearray, lib: KernelModule) -> Executable:
        """Load an executable of the virtual machine from its serialized bytecode and its library of
        kernels, as `save` returns them.

        Raises AotcError: code "load" for damaged bytecode, "checksum" for kernels of another
        executable, "vm" if kernels with dynamic shapes need the compiler and `aotc.relay` is not
        imported.
        """
        try:
            saved, constants = _deserialize_executable(bytes(memoryview(bytecode)))
        except (ValueError, TypeError) as error:
            raise AotcError(
                "load", f"the data is not the saved code of an executable, or is damaged: {error}"
            ) from error
        require_file_checksum(lib.path, saved.digest)
        return Executable(saved.functions, constants, saved.names, _LoadedKernels(saved, lib))

    @property
    def globals(self) -> list[str]:
        """The names of all bytecode functions of the executable."""
        return list(self._functions_by_name)

    @property
    def primitive_ops(self) -> list[str]:
        """The names of all compiled kernels of the executable."""
        return list(self.kernel_names)

    @property
    def bytecode(self) -> str:
        """The bytecode instructions of all functions as text."""
        return "\n\n".join(f"VM Function[{k}]: {function}" for k, function in enumerate(self.functions))

    @property
    def stats(self) -> str:
        """Statistics as text: the number of constants, the functions, the kernels, and counts of
        instructions.
        """
        counts = Counter(ins.opcode.value for f in self.functions for ins in f.code)
        instructions = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        return (
            f"constants: {len(self.constants)}\nglobals: {', '.join(self._functions_by_name)}\n"
            f"primitive ops: {', '.join(self.kernel_names)}\ninstructions: {instructions}"
        )


# --- saved executables

_EXECUTABLE_MAGIC: Final = b"aotc-vm1"


@frozen
class _SavedExecutable:
    """Contents of a saved executable, except the elements of its constants."""

    functions: tuple[VMFunction, ...]
    names: tuple[str, ...]
    kernels: tuple[SavedKernel, ...]
    dtypes: tuple[DType, ...]
    target: str
    digest: str


_SERIALIZED_TYPE_CLASSES: Final = (FuncType, TensorType, TupleType, DType, SymDim)
_SERIALIZED_PART_CLASSES: Final = (SavedKernel, KernelInfo, TensorInfo, Quantization, VMFunction, Instruction, Opcode)
_EXECUTABLE_FORMAT: Final = JsonFormat(
    _SavedExecutable, (_SavedExecutable, *_SERIALIZED_PART_CLASSES, *_SERIALIZED_TYPE_CLASSES)
)


def _deserialize_executable(serialized_executable: bytes) -> tuple[_SavedExecutable, list[Array]]:
    """Deserialize the bytecode and constants of a saved executable; raise ValueError if the data is
    invalid.
    """
    reader = ParameterFileReader(serialized_executable)
    if (
        reader.read_bytes(len(_EXECUTABLE_MAGIC)) != _EXECUTABLE_MAGIC
        or reader.read_bytes(32) != hashlib.sha256(serialized_executable[len(_EXECUTABLE_MAGIC) + 32 :]).digest()
    ):
        raise ValueError("its checksum is wrong")
    (size,) = reader.read_struct("<Q")
    saved = _EXECUTABLE_FORMAT.load_json(reader.read_bytes(size))
    counts = {Opcode.GET_FIELD: size, Opcode.INVOKE_PACKED: len(saved.kernels), Opcode.LOAD_CONST: len(saved.dtypes)}
    counts |= dict.fromkeys((Opcode.INVOKE, Opcode.ALLOC_CLOSURE), len(saved.functions))
    if len(saved.names) != len(saved.kernels) or not all(k.info or k.text for k in saved.kernels):
        raise ValueError("its kernels are not those of its names")
    if not all(_is_valid_bytecode(function, counts) for function in saved.functions):
        raise ValueError("an instruction is about what is not there")
    return saved, [reader.read_array().view(dtype.numpy) for dtype in saved.dtypes]


def _is_valid_bytecode(function: VMFunction, index_limits: Mapping[Opcode, int]) -> bool:
    """Return True if all instructions of a function are valid.

    Registers must exist, jumps must go forward, and indices must be below the numbers in
    `index_limits`.
    """
    most, code = function.registers, function.code
    used = all(k in range(most) for ins in code for k in (*ins.args, max(ins.dst, 0)))
    named = (ins.index < index_limits.get(ins.opcode, len(code)) for ins in code)
    jumps = ((pc, ins.index) for pc, ins in enumerate(code) if ins.opcode in (Opcode.IF, Opcode.GOTO))
    return used and all(named) and all(pc < index for pc, index in jumps) and len(function.params) <= most


class _LoadedKernels:
    """Calls the kernels of an executable that was loaded from saved bytecode."""

    def __init__(self, saved: _SavedExecutable, module: KernelModule) -> None:
        self._saved, self._module = saved, module
        static_kernels = {n: k for n, k in zip(saved.names, saved.kernels, strict=True) if k.info is not None}
        library = KernelLibrary(
            module.path, {n: k.info for n, k in static_kernels.items() if k.info is not None}, module
        )
        self._runs = {n: make_kernel_function(library, n, k.result) for n, k in static_kernels.items()}
        late_texts = {number: k.text for number, k in enumerate(saved.kernels) if k.text}
        self._late = _DYNAMIC_KERNEL_COMPILER[0](late_texts, saved.target) if late_texts else None

    def __call__(self, number: int, args: Sequence[Value], /) -> Value:
        run = self._runs.get(self._saved.names[number])
        if run is None:
            assert self._late is not None, "what is no kernel of the library has a text"
            return self._late(number, args)
        return run(args)

    def kernels_for_saving(self) -> tuple[str, Sequence[SavedKernel], KernelModule]:
        return self._saved.target, self._saved.kernels, self._module


def install_dynamic_kernel_compiler(compile_kernels: CompileDynamicKernels) -> None:
    """Register the compiler for kernels with dynamic shapes in loaded executables."""
    _DYNAMIC_KERNEL_COMPILER[0] = compile_kernels


def _raise_no_compiler_installed(function_texts: Mapping[int, str], target: str) -> KernelCaller:
    text = "kernels for unknown shapes are compiled when these come up"
    raise AotcError("vm", text, hint="import aotc.relay.vm, which brings the compiler")


_DYNAMIC_KERNEL_COMPILER: Final[list[CompileDynamicKernels]] = [_raise_no_compiler_installed]


class VirtualMachine:
    """The virtual machine, which runs the bytecode functions of an executable.

    exe      the program
    device   device to run on; None: the CPU

    Several threads may call `invoke`; inputs set by `set_input` and the result
    of `run` are stored per machine.
    """

    def __init__(self, exe: Executable, device: Device | None = None) -> None:
        self.exe = exe
        self.device = require_usable_device(device)
        self._inputs: dict[str, list[Value]] = {}
        self._result: Any = None

    def invoke(self, func_name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with arguments by position or name, or with those of `set_input` if none
        are given.

        Returns a tensor or a nested tuple of tensors.  Raises AotcError for missing, superfluous or
        mistyped arguments, and for errors of kernels.
        """
        function = self.exe.function_by_name(func_name)
        stored = self._inputs.get(func_name) if not args and not kwargs else None
        return convert_arrays_to_ndarrays(
            self.execute_function(
                function, stored if stored is not None else _bind_and_check_arguments(function, args, kwargs)
            )
        )

    def set_input(self, func_name: str, /, *args: Any, **kwargs: Any) -> None:
        """Store the arguments of a function for later calls of it without arguments."""
        self._inputs[func_name] = _bind_and_check_arguments(self.exe.function_by_name(func_name), args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function @main as `invoke` does, and store its result for `get_outputs`."""
        self._result = self.invoke("main", *args, **kwargs)
        return self._result

    def get_outputs(self) -> list[Any]:
        """Return the result of the last `run` as a list, with one entry per field of a tuple."""
        return list(self._result) if isinstance(self._result, tuple) else [self._result]

    def execute_function(self, function: VMFunction, args: Sequence[Value]) -> Value:
        """Execute a bytecode function on validated argument values; return its result."""
        exe = self.exe
        registers, pc = _initial_registers(function, args), 0
        callers: list[tuple[VMFunction, list[Any], int, int]] = []
        while True:
            ins = function.code[pc]
            operands = [registers[k] for k in ins.args]
            for k in function.dead[pc]:
                registers[k] = None
            pc += 1
            try:
                match ins.opcode:
                    case Opcode.RET:
                        result: Value = operands[0]
                        if not callers:
                            return result
                        function, registers, pc, dst = callers.pop()
                        registers[dst] = result
                    case Opcode.GOTO:
                        pc = ins.index
                    case Opcode.IF:
                        pc = pc if operands[0].item() else ins.index
                    case Opcode.INVOKE | Opcode.INVOKE_CLOSURE:
                        if pc - 1 not in function.tail:
                            callers.append((function, registers, pc, ins.dst))
                        number, operands = _callee_number_and_arguments(ins, operands)
                        function = exe.functions[number]
                        registers, pc = _initial_registers(function, operands), 0
                    case _:
                        registers[ins.dst] = _compute_instruction_result(exe, ins, operands)
            except (AssertionError, AttributeError, IndexError, TypeError, ValueError) as error:
                # kernels of external compilers may raise any exception
                loaded = isinstance(exe.call_kernel, _LoadedKernels)
                if isinstance(error, AotcError) or (ins.opcode is Opcode.INVOKE_PACKED and not loaded):
                    raise
                text = f"instruction {pc - 1} of @{function.name}, {ins}, does not fit the values that it reads"
                raise AotcError("vm", text, hint="load code that `Executable.save` returned") from error


def _initial_registers(function: VMFunction, args: Sequence[Value]) -> list[Any]:
    return [*args, *[None] * (function.registers - len(args))]


def _callee_number_and_arguments(instruction: Instruction, operands: list[Any]) -> tuple[int, list[Any]]:
    """Return the number of the function that a call instruction invokes, and the argument values."""
    if instruction.opcode is Opcode.INVOKE:
        return instruction.index, operands
    closure = operands[0]
    return closure.function, [*closure.captured, *operands[1:]]


def _compute_instruction_result(executable: Executable, instruction: Instruction, operands: list[Any]) -> Any:
    """Compute the value that a bytecode instruction writes to its destination register."""
    match instruction.opcode:
        case Opcode.INVOKE_PACKED:
            return executable.call_kernel(instruction.index, operands)
        case Opcode.LOAD_CONST:
            return executable.constants[instruction.index]
        case Opcode.GET_FIELD:
            return operands[0][instruction.index]
        case Opcode.ALLOC_ADT:
            return tuple(operands)
        case Opcode.ALLOC_CLOSURE:
            return VMClosure(instruction.index, tuple(operands))
        case Opcode.MOVE:
            return operands[0]
        case _:
            raise AssertionError(f"{instruction.opcode} writes no register")


# --- values from outside


def _bind_and_check_arguments(function: VMFunction, args: Sequence[Any], named: Mapping[str, Any]) -> list[Value]:
    params = function.params
    if len(args) > len(params):
        raise AotcError("vm", f"@{function.name} takes {len(params)} arguments, got {len(args)}")
    rest = params[len(args) :]
    for name in named:
        if name not in rest:
            text = "is given twice" if name in params else f"is no parameter of @{function.name}"
            raise AotcError("vm", f"{name!r} {text}", hint=did_you_mean_hint(name, params))
    if missing := [repr(p) for p in rest if p not in named]:
        raise AotcError("vm", f"no value for {', '.join(missing)}")
    values = list(zip(params, [*args, *map(named.get, rest)], function.type.arg_types, strict=True))
    return check_until_symbols_are_known(
        lambda sizes: [_check_and_convert_argument(name, value, ty, sizes) for name, value, ty in values]
    )


def _check_and_convert_argument(name: str, value: Any, ty: Type, symbol_sizes: dict[str, int]) -> Value:
    """Convert an argument of a VM call to a value of type `ty`; AotcError if it does not match."""
    match ty:
        case TensorType():
            array = convert_argument_to_array(value, ty)
            if array.dtype != ty.dtype.numpy or not is_shape_compatible_binding_symbols(
                ty.shape, array.shape, symbol_sizes
            ):
                got = TensorType(array.shape, DType.from_numpy(array))
                raise AotcError("vm", f"argument {name!r} must be {ty}, got {got}")
            return array
        case TupleType(fields=fields):
            if not isinstance(value, (tuple, list)) or len(value) != len(fields):
                raise AotcError("vm", f"argument {name!r} must be a tuple of {len(fields)} values")
            return tuple(
                _check_and_convert_argument(name, v, f, symbol_sizes) for v, f in zip(value, fields, strict=True)
            )
        case FuncType():
            raise AotcError("vm", f"argument {name!r} is a function, which cannot be passed as an argument")
        case _:
            raise AotcError("vm", f"argument {name!r} is {ty}: arguments are tensors and tuples")
