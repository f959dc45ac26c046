# SPDX-License-Identifier: Apache-2.0
"""Check the C compiler: run every kernel compiled at the project's flags and at -O0, and compare
the output bits.

# AotcError (code "compiler-check") names the wrong
check_c_compiler_on_project(directory, metadata, programs, toolchain, target)

The result of a kernel is fully determined by its program, so all optimization levels must give
equal bits, except in NaN payloads.  A small C program calls each kernel twice: once on memory
filled with ordinary numbers, including zeros of both signs and subnormals, and once on extreme
values, infinities and NaN.  Kernels keep their indices within bounds whatever values they read.
The program runs as a separate process, under QEMU if the target has another architecture.  Kernels
written by the user are not checked: their valid inputs, and whether C defines their behavior, are
unknown.
"""

import logging
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from signal import strsignal
from typing import Any, Final

import numpy as np
from aotc_codegen.c.c_identifiers import model_node_names_of_span
from aotc_codegen.c.cpu_feature_check import amx_permission_constructor_code
from aotc_codegen.c.host_project import GENERATED_FILE_BANNER
from aotc_codegen.c.kernel_files import print_kernels
from aotc_codegen.c.kernel_library_project import (
    KERNEL_TABLE_PREFIX,
    c_functions_calling_kernels_by_addresses,
    print_kernel_table,
)
from aotc_codegen.c.template_rendering import render_template

from aotc.driver.compile_sources import make_project_object_compiler
from aotc.driver.emulators import qemu_command
from aotc.driver.object_compiler import ObjectCompiler
from aotc.driver.subprocesses import run_program
from aotc.driver.toolchain import (
    Toolchain,
    architecture_compiled_for,
    compiler_version_line,
    foreign_architecture_of_target,
    require_cpu_can_run,
    run_compiler,
)
from aotc.ir import AotcError, Array, Diagnostic, DType, Span, frozen, normalized_architecture_name, option_text
from aotc.ir.atomic_write import temporary_folder
from aotc.runtime.tensor_info import TensorInfo
from aotc.tir import Buffer, Kernel, Program, Target

LOG: Final = logging.getLogger("aotc")
#: Compiler flags of the trusted reference: no optimization.
TRUSTED_FLAGS: Final = ("-O0",)
#: Kinds of test values, one for each round of calls.
TEST_VALUE_KINDS: Final = ("ordinary values", "extreme values")
ROUND_COUNT: Final = len(TEST_VALUE_KINDS)
#: Number of test values of each type, repeated to fill memory: a prime, so that rows of a tensor differ.
TEST_VALUES_PER_DTYPE: Final = 65537
#: Zero, and the smallest normal and subnormal numbers of float16, bfloat16, float32 and float64.
SMALLEST_FLOAT_MAGNITUDES: Final = (0.0, *(2.0**k for k in (-14, -24, -126, -133, -149, -1022, -1074)))
#: One in this many test values is a special value.
SPECIAL_VALUE_PERIOD: Final = 8
#: Time limit for one run of all kernels, in seconds.
MAX_RUN_SECONDS: Final = 900.0
#: Largest numbers of kernels, and of nodes per kernel, that a message names.
SHOWN_KERNELS, SHOWN_NODES = 20, 8
_BUFFER_ALIGNMENT_BYTES: Final = 64


@frozen
class InstructionSetKernels:
    """The kernels of one instruction set by C name, and the source files that define them.

    prefix           prefix of the headers that declare the kernels
    spans            source locations in the model of the calls of each kernel
    added_arguments  the last C arguments of a kernel whose function computes with several constants
    """

    target: Target
    prefix: str
    kernels: Mapping[str, Kernel]
    files: Sequence[Path]
    spans: Mapping[str, Sequence[Span]]
    added_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)


