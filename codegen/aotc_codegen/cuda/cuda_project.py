# SPDX-License-Identifier: Apache-2.0
"""Write a program as a GPU project: CUDA source, compiled device code, and a schedule as C tables.

printed, text = print_cuda_kernels_and_source(program, target)
metadata = emit_cuda_project(program, printed, text, images, Path("build/net"), ...)  # images: {"sm_80": cubin}

A C compiler suffices to build the project, as it includes the compiled device code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import cuda_runtime_files, hosted_runtime_files

from aotc.ir import AotcError, frozen, option_text
from aotc.tir import Program, Target, launch_of
from aotc.tir.plan.program_nodes import TierChoice
from aotc_codegen.c.compiler_flags import CUDA_COMPILER_FLAGS
from aotc_codegen.c.host_project import (
    GENERATED_FILE_BANNER,
    FileContent,
    common_template_values,
    example_program_source,
    hosted_only_header_lines,
    model_template_values,
    require_valid_model_name,
    shared_build_file_parts,
    string_header_paths,
    write_project_and_manifest,
)
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.c.project_metadata import describe_compiled_program
from aotc_codegen.c.state_block import state_block_layout, state_metadata
from aotc_codegen.c.template_rendering import render_template
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import (
    multiprocessor_warp_occupancy,
    read_kernel_resources_from_cubin,
    resident_blocks_per_multiprocessor,
)
from aotc_codegen.cuda.launch_schedule import ScheduleTables, launch_schedule_tables

#: Prefixes of device code names: machine code, and PTX, which the driver compiles for newer
#: devices.
MACHINE, PTX = "sm_", "compute_"
_RUNTIME_LIBRARIES: Final = ("aotc_rt", "aotc_cuda", "aotc_cuda_session")


@frozen
class DeviceCodeImage:
    """Device code for one architecture, named for example sm_80 or compute_80."""

    model: str
    name: str
    data: bytes

    @property
    def symbol(self) -> str:
        return f"{self.model}_{self.name}"

    @property
    def file(self) -> str:
        return f"{self.symbol}.{'ptx' if self.name.startswith(PTX) else 'cubin'}"

    @property
    def compute_capability(self) -> int:
        """Compute capability of the GPU as an integer, 80 for 8.0."""
        return int(self.name.removeprefix(MACHINE).removeprefix(PTX))

    @property
    def nvcc(self) -> str:
        """nvcc options that compile the CUDA source to this device code."""
        return f"{'-ptx' if self.name.startswith(PTX) else '-cubin'} -arch={self.name}"

    @property
    def row(self) -> str:
        """C initializer of this device code in the table of images."""
        return f"{{{self.compute_capability}, {int(self.name.startswith(PTX))}, {self.symbol}, {self.symbol}_end}},"


def print_cuda_kernels_and_source(program: Program, target: Target) -> tuple[PrintedKernels, str]:
    """Return the printed kernels of a program, and their CUDA source as one text.

    Raise AotcError like `print_cuda_kernels`, and with the code "target" if the target is no GPU.
    """
    if target.gpu is None:
        hint = "compile with " + option_text("target", "cuda")
        raise AotcError("target", f"kernels for {target.name} do not run on GPUs", hint=hint)
    printed = print_cuda_kernels(program.distinct_kernels, program.name, target.gpu)
    return printed, render_cuda_source_file(printed, name=program.name, banner=GENERATED_FILE_BANNER)


def emit_cuda_project(
    program: Program,
    printed: PrintedKernels,
    cuda_source: str,
    images: Mapping[str, bytes],
    directory: Path,
    *,
    target: Target,
    least_driver: int,
    accuracy: str = "fast",
    passes: Sequence[str] = (),
    numerics: str = "",
    cflags: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the project into an existing directory and return its metadata.

    printed, cuda_source    results of `print_cuda_kernels_and_source`
    images                  compiled device code, by names such as "sm_80"
    least_driver            oldest driver that supports the images, as a number: 12040 for that of CUDA 12.4
    accuracy                requested accuracy mode, which is recorded in the metadata
    passes                  names of the passes that produced the program, which are recorded in the metadata
    numerics                identifier of the numerical behavior of the program
    cflags                  C compiler flags of the user for the build files

    Raise AotcError: code "name" if the program's name cannot be used in C, "memory" if a run needs
    more memory than the target has, "output" if a file cannot be written.
    """
    require_valid_model_name(program.name)
    params = ParameterLayout(program.name, program.constants, 0)
    state = state_block_layout([program], numerics)
    cubins = [DeviceCodeImage(program.name, name, data) for name, data in sorted(images.items())]
    common = common_template_values(program.name, False) | {
        **model_template_values(_without_workspaces(program), target, numerics, params, cflags, state),
        "workspace": {"parameter": "void *workspace", "sizes": ["WORKSPACE_BYTES 0"]},
        "workspace_align": 1,
        "thread_workspace_bytes": 0,
        "images": cubins,
        "nvcc_flags": CUDA_COMPILER_FLAGS,
        "least_driver": least_driver,
        "runtime": _RUNTIME_LIBRARIES,
    }
    metadata = describe_compiled_program(program, target, printed.names, params)
    for row, step in zip(metadata["steps"], program.steps, strict=True):
        launch = launch_of(step.kernel)
        assert launch is not None
        row |= {"grid": launch.grid, "block": launch.block, "shared_bytes": launch.shared_bytes}
    metadata |= {"accuracy": accuracy, "numerics": numerics, "passes": list(passes), **state_metadata(state)}
    blocks = {row["kernel"]: row["block"] for row in metadata["steps"]}
    metadata["device"] = {
        "least_driver": f"{least_driver // 1000}.{least_driver % 1000 // 10}",
        "code_bytes": {image.name: len(image.data) for image in cubins},
        "kernels": {
            image.name: kernels for image in cubins if (kernels := _kernel_resources_and_occupancy(image, blocks))
        },
    }
    files = _host_files_by_path(common, launch_schedule_tables(program, printed, params, state))
    files[f"src/{program.name}.cu"] = cuda_source
    files[f"src/{program.name}_params.bin"] = params.bytes_of_binary_parameter_file()
    files |= {f"src/{image.file}": [image.data] for image in cubins}
    return write_project_and_manifest(directory, files, metadata, _runtime_files(program))


