# SPDX-License-Identifier: Apache-2.0
"""All options of a compilation, as fields with types, defaults and descriptions.

described_options(CompileOptionFields)["target"].command_text   # "Machine to generate code for; ..."

`aotc.driver.compile.CompileOptions` adds validation and the compilation itself.  The options of the
command, the keywords and docstrings of `aotc.compile` and related functions, and the reference are
generated from these fields.  This module does not import the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.ir.dimension_ranges import TieredDimSpecification
from aotc.ir.ndarray import Array
from aotc.ir.option_description import OPTIONS_WITH_CONFIG_KEY, described_field, option_field
from aotc.ir.option_value_text import (
    format_byte_count_option,
    format_comma_separated,
    format_config_entry,
    format_input_shape,
    format_state_pair,
    format_symbolic_dim,
    parse_byte_count,
    parse_config_entries,
    parse_cuda_architectures,
    parse_input_shapes,
    parse_state_pairs,
    parse_symbolic_dims,
    parse_timeout_seconds,
    split_compiler_flags,
)
from aotc.tir.bare_metal_portable_and_small_targets import ENVIRONMENTS
from aotc.tir.float_abi import FLOAT_ABIS
from aotc.tir.target import TARGETS, Target


def _ignore_stage(_: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class CompileOptionFields:
    """The options of a compilation; the metadata of each field describes the option."""

    output: str | Path | None = option_field(
        None,
        "Directory of the C project.",
        python="None: a temporary directory, removed with the result.",
        command="-o --output",
        metavar="DIR",
    )
    target: str | Target = option_field(
        "host",
        "Machine to generate code for; `aotc targets` lists them.",
        python='"host" is this machine; a Target is accepted, too.',
        command="--target",
        suggestions=lambda: ("host", *TARGETS),
    )
    name: str | None = option_field(
        None, "Prefix of every C symbol.", default_text="from the file name", command="--name"
    )
    params: Mapping[str, Array] | None = option_field(None, "Values for some inputs, by name, which become constants.")
    opt_level: int = option_field(
        3, "Graph optimization level.", python="From 0 (no graph optimization) to 3.", bounds=(0, 3), command="-O"
    )
    accuracy: str | None = described_field(OPTIONS_WITH_CONFIG_KEY["accuracy"])
    precision: str | None = described_field(OPTIONS_WITH_CONFIG_KEY["precision"])
    float32_layers: Sequence[str] = described_field(OPTIONS_WITH_CONFIG_KEY["float32_layers"])
    round_data: bool = described_field(OPTIONS_WITH_CONFIG_KEY["round_data"])
    rounding: str | None = described_field(OPTIONS_WITH_CONFIG_KEY["rounding"])
    disabled_pass: Sequence[str] = option_field(
        (),
        "Leave a pass out.",
        python="A list of names; FuseOps and ExpandOps create the kernels and cannot be left out.",
        command="--disable-pass",
        metavar="PASS",
        multiple=True,
    )
    config: Mapping[str, Any] | None = option_field(
        None,
        "Set an option of a pass, or a limit of the compiler, by its key; `aotc config` lists the keys.",
        python="A mapping from keys to values, as in `PassContext`.",
        command="--config",
        metavar="KEY=VALUE",
        multiple=True,
        parse=parse_config_entries,
        format_value=format_config_entry,
    )
    instruments: Iterable[Any] = option_field((), "Pass instruments, see `aotc.ir.instrument`.")
    io_dtype: str | Mapping[str, str] | None = described_field(OPTIONS_WITH_CONFIG_KEY["io_dtype"])
    input_shapes: Mapping[str, Sequence[int]] | None = option_field(
        None,
        "Shape of an input with dynamic dimensions.",
        python="A mapping from names of inputs to shapes.",
        command="--input-shape",
        metavar="NAME:D,D,...",
        multiple=True,
        parse=parse_input_shapes,
        format_value=format_input_shape,
    )
    dims: Mapping[str, TieredDimSpecification] | None = option_field(
        None,
        "Value of a symbolic dimension, or a range LEAST..MOST; :STEP for multiples of a size,"
        " ~TYPICAL for the most usual size. Several sizes and ranges with commas, such as 1,8,9..64: the library has"
        " code for each, and a run takes the first that fits.",
        python='A mapping from names of dimensions to sizes, pairs (least, most), text such as "64..640:32", or a list'
        " of these, such as [1, 8, (9, 64)].",
        command="--dim",
        metavar="SYMBOL=N",
        multiple=True,
        parse=parse_symbolic_dims,
        format_value=format_symbolic_dim,
    )
    state: Mapping[str, str] | None = option_field(
        None,
        "Keep output PRESENT as input PAST of the next run, in a block of memory of the caller;"
        " a * in both names stands for equal texts, and a number the capacity of a state that grows.",
        python="A mapping from names of inputs to names of outputs; `session.new_state()` makes a block.",
        command="--state",
        metavar="PAST=PRESENT[:CAPACITY]",
        multiple=True,
        parse=parse_state_pairs,
        format_value=format_state_pair,
    )
    signature: str | None = option_field(
        None,
        "Function of a TFLite model to compile, by the name of its signature; its inputs and outputs have the"
        " names of the signature.",
        command="--signature",
        metavar="NAME",
    )
    seed: int | None = option_field(
        None,
        "Seed of those random operators of an ONNX or TFLite model that state none; their numbers are drawn when"
        " compiling.",
        python="From 0 to 2**63 - 1.",
        bounds=(0, 2**63 - 1),
        default_text="numbers that no seed gives",
        command="--seed",
        metavar="N",
    )
    cut_before: Sequence[str] = option_field(
        (),
        "Tensor of an ONNX or TFLite model that becomes an input: leave out what computes it.",
        python="A list of names.",
        command="--cut-before",
        metavar="NAME",
        multiple=True,
    )
    cut_after: Sequence[str] = option_field(
        (),
        "Tensor that becomes an output, in place of the model's: leave out what comes after it.",
        python="A list of names.",
        command="--cut-after",
        metavar="NAME",
        multiple=True,
    )
    cc: str | None = option_field(
        None, "C compiler.", default_text="$CC; cc, gcc, clang or the cross compiler", command="--cc"
    )
    cflags: Sequence[str] = option_field(
        (),
        "Flags after the default ones, in emitted build files, too.",
        python="A list of flags.",
        command="--cflags",
        metavar="FLAGS",
        multiple=True,
        parse=split_compiler_flags,
    )
    float_abi: str | None = option_field(
        None,
        "Calling convention of floats on Arm microcontrollers; soft uses no FPU.",
        default_text="that of the target",
        choices=FLOAT_ABIS,
        command="--float-abi",
    )
    portable: bool = option_field(
        False,
        "C99 without inline assembly and extensions of compilers.",
        python="Results are unchanged.",
        command="--portable",
    )
    cc_timeout: float | None = option_field(
        None,
        "Time limit of one run of the C compiler.",
        python="In seconds.",
        default_text="30m",
        command="--cc-timeout",
        command_help="Time limit of one run of the C compiler (30s, 5m, 1h).",
        metavar="TIME",
        parse=parse_timeout_seconds,
    )
    build: bool = option_field(
        True,
        "Compile the library, not only the C project.",
        command="--no-build",
        command_help="Write sources only; needs no C compiler.",
    )
    check_compiler: bool = option_field(
        False, "Compile all kernels also at -O0, and fail if the results differ.", command="--check-compiler"
    )
    cache: bool = described_field(OPTIONS_WITH_CONFIG_KEY["cache"])
    tuning: str | Path | bool | None = described_field(OPTIONS_WITH_CONFIG_KEY["tuning"])
    threads: bool | None = option_field(
        None,
        "Generate kernels whose work can be divided among threads.",
        python="True: an error unless the target supports threads. `load` sets the number of threads.",
        default_text="if the target supports threads",
        command="--threads/--no-threads",
    )
    cuda_arch: int | Sequence[int] | None = option_field(
        None,
        "Compute capabilities of GPUs to make code for.",
        python="Such as 80 for 8.0.",
        default_text="80,90,100,120",
        command="--cuda-arch",
        metavar="NN,...",
        parse=parse_cuda_architectures,
        format_value=format_comma_separated,
    )
    environment: str | None = option_field(
        None,
        "bare: a static library for programs without an operating system, as on microcontrollers.",
        python='"hosted": a shared library; None: as the target says.',
        command="--environment",
        deprecated_commands=("--profile",),
        metavar="|".join(ENVIRONMENTS),
    )
    size: bool = option_field(
        False,
        "Prefer small: no weights that are larger for the sake of time, such as Winograd's.",
        python='Code for microcontrollers is compiled with -Os; `metadata["sizes"]` estimates the slowdown.',
        command="--size",
    )
    profile: str | None = option_field(None, "Deprecated name of `environment`.")
    memories: str | Path | None = option_field(
        None,
        "File of the board's memory regions, the fastest first; it replaces those of the target.",
        python="See `aotc.driver.board_memory_map`.",
        command="--memories",
        metavar="FILE.toml",
    )
    selftest: bool = option_field(
        False,
        "Bare-metal targets: emit a function that runs the model on stored inputs and checks the outputs.",
        command="--selftest",
    )
    single_file: bool = option_field(
        False, "Bare-metal targets: emit all code as one source file and one header.", command="--single-file"
    )
    separate_weights: bool = option_field(
        False,
        "Emit the parameters as a file that a program passes to each run by its address, and that the parameters"
        " of a model with the same structure can replace without a new build.",
        command="--separate-weights",
    )
    emulated: bool = option_field(
        False, "Compile GPU kernels for the CPU of this machine, which runs them very slowly."
    )
    workspace_io: bool = described_field(OPTIONS_WITH_CONFIG_KEY["workspace_io"])
    overwrite: bool = option_field(
        False,
        "Replace files in the output directory that aotc did not write, or that were changed since.",
        command="--overwrite",
    )
    ram: int | None = option_field(
        None,
        "Largest size of the arena, inputs and outputs; more is an error.",
        python="In bytes.",
        command="--ram",
        metavar="64K",
        parse=parse_byte_count,
        format_value=format_byte_count_option,
    )
    flash: int | None = option_field(
        None,
        "Largest size of code (measured if a library is built) and parameters; more is an error.",
        python="In bytes.",
        command="--flash",
        metavar="256K",
        parse=parse_byte_count,
        format_value=format_byte_count_option,
    )
    stack: int | None = option_field(
        None,
        "Largest size of the stack; more is an error.",
        python="In bytes.",
        command="--stack",
        metavar="2K",
        parse=parse_byte_count,
        format_value=format_byte_count_option,
    )
    progress: Callable[[str], None] = option_field(
        _ignore_stage, "Function called with the name of each stage when it begins."
    )