def check_c_compiler_on_project(
    directory: Path, metadata: Mapping[str, Any], programs: Sequence[Program], toolchain: Toolchain, target: Target
) -> list[str]:
    """Compare the kernels of an emitted project, compiled as by `build_project_library`, with their
    results at -O0.

    Return a message for each part that was not checked (GPU kernels, bare-metal targets, and
    instruction sets that cannot run here); each message is also logged as a warning.  Raise
    AotcError (code "compiler-check") naming every kernel whose results differ, and the compiler's
    own AotcError if it fails.
    """
    if target.gpu is not None:
        return [_warn_compiler_unchecked(target, "it does not compile kernels for GPUs")]
    if target.bare:
        return [_warn_compiler_unchecked(target, "its code runs without an operating system")]
    users = {external["source"] for external in metadata["externals"]}
    parts = []
    for isa, program, isa_target in zip(metadata["isas"], programs, target.versions or (target,), strict=True):
        calls = [(n, s) for n, s in zip(isa["steps"], program.steps, strict=True) if s.kernel.source is None]
        spans: dict[str, list[Span]] = {}
        for name, step in calls:
            spans.setdefault(name, []).extend(s for s in (step.span or step.kernel.span,) if s is not None)
        files = [directory / file for file in isa["files"] if file not in users]
        kernels = {n: s.kernel for n, s in calls}
        numbers = print_kernels(program.distinct_kernels, program.name, kernel_merging="values").numbers
        added = {name: numbers[kernel] for name, kernel in kernels.items() if kernel in numbers}
        parts.append(InstructionSetKernels(isa_target, program.name, kernels, files, spans, added))
    return _check_c_compiler_on_instruction_sets(directory, metadata, parts, toolchain, target)


def _warn_compiler_unchecked(target: Target, reason: str) -> str:
    """Log a warning that the compiler was not checked for a target, with the reason; return its
    text.
    """
    text = f"the C compiler was not checked for {target.name}: {reason}"
    LOG.warning(text)
    return text


def check_c_compiler_on_kernels(
    directory: Path, metadata: Mapping[str, Any], kernels: Sequence[Kernel], target: Target, toolchain: Toolchain
) -> None:
    """Compare at least one kernel, as `emit_kernel_table_project` wrote it to a directory, with its
    results at -O0.

    Raises AotcError as `check_c_compiler_on_project` does.
    """
    named = {name: kernel for kernel, name in print_kernel_table(kernels, target).names.items()}
    spans = {name: [kernel.span] for name, kernel in named.items() if kernel.span is not None}
    files = sorted(directory.glob(f"src/{KERNEL_TABLE_PREFIX}_kernels_*.c"))
    _check_c_compiler_on_instruction_sets(
        directory,
        metadata,
        [InstructionSetKernels(target, KERNEL_TABLE_PREFIX, named, files, spans)],
        toolchain,
        target,
    )


def _check_c_compiler_on_instruction_sets(
    directory: Path,
    metadata: Mapping[str, Any],
    parts: Sequence[InstructionSetKernels],
    toolchain: Toolchain,
    target: Target,
) -> list[str]:
    compilers = [
        make_project_object_compiler(
            directory, metadata, replace(toolchain, cflags=(*toolchain.cflags, *extra_flags)), target
        )
        for extra_flags in ((), TRUSTED_FLAGS)
    ]
    problems: list[Diagnostic] = []
    unchecked: list[str] = []
    for part in parts:
        runner, obstacle = command_prefix_to_run_target_programs(part.target, architecture_compiled_for(toolchain))
        if obstacle:
            unchecked.append(_warn_compiler_unchecked(part.target, obstacle))
        elif part.kernels:
            with temporary_folder("aotc-check-") as scratch:
                problems += _OptimizationCheck(
                    part, compilers, runner, Path(scratch)
                ).compare_optimized_and_unoptimized_builds()
    if problems:
        raise AotcError.collect(problems)
    return unchecked


def command_prefix_to_run_target_programs(
    target: Target, compiled_architecture: str = ""
) -> tuple[tuple[str, ...], str]:
    """Return the command prefix that runs programs for a target on this machine, and the reason if
    they cannot run.

    The prefix is empty for native programs and names a QEMU emulator for a foreign architecture.

    compiled_architecture    the architecture that the compiler generates code for, if known
    """
    cross_architecture = compiled_architecture if compiled_architecture != normalized_architecture_name() else ""
    if machine := foreign_architecture_of_target(target) or cross_architecture:
        emulator, *cpu_args = qemu_command(machine, target)
        if path := shutil.which(emulator):
            return ((path, *cpu_args), "")
        return ((), f"its code cannot run here, and there is no {emulator}")
    try:
        require_cpu_can_run(target)
    except AotcError as error:
        return (), error.diagnostics[0].message
    return (), ""