def _without_workspaces(program: Program) -> Program:
    """Return the program as callers see it: the arena belongs to the session, so that no tier takes a workspace."""
    body = tuple(
        replace(node, tiers=tuple(replace(tier, workspace_bytes=0) for tier in node.tiers))
        if isinstance(node, TierChoice)
        else node
        for node in program.body
    )
    return replace(program, body=body)


def _runtime_files(program: Program) -> tuple[Path, ...]:
    return *hosted_runtime_files(), *cuda_runtime_files(), *string_header_paths(program)


def _kernel_resources_and_occupancy(
    image: DeviceCodeImage, block_size_by_kernel: Mapping[str, int]
) -> dict[str, Mapping[str, Any]]:
    """Return the resources of each kernel by name, with resident blocks and occupancy for its block
    size in `block_size_by_kernel`.
    """
    return {
        name: {
            **asdict(resources),
            "resident_blocks": resident_blocks_per_multiprocessor(
                resources, block_size_by_kernel[name], image.compute_capability
            ),
            "occupancy": multiprocessor_warp_occupancy(resources, block_size_by_kernel[name], image.compute_capability),
        }
        for name, resources in read_kernel_resources_from_cubin(image.data).items()
    }


def _host_files_by_path(template_values: Mapping[str, Any], schedule_tables: ScheduleTables) -> dict[str, FileContent]:
    """Return the host sources, headers and build files of a project by path."""
    name = template_values["name"]
    isas = {"num_isas": "0", "isa_fields": ["NULL"] * 3}
    session = {"scratch": (), "memory": render_template("main_session.c", **template_values), "arena": "open_session()"}
    template_values = {
        **template_values,
        **shared_build_file_parts(
            template_values, "C ASM", ("aotc_rt", "aotc_cuda"), "aotc_cuda.h", *template_values["string_headers"]
        ),
    }
    note = render_template("session.h", **template_values)
    return {
        f"include/{name}.h": render_template(
            "model.h",
            **template_values,
            header="aotc_cuda.h",
            run_note=note,
            **hosted_only_header_lines(template_values),
        ),
        f"src/{name}.c": render_template(
            "device.c",
            **template_values,
            rows=schedule_tables,
            tables=render_template("tables.c", **template_values, **isas),
        ),
        f"src/{name}_entry.c": render_template("entry.c", **template_values),
        f"src/{name}_device_entry.c": render_template("device_entry.c", **template_values),
        f"src/{name}_params.S": render_template("params.S", **template_values),
        f"src/{name}_images.S": render_template("images.S", **template_values),
        "Makefile": render_template("device.mk", **template_values),
        "CMakeLists.txt": render_template("device.cmake", **template_values),
        "README.md": render_template("device.md", **template_values),
        "examples/main.c": example_program_source(template_values, **session),
    }
