# SPDX-License-Identifier: Apache-2.0
"""Read the C sources of a compiled project, as packages of other ecosystems need them.

sources = read_project_sources(Path("build/digits"))
sources.headers     # {"digits.h": b"...", "aotc.h": b"..."}
sources.groups      # (SourceGroup(flags=(), files={"digits.c": b"...", ...}),)

Each file is compared with the checksum in the manifest of the project: a package never contains a
file that was damaged or changed since aotc wrote it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from aotc_codegen.c.c_types import c_memory_type
from aotc_codegen.c.parameter_files import PARAMETER_ALIGNMENT_BYTES
from aotc_codegen.c.project_metadata import METADATA_FILE_NAME

from aotc.driver.toolchain import resolve_target
from aotc.ir import AotcError, DType, frozen, open_regular_file, option_text
from aotc.ir.file_checksum_manifest import MANIFEST_FILE_NAME, read_manifest_checksums
from aotc.runtime.library import find_library, read_project_metadata
from aotc.tir.target import Target

_COMPILE_AGAIN_HINT: Final = "compile the model again"
_SOURCE_FOLDERS: Final = ("src", "runtime")
#: Ends of the names of sources that only a shared library or the build files of the project need.
_SHARED_LIBRARY_SOURCES: Final = ("_entry.c", "_threads.c")
_PARAMETERS_CONVERTER: Final = "params_to_c.c"
_PARAMETER_BYTES_PER_LINE: Final = 24
_ALIGNMENT_DIRECTIVE: Final = re.compile(r"\.balign (\d+)")


@frozen
class SourceGroup:
    """Sources that are compiled with the same flags.

    name     "" for the sources that every processor can run, else the instruction set of the kernels
    flags    C compiler flags that the kernels need besides those of the ecosystem
    files    contents by file name
    """

    name: str
    flags: tuple[str, ...]
    files: Mapping[str, bytes]


@frozen
class PackagedTensor:
    """An input or output: its member in the C structure, its shape and its C type."""

    name: str
    shape: tuple[int, ...]
    ctype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@frozen
class ProjectSources:
    """The files and properties of a compiled project that packages are made from.

    name              name of the model in C
    target            the target that the project was compiled for
    bare              True if the project has no operating system (`--environment bare`)
    headers           headers for callers: contents by file name
    private_headers   headers for the sources: contents by file name
    groups            sources by the flags that they need; those without flags are first
    threads           True if the sources contain a thread pool
    parameter_bytes   size of the model's parameters
    inputs, outputs   tensors, without the block of state
    has_state         True if the model keeps a block of state between runs
    numerics          identifier of the bits of results
    sizes             numbers of the model's header by name, such as WORKSPACE_BYTES
    """

    name: str
    target: Target
    bare: bool
    headers: Mapping[str, bytes]
    private_headers: Mapping[str, bytes]
    groups: tuple[SourceGroup, ...]
    threads: bool
    parameter_bytes: int
    inputs: tuple[PackagedTensor, ...]
    outputs: tuple[PackagedTensor, ...]
    has_state: bool
    numerics: str
    sizes: Mapping[str, int]

    @property
    def files(self) -> dict[str, bytes]:
        """Sources and private headers: contents by file name."""
        return {**self.private_headers, **{name: data for group in self.groups for name, data in group.files.items()}}

    @property
    def source_names(self) -> list[str]:
        """Names of all sources, in order."""
        return [name for group in self.groups for name in group.files]


def package_error(text: str, hint: str = "", notes: Iterable[str] = ()) -> AotcError:
    """Return the error (code "package") of a package that cannot be made."""
    return AotcError("package", text, hint=hint, notes=tuple(notes))


def read_compiled_metadata(project: Path) -> dict[str, Any]:
    """Return the metadata of a compiled project for processors.

    Raise AotcError (code "package") for another folder, and for a project for GPUs, which no package
    can contain; code "load" for damaged metadata.
    """
    metadata = read_project_metadata(project) if project.is_dir() else {}
    if metadata.get("generator") != "aotc":
        hint = "name the directory that `aotc compile` wrote, which has a metadata.json"
        raise package_error(f"{project} is not a compiled project", hint)
    _read_unchanged_file(project, PurePosixPath(METADATA_FILE_NAME), _recorded_checksums(project)[METADATA_FILE_NAME])
    if resolve_target(str(metadata["target"])).gpu is not None:
        text = f"{project} has code for {metadata['target']}: packages contain C code for processors only"
        raise package_error(text, "compile for a processor, for example with " + option_text("target", "c"))
    return metadata


def read_project_sources(project: Path) -> ProjectSources:
    """Read the sources of a compiled project.

    Raise AotcError: code "package" for a folder or a project that no package can be made of, and for
    a file that is not as aotc wrote it; code "load" for damaged metadata.
    """
    metadata = read_compiled_metadata(project)
    name = str(metadata["name"])
    texts = _c_sources(project, name)
    headers = {path.name: data for path, data in texts.items() if path.parts[0] == "include"}
    private = {p.name: d for p, d in texts.items() if p.parts[0] in _SOURCE_FOLDERS and p.suffix == ".h"}
    sources = {path: data for path, data in texts.items() if path.suffix == ".c" and path.parts[0] != "include"}
    bare = "weights" in metadata
    if len(metadata["memory"].get("parts", ())) > 1 or len(metadata.get("weights", {}).get("pieces", ())) > 1:
        text = f"the memory of {name} is divided among the memories of a board, which packages do not know"
        raise package_error(text, "compile without " + option_text("memories"))
    if "structure" in metadata.get("weights", {}):
        text = f"the parameters of {name} are a file of their own, and packages contain sources only"
        raise package_error(text, "compile without " + option_text("separate_weights", True))
    return ProjectSources(
        name=name,
        target=resolve_target(str(metadata["target"])),
        bare=bare,
        headers=headers,
        private_headers=private,
        groups=_groups_by_flags(metadata, sources),
        threads="aotc_pool.h" in headers,
        parameter_bytes=int(metadata["weights_bytes"]),
        inputs=_tensors(metadata["inputs"]),
        outputs=_tensors(metadata["outputs"]),
        has_state=bool(metadata.get("state")),
        numerics=str(metadata["numerics"]),
        sizes=_sizes_in_header(name, headers[f"{name}.h"].decode("utf-8")),
    )


def read_project_library(project: Path) -> bytes:
    """Return the shared library of a compiled project.

    Raise AotcError: code "package" for a project without an operating system; code "load" if the
    library was not built, "checksum" if it is damaged.
    """
    metadata = read_compiled_metadata(project)
    if "weights" in metadata:
        text = f"{project} has a static library for programs without an operating system"
        raise package_error(text, "compile without " + option_text("environment", "bare"))
    with open_regular_file(find_library(project, check=True), "package") as file:
        return file.read()


def _sizes_in_header(name: str, header: str) -> dict[str, int]:
    """Return the numbers that the header of a model defines: WORKSPACE_BYTES, STATE_ALIGNMENT, ..."""
    rows = re.findall(rf"^#define {name.upper()}_(\w+) (\d+)$", header, re.MULTILINE)
    return {macro: int(number) for macro, number in rows}


def _tensors(rows: Iterable[Mapping[str, Any]]) -> tuple[PackagedTensor, ...]:
    """Return the tensors of rows of the metadata.

    Raise AotcError (code "package") for sizes that are known at run time only, and for strings: examples
    and wrappers have arrays of numbers.
    """
    for row in rows:
        if "dims" in row:
            shape = ", ".join(map(str, row["dims"]))
            text = f"the shape of {row['name']}, ({shape}), is known at run time only, and packages need numbers"
            raise package_error(text, "give each dimension one size with " + option_text("dims"))
        if row["dtype"] == "string":
            text = f"{row['name']} holds strings, and the interfaces of packages have arrays of numbers only"
            raise package_error(text, "use the project itself, and aotc_strings.h in it")
    return tuple(
        PackagedTensor(str(row["c_name"]), tuple(row["shape"]), c_memory_type(DType(row["dtype"]))) for row in rows
    )


def _recorded_checksums(project: Path) -> Mapping[str, Iterable[str]]:
    """Return the checksums of a project's files by path, from its manifest."""
    checksums = read_manifest_checksums(project / MANIFEST_FILE_NAME, "package", _COMPILE_AGAIN_HINT)
    if METADATA_FILE_NAME not in checksums:
        raise package_error(f"{project} has no list of its files ({MANIFEST_FILE_NAME})", _COMPILE_AGAIN_HINT)
    return checksums