@frozen
class _OptimizationCheck:
    """Comparison of one part: compiled by the tested compiler, then by the trusted one (-O0), and
    run with `runner` as the command prefix.
    """

    part: InstructionSetKernels
    compilers: Sequence[ObjectCompiler]
    runner: tuple[str, ...]
    scratch: Path

    def compare_optimized_and_unoptimized_builds(self) -> list[Diagnostic]:
        """Compile and run both programs; return one diagnostic that names all kernels whose results
        differ, or none.
        """
        (self.scratch / "check.c").write_text(_kernel_test_program_source(self.part), encoding="utf-8")
        (self.scratch / "values").write_bytes(
            b"".join(
                compiler_test_value_bytes_of_round(_dtypes_of_kernel_buffers(self.part), r) for r in range(ROUND_COUNT)
            )
        )
        programs = [self._build_kernel_test_executable(k, compiler) for k, compiler in enumerate(self.compilers)]
        with ThreadPoolExecutor() as pool:
            ends, trusted_ends = pool.map(self._run_program_and_collect_kernel_crashes, programs)
        optimized_bytes, right = (_memory_map_file_bytes(p.with_suffix(".out")) for p in programs)
        differences: dict[str, str] = {}
        at = 0
        for name, kernel in self.part.kernels.items():
            size = ROUND_COUNT * sum(b.nbytes for b in kernel.outputs)
            reason = ends.get(name) or first_kernel_output_difference(
                kernel, optimized_bytes[at : at + size], right[at : at + size]
            )
            at += size
            if reason := trusted_ends.get(name, reason):
                differences[name] = reason
        return [self._wrong_kernels_diagnostic(differences)] if differences else []

    def _build_kernel_test_executable(self, build_index: int, compiler: ObjectCompiler) -> Path:
        """Compile the kernels and the calling program with one compiler; return the path of the
        executable.
        """
        folder = self.scratch / f"{build_index}"
        folder.mkdir()
        jobs = [(source, folder / f"{source.stem}.o") for source in self.part.files]
        compiler.compile_objects_in_parallel(sorted(jobs, key=lambda job: -job[0].stat().st_size))
        executable, cc, flags = folder / "check", compiler.toolchain, (*compiler.flags, *compiler.toolchain.cflags)
        # the emulator has no shared libraries of the foreign architecture
        static = ("-static",) if self.runner else ()
        files = (str(self.scratch / "check.c"), *(str(target) for _, target in jobs))
        command = (*cc.cc, *flags, "-w", *static, *files, "-lm", "-o", str(executable))
        run_compiler(command, compiler.directory, cc.seconds, executable)
        return executable

    def _run_program_and_collect_kernel_crashes(self, program: Path) -> dict[str, str]:
        """Run the program, restarting it after each kernel that crashes; return how the crashed
        kernels ended, by name.
        """
        ends: dict[str, str] = {}
        names, results = list(self.part.kernels), program.with_suffix(".out")
        sizes = [ROUND_COUNT * sum(b.nbytes for b in k.outputs) for k in self.part.kernels.values()]
        places, first = [0, *accumulate(sizes)], 0
        results.touch()
        while first < len(names):
            command = (*self.runner, str(program), str(self.scratch / "values"), str(results), f"{first}")
            try:
                done = run_program(command, seconds=MAX_RUN_SECONDS)
            except TimeoutError:
                raise AotcError(
                    "compiler-check", f"the kernels did not finish within {MAX_RUN_SECONDS:g} seconds"
                ) from None
            if done.code == 0:
                break
            last = int((done.output.split() or [b"%d" % first])[-1])
            signal = f", {strsignal(-done.code)}" if done.code < 0 else ""
            ends[names[last]] = f"it ends the program (exit code {done.code}{signal})"
            with results.open("r+b") as file:
                file.truncate(places[last + 1])
            first = last + 1
        return ends

    def _wrong_kernels_diagnostic(self, reason_by_kernel: Mapping[str, str]) -> Diagnostic:
        compiler, part = self.compilers[0], self.part
        toolchain = compiler.toolchain
        flags = shlex.join((*compiler.flags, *compiler.special.get(part.files[0], ()), *toolchain.cflags))
        text = f"{shlex.join(toolchain.cc)}, which is {compiler_version_line(toolchain)}, gives other results"
        text += (
            f" for {len(reason_by_kernel)} of {len(part.kernels)} kernels for {part.target.name} with {flags} than with"
        )
        text += f" {' '.join(TRUSTED_FLAGS)} appended"
        notes = [
            f"{name}{model_nodes_text(part.spans.get(name, ()))}: {reason}" for name, reason in reason_by_kernel.items()
        ]
        if len(notes) > SHOWN_KERNELS:
            notes[SHOWN_KERNELS:] = [f"and {len(notes) - SHOWN_KERNELS} more"]
        less = option_text("cflags", ["-O1"]) + ", " + option_text("cflags", ["-O0"])
        hint = "take another compiler (" + option_text("cc") + "), or let it do less (" + less + ")"
        if toolchain.cflags:
            hint = f"leave {shlex.join(toolchain.cflags)} out; " + hint
        return Diagnostic("compiler-check", text, notes=tuple(notes), hint=hint)


