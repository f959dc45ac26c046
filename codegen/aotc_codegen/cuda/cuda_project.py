# SPDX-License-Identifier: Apache-2.0
"""Write a program as a GPU project: CUDA source, compiled device code, and a schedule as C tables.

printed, text = device_text(program, target)
metadata = emit_device(program, printed, text, images, Path("build/net"), ...)      # images: {"sm_80": cubin}

A C compiler suffices to build the project, as it includes the compiled device code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import cuda_sources, sources

from aotc.ir import AotcError, frozen
from aotc.tir import Program, Target, launch_of
from aotc_codegen.c.compiler_flags import ON_DEVICES
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.host_project import (
    BANNER,
    Content,
    common_words,
    example,
    hosted_words,
    model_words,
    require_name,
    shared_build,
    write_project,
)
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.metadata import describe
from aotc_codegen.c.parameter_files import Params
from aotc_codegen.cuda.cuda_source import device_source, print_device_kernels
from aotc_codegen.cuda.kernel_resources import occupancy, resident, resources
from aotc_codegen.cuda.launch_schedule import Tables, tables

#: Prefixes of device code names: machine code, and PTX, which the driver compiles for newer
#: devices.
MACHINE, PTX = "sm_", "compute_"
_RUNTIME: Final = ("aotc_rt", "aotc_cuda", "aotc_cuda_session")


@frozen
class Image:
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
    def number(self) -> int:
        """Compute capability of the GPU as an integer, 80 for 8.0."""
        return int(self.name.removeprefix(MACHINE).removeprefix(PTX))

    @property
    def nvcc(self) -> str:
        """nvcc options that compile the CUDA source to this device code."""
        return f"{'-ptx' if self.name.startswith(PTX) else '-cubin'} -arch={self.name}"

    @property
    def row(self) -> str:
        """C initializer of this device code in the table of images."""
        return f"{{{self.number}, {int(self.name.startswith(PTX))}, {self.symbol}, {self.symbol}_end}},"


def device_text(program: Program, target: Target) -> tuple[PrintedKernels, str]:
    """Return the printed kernels of a program, and their CUDA source as one text.

    Raise AotcError like `print_device_kernels`, and with the code "target" if the target is no GPU.
    """
    if target.gpu is None:
        raise AotcError("target", f"kernels for {target.name} do not run on GPUs", hint="take --target cuda")
    printed = print_device_kernels(program.kernels, program.name, target.gpu)
    return printed, device_source(printed, name=program.name, banner=BANNER)


def emit_device(
    program: Program,
    printed: PrintedKernels,
    text: str,
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

    printed, text   results of `device_text`
    images          compiled device code, by names such as "sm_80"
    least_driver    oldest driver that supports the images, encoded as 12040 for the driver of CUDA
                    12.4
    accuracy        requested accuracy mode, which is recorded in the metadata
    passes          names of the passes that produced the program, which are recorded in the
                    metadata
    numerics        identifier of the numerical behavior of the program
    cflags          C compiler flags of the user for the build files

    Raise AotcError: code "name" if the program's name cannot be used in C, "memory" if a run needs
    more memory than the target has, "output" if a file cannot be written.
    """
    require_name(program.name)
    params = Params(program.name, program.constants, 0)
    found = [Image(program.name, name, data) for name, data in sorted(images.items())]
    common = common_words(program.name, False) | {
        **model_words(program, target, numerics, params, cflags),
        "workspace": {"parameter": "void *workspace", "sizes": ["WORKSPACE_BYTES 0"]},
        "workspace_align": 1,
        "thread_workspace_bytes": 0,
        "images": found,
        "nvcc_flags": ON_DEVICES,
        "least_driver": least_driver,
        "runtime": _RUNTIME,
    }
    metadata = describe(program, target, printed.names, params)
    for row, step in zip(metadata["steps"], program.steps, strict=True):
        launch = launch_of(step.kernel)
        assert launch is not None
        row |= {"grid": launch.grid, "block": launch.block, "shared_bytes": launch.shared_bytes}
    metadata |= {"accuracy": accuracy, "numerics": numerics, "passes": list(passes)}
    blocks = {row["kernel"]: row["block"] for row in metadata["steps"]}
    metadata["device"] = {
        "least_driver": f"{least_driver // 1000}.{least_driver % 1000 // 10}",
        "code_bytes": {image.name: len(image.data) for image in found},
        "kernels": {image.name: kernels for image in found if (kernels := _kernels(image, blocks))},
    }
    files = _files(common, tables(program, printed, params))
    files[f"src/{program.name}.cu"] = text
    files[f"src/{program.name}_params.bin"] = params.blob()
    files |= {f"src/{image.file}": [image.data] for image in found}
    return write_project(directory, files, metadata, [*sources(), *cuda_sources()])


def _kernels(image: Image, blocks: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
    """Return the resources of each kernel by name, with resident blocks and occupancy for its block
    size in `blocks`.
    """
    return {
        name: {
            **asdict(found),
            "resident_blocks": resident(found, blocks[name], image.number),
            "occupancy": occupancy(found, blocks[name], image.number),
        }
        for name, found in resources(image.data).items()
    }


def _files(common: Mapping[str, Any], rows: Tables) -> dict[str, Content]:
    """Return the host sources, headers and build files of a project by path."""
    name = common["name"]
    isas = {"num_isas": "0", "isa_fields": ["NULL"] * 3}
    session = {"scratch": (), "memory": render("main_session.c", **common), "arena": "open_session()"}
    common = {**common, **shared_build(common, "C ASM", ("aotc_rt", "aotc_cuda"), "aotc_cuda.h")}
    note = render("session.h", **common)
    return {
        f"include/{name}.h": render("model.h", **common, header="aotc_cuda.h", run_note=note, **hosted_words(common)),
        f"src/{name}.c": render("device.c", **common, rows=rows, tables=render("tables.c", **common, **isas)),
        f"src/{name}_entry.c": render("entry.c", **common),
        f"src/{name}_device_entry.c": render("device_entry.c", **common),
        f"src/{name}_params.S": render("params.S", **common),
        f"src/{name}_images.S": render("images.S", **common),
        "Makefile": render("device.mk", **common),
        "CMakeLists.txt": render("device.cmake", **common),
        "README.md": render("device.md", **common),
        "examples/main.c": example(common, **session),
    }