def _c_sources(project: Path, name: str) -> dict[PurePosixPath, bytes]:
    """Return the C sources and headers of a project by path; a binary file of parameters becomes a
    C array.
    """
    checksums = _recorded_checksums(project)
    paths = [PurePosixPath(path) for path in sorted(checksums)]
    paths = [path for path in paths if len(path.parts) == 2 and path.parts[0] in ("include", *_SOURCE_FOLDERS)]
    left_out = {_PARAMETERS_CONVERTER, *(f"{name}{end}" for end in _SHARED_LIBRARY_SOURCES)}
    texts = {
        path: _read_unchanged_file(project, path, checksums[str(path)])
        for path in paths
        if path.suffix in (".c", ".h", ".S", ".bin") and path.name not in left_out
    }
    params = PurePosixPath("src", f"{name}_params.S")
    binary = texts.pop(params.with_suffix(".bin"), None)
    assembly = texts.pop(params, None)
    if assembly is not None and binary is not None:
        match = _ALIGNMENT_DIRECTIVE.search(assembly.decode("utf-8"))
        texts[params.with_suffix(".c")] = parameter_array_source(
            f"{name}_params", binary, int(match[1]) if match else PARAMETER_ALIGNMENT_BYTES
        )
    return texts


def _read_unchanged_file(project: Path, path: PurePosixPath, expected: Iterable[str]) -> bytes:
    with open_regular_file(project / path, "package") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() not in expected:
        hint = f"{_COMPILE_AGAIN_HINT}; packages contain what aotc wrote"
        raise package_error(f"{project / path} was changed since aotc wrote it", hint)
    return data


