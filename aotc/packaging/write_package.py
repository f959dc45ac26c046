# SPDX-License-Identifier: Apache-2.0
"""Write a package of a compiled project for an ecosystem.

package = package_project("build/digits", "meson", output="build/digits-meson")
package.path, package.notes

All files depend on the project, the ecosystem and the information alone: equal input gives equal
bytes.  Files go to the output folder as those of a compilation do
(`aotc.driver.output_folder`): all of them or none, and never in place of a file that aotc did not
write.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aotc_codegen.c.host_project import GENERATED_FILE_BANNER

from aotc.driver.output_folder import check_project_can_be_written_to_folder, stage_output_files
from aotc.ir import frozen, option_text
from aotc.packaging.ecosystems import MIB, Ecosystem, ecosystem_named
from aotc.packaging.package_information import PackageInformation
from aotc.packaging.project_sources import PackagedTensor, ProjectSources, package_error, read_project_sources
from aotc.packaging.rendering import render_package_template
from aotc.packaging.single_file import merge_sources_into_one

#: Architectures of machines that run an operating system.
_HOST_MACHINES = frozenset({"x86_64", "aarch64", "riscv64"})
_SHOWN_ELEMENTS = 16


@frozen
class WrittenPackage:
    """A package that was written.

    path    its folder
    name    its name
    files   relative paths of its files
    notes   what its user should know: a changed name, missing tools, large parameters
    """

    path: Path
    name: str
    files: tuple[str, ...]
    notes: tuple[str, ...]


def package_project(
    project: str | Path,
    ecosystem: str,
    output: str | Path,
    information: PackageInformation | None = None,
    overwrite: bool = False,
) -> WrittenPackage:
    """Write a package of a compiled project for an ecosystem into a folder.

    ecosystem     a key of `aotc.packaging.ecosystems.ECOSYSTEMS`
    information   name, version, license, author and description of the package
    overwrite     allow replacing files that aotc did not write or that were changed since

    Raise AotcError: code "package" for an unknown ecosystem, for a project or a name that the
    ecosystem cannot have, and for files that were changed since aotc wrote them; code "output" as
    `aotc.driver.output_folder.stage_output_files`.
    """
    project, output = Path(project), Path(output)
    row = ecosystem_named(ecosystem)
    _require_separate_folders(project, output)
    sources = read_project_sources(project)
    require_target_fits_ecosystem(sources, row)
    information = information or PackageInformation()
    name, notes = package_name(sources, row, information)
    notes += _notes_on_parameters_and_tools(sources, row)
    files = package_files(sources, ecosystem, name, information)
    check_project_can_be_written_to_folder(output, overwrite)
    with stage_output_files(output, overwrite) as work:
        for path, data in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
    return WrittenPackage(output, name, tuple(sorted(files)), tuple(notes))


def _require_separate_folders(project: Path, output: Path) -> None:
    """Raise AotcError (code "package") if a package would replace the project that it is made of."""
    if project.resolve() == output.resolve():
        text = f"{output} is the project itself, whose files the package would replace"
        raise package_error(text, "name another directory with " + option_text("output"))


def require_target_fits_ecosystem(sources: ProjectSources, row: Ecosystem) -> None:
    """Raise AotcError (code "package") if packages of an ecosystem cannot contain a project."""
    target = sources.target
    kernels = [group for group in sources.groups if group.flags]
    if row.for_boards and (kernels or target.machine in _HOST_MACHINES):
        text = f"{row.title} is compiled for microcontrollers: it cannot contain code for {target.name}"
        hint = "compile for one, for example with " + option_text("target", "cortex-m4")
        raise package_error(text, hint + ", or for all with " + option_text("target", "c"))
    if row.for_boards and sources.threads:
        text = f"{row.title} cannot contain code with threads of an operating system"
        raise package_error(text, "compile with " + option_text("environment", "bare"))
    if row.projects == "bare" and not sources.bare:
        text = f"{row.title} has no room for the parts that need an operating system"
        raise package_error(text, "compile with " + option_text("environment", "bare"))
    if row.projects == "hosted" and sources.bare:
        text = f"{row.title} contains a shared library, and {sources.name} was compiled without an operating system"
        raise package_error(text, "compile without " + option_text("environment", "bare"))


def package_name(sources: ProjectSources, row: Ecosystem, information: PackageInformation) -> tuple[str, list[str]]:
    """Return the name of a package, and a note if it is another one than that of the project.

    Raise AotcError (code "package") for a name in `information` that the ecosystem forbids.
    """
    wanted = information.name or sources.name
    found = row.names.nearest_allowed_name(wanted)
    if found == wanted:
        return found, []
    rule = f"a name has {row.names.description}"
    if information.name or not found:
        hint = "for example: " + option_text("name", found) if found else "choose one with " + option_text("name")
        raise package_error(f"{wanted!r} cannot be the name of {row.title}", hint, [rule])
    return found, [f"the package is called {found}, as {row.title} cannot be called {wanted}"]


def _notes_on_parameters_and_tools(sources: ProjectSources, row: Ecosystem) -> list[str]:
    notes = []
    if sources.parameter_bytes > row.large_parameters:
        size, limit = sources.parameter_bytes / MIB, row.large_parameters // MIB
        notes.append(f"the parameters have {size:.1f} MiB, which is much for {row.title} (more than {limit} MiB)")
    for tool in row.tools:
        if shutil.which(tool.command) is None:
            ways = f": {tool.installation}" if tool.installation else ""
            notes.append(f"{tool.command}, which builds the package, is not installed here{ways}")
    return notes


def package_files(
    sources: ProjectSources, ecosystem: str, name: str, information: PackageInformation
) -> dict[str, bytes]:
    """Return the files of a package: contents by relative path."""
    row = ecosystem_named(ecosystem)
    files: dict[str, bytes] = {}
    if row.merged:
        header, source = merge_sources_into_one(sources)
        files |= {f"{sources.name}.h": header.encode(), f"{sources.name}.c": source.encode()}
    else:
        files |= {_joined(row.headers, file): data for file, data in sources.headers.items()}
        files |= {_joined(row.sources, file): data for file, data in sources.files.items()}
    values = template_values(sources, row, name, information)
    names = {"package": name, "name": sources.name, "example": f"{sources.name}_example"}
    for path, template in {**row.files, "LICENSE-APACHE-2.0.txt": "common/LICENSE-APACHE-2.0.txt"}.items():
        files[path.format(**names)] = render_package_template(template, **values).encode()
    usage = render_package_template(f"{ecosystem}/usage.md", **values)
    files["README.md"] = render_package_template("common/README.md", **values, usage=usage).encode()
    return files


def _joined(folder: str, file: str) -> str:
    return f"{folder}/{file}" if folder else file


def template_values(
    sources: ProjectSources, row: Ecosystem, name: str, information: PackageInformation
) -> dict[str, Any]:
    """Return the values that all templates use."""
    kernels = [group for group in sources.groups if group.flags]
    libraries = ["-lm", *(["-pthread"] if sources.threads else [])]
    values = {
        "banner": GENERATED_FILE_BANNER,
        "package": name,
        "name": sources.name,
        "upper": sources.name.upper(),
        "target": sources.target.name,
        "numerics": sources.numerics,
        "headers": list(sources.headers),
        "header_path": _joined(row.headers, f"{sources.name}.h"),
        "private_headers": list(sources.private_headers),
        "sources": sources.source_names,
        "common_sources": list(sources.groups[0].files),
        "kernel_groups": [{"name": g.name, "flags": g.flags, "files": list(g.files)} for g in kernels],
        "kernel_flags": [{"file": file, "flags": " ".join(g.flags)} for g in kernels for file in g.files],
        "libraries": " ".join(libraries),
        "thread_libraries": ["threads"] if sources.threads else [],
        "inputs": [_tensor_values(tensor) for tensor in sources.inputs],
        "outputs": [_tensor_values(tensor) for tensor in sources.outputs],
        "states": ["state"] if sources.has_state else [],
        **_information_values(sources, information),
    }
    return values | {"run_model": render_package_template("common/run_model.c", **values)}


def _information_values(sources: ProjectSources, information: PackageInformation) -> dict[str, Any]:
    stated = information.license
    about = {"name": information.author_name, "email": information.author_email}
    return {
        "version": information.version,
        "description": information.description or f"The neural network {sources.name} as C code.",
        "author_or_unknown": information.author or "unknown author",
        "author_objects": [{key: text for key, text in about.items() if text}] if information.author else [],
        "license_texts": [stated] if stated else [],
        "licenses": [
            f"The code and the parameters of the model: {stated}."
            if stated
            else "The license of the model's code and parameters is not stated here; aotc claims no rights in them."
        ],
        "urls": [information.url] if information.url else [],
        "url_or_example": information.url or "https://example.org",
    }


def _tensor_values(tensor: PackagedTensor) -> Mapping[str, Any]:
    """Return the template values of a tensor: how the example fills and prints it."""
    is_float = tensor.ctype in ("float", "double")
    numbers = "k % 17" if is_float else "k % 2"
    fill = f"({tensor.ctype})({numbers})" + (" * 0.125f - 1.0f" if is_float else "")
    return {
        "name": tensor.name,
        "ctype": tensor.ctype,
        "elements": max(tensor.elements, 1),
        "fill": fill,
        "shown": min(tensor.elements, _SHOWN_ELEMENTS),
        "format": "%.9g" if tensor.ctype == "float" else "%.17g",
    }