def model_nodes_text(spans: Sequence[Span]) -> str:
    """Return the model nodes that a kernel computes, in parentheses; "" if none is known."""
    nodes = list(dict.fromkeys(node for span in spans for node in model_node_names_of_span(span)))
    rest_text = f" and {len(nodes) - SHOWN_NODES} more" if len(nodes) > SHOWN_NODES else ""
    return f" (nodes {', '.join(nodes[:SHOWN_NODES])}{rest_text})" if nodes else ""


# --- test values


def _dtypes_of_kernel_buffers(part: InstructionSetKernels) -> list[DType]:
    """Return the element types of all inputs and outputs of the kernels to be checked, sorted."""
    return sorted({b.dtype for k in part.kernels.values() for b in (*k.inputs, *k.outputs)})


def _numpy_memory_dtype(dtype: DType) -> np.dtype[Any]:
    return TensorInfo("", [], dtype).c_memory_dtype


def compiler_test_value_bytes_of_round(dtypes: Sequence[DType], round_number: int) -> bytes:
    """Return the test values for one round of kernel calls, for all element types, as concatenated
    bytes.
    """
    return b"".join(draw_compiler_test_values(dtype, round_number).tobytes() for dtype in dtypes)


@cache
def draw_compiler_test_values(dtype: DType, round_number: int) -> Array:
    """Return `TEST_VALUES_PER_DTYPE` elements of a dtype in C's memory format for round
    `round_number`.

    Round 0: normally distributed floats mixed with zeros, subnormals and halves, or small integers.
    Round 1: floats mixed with infinities, NaN and the extreme finite values, or integers of the
    full range.
    """
    rng = np.random.default_rng(round_number)
    if dtype.is_bool:
        return rng.integers(0, 2, TEST_VALUES_PER_DTYPE).astype(np.bool_)
    if dtype.is_integer:
        least, most = int(dtype.min), int(dtype.max)
        if round_number == 0:
            return rng.integers(max(least, -8), min(most, 8), TEST_VALUES_PER_DTYPE, endpoint=True).astype(
                _numpy_memory_dtype(dtype)
            )
        values = rng.integers(least, most, TEST_VALUES_PER_DTYPE, _numpy_memory_dtype(dtype).type, endpoint=True)
        special = np.array([least, least + 1, most - 1, most, 0, 1, -1 % (most + 1)], object).astype(
            _numpy_memory_dtype(dtype)
        )
        return _replace_random_elements_by_special(values, special, SPECIAL_VALUE_PERIOD, rng)
    half = np.array(
        [
            [1.0, 0.5, 1.5, 2.5, *SMALLEST_FLOAT_MAGNITUDES],
            [*SMALLEST_FLOAT_MAGNITUDES, float(dtype.max), np.inf, np.nan],
        ][round_number]
    )
    values = _replace_random_elements_by_special(
        rng.standard_normal(TEST_VALUES_PER_DTYPE), np.concatenate([half, -half]), SPECIAL_VALUE_PERIOD, rng
    )
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy)