def _groups_by_flags(metadata: Mapping[str, Any], sources: Mapping[PurePosixPath, bytes]) -> tuple[SourceGroup, ...]:
    """Return the sources by the flags that they need: those without flags first."""
    kernels = [isa for isa in metadata.get("isas", ()) if isa["cflags"] and isa["files"]]
    special = {PurePosixPath(path) for isa in kernels for path in isa["files"]}
    common = {path.name: data for path, data in sources.items() if path not in special}
    return (
        SourceGroup("", (), common),
        *(
            SourceGroup(
                re.sub(r"\W", "_", isa["name"]),
                tuple(isa["cflags"]),
                {path.name: sources[path] for path in map(PurePosixPath, isa["files"])},
            )
            for isa in kernels
        ),
    )


def parameter_array_source(array: str, data: bytes, alignment: int) -> bytes:
    """Return a C source that defines bytes as an aligned array.

    The bytes are those of little-endian numbers: compilers for other processors refuse the source.
    """
    step = _PARAMETER_BYTES_PER_LINE
    rows = (",".join(map(str, data[k : k + step])) for k in range(0, len(data), step))
    lines = [
        "/* The parameters of the model, as bytes of little-endian numbers. */",
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__",
        '#error "the parameters are for little-endian processors"',
        "#endif",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        f"extern const unsigned char {array}[];",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#if defined(__GNUC__)",
        f"__attribute__((aligned({alignment})))",
        "#endif",
        f"const unsigned char {array}[] = {{",
        *(f"{row}," for row in rows),
        "0};",
    ]
    return ("\n".join(lines) + "\n").encode()