def _replace_random_elements_by_special(
    values: Array, special: Array, mean_spacing: int, rng: np.random.Generator
) -> Array:
    """Return `values` with about one in `mean_spacing` elements replaced by a random element of
    `special`.
    """
    return np.where(rng.integers(0, mean_spacing, values.size) == 0, rng.choice(special, values.size), values)


def _memory_map_file_bytes(path: Path) -> Array:
    return np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)


def _kernel_test_program_source(part: InstructionSetKernels) -> str:
    """Return the source of a C program that calls every kernel of a part on stored test values and
    writes the results.
    """
    dtypes = _dtypes_of_kernel_buffers(part)
    sizes = [TEST_VALUES_PER_DTYPE * _numpy_memory_dtype(dtype).itemsize for dtype in dtypes]
    wells = dict(zip(dtypes, zip(accumulate([0, *sizes[:-1]]), sizes, strict=True), strict=True))
    buffers: list[str] = []
    kernels: list[str] = []
    most = 0
    for name, kernel in part.kernels.items():
        at = 0
        parameters = len(kernel.inputs), len(kernel.outputs), len(kernel.workspace)
        first, outputs, workspace, end = accumulate(parameters, initial=len(buffers))
        kernels.append(f"{{call_{name}, {first}, {outputs}, {workspace}, {end}}}")
        for k, buffer in enumerate(kernel.params):
            values, period = wells[buffer.dtype] if k < workspace - first else (0, 0)
            begin = 7919 * (k + 1) * _numpy_memory_dtype(buffer.dtype).itemsize % period if period else 0
            buffers.append(f"{{{at}, {buffer.nbytes}, {values}, {period}, {begin}}}")
            at += -(-buffer.nbytes // _BUFFER_ALIGNMENT_BYTES) * _BUFFER_ALIGNMENT_BYTES
        most = max(most, at)
    return render_template(
        "check.c",
        banner=GENERATED_FILE_BANNER,
        name=part.prefix,
        ask=amx_permission_constructor_code(part.target.features),
        entries=c_functions_calling_kernels_by_addresses(
            part.kernels, largest_numbers=True, added_arguments=part.added_arguments
        ),
        buffers=buffers,
        kernels=kernels,
        rounds=ROUND_COUNT,
        round_bytes=sum(sizes),
        memory_bytes=most,
        most_arguments=max(1, *(len(k.params) for k in part.kernels.values())),
    )


# --- comparison of results


def first_kernel_output_difference(kernel: Kernel, actual: Array, expected: Array) -> str:
    """Describe the first element in which two results of a kernel differ; "" if all bits except
    those of NaN are equal.
    """
    if np.array_equal(actual, expected):
        return ""
    at = 0
    for kind in TEST_VALUE_KINDS:
        for buffer in kernel.outputs:
            end = at + buffer.nbytes
            form = _numpy_memory_dtype(buffer.dtype)
            if reason := describe_bit_difference(buffer, actual[at:end].view(form), expected[at:end].view(form)):
                return f"{reason}, called with {kind}"
            at = end
    return ""


def describe_bit_difference(buffer: Buffer, actual: Array, expected: Array, expected_source: str = "at -O0") -> str:
    """Describe how two values of a buffer differ in their bits, treating all NaN as equal; "" if
    they do not differ.
    """
    differs = actual != expected
    if buffer.dtype.is_float:
        bits = np.dtype(f"u{actual.dtype.itemsize}")
        differs = (actual.view(bits) != expected.view(bits)) & ~(np.isnan(actual) & np.isnan(expected))
    places = np.flatnonzero(differs)
    if not places.size:
        return ""
    first = places[0]
    text = f"{buffer.name}[{first}] is {actual[first]!s}, {expected_source} {expected[first]!s}"
    return f"{text} ({places.size} of {actual.size} elements differ)"
