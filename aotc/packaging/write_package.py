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
from typing import Any, Final

from aotc.driver.output_folder import check_project_can_be_written_to_folder, stage_output_files
from aotc.ir import frozen, option_text
from aotc.packaging.archives import wheel_archive, wheel_file_name, wheel_platform_of_library, zip_archive
from aotc.packaging.ecosystems import MIB, Ecosystem, ecosystem_named
from aotc.packaging.package_information import PackageInformation
from aotc.packaging.project_sources import ProjectSources, package_error, read_project_library, read_project_sources
from aotc.packaging.rendering import render_package_template
from aotc.packaging.single_file import merge_sources_into_one
from aotc.packaging.template_values import path_in_folder, template_values
from aotc.packaging.wasm_module import compile_wasm_module, memory_pages, stack_bytes
from aotc.tir.target import Target

#: Architectures of machines that are no microcontrollers.
_HOST_MACHINES = frozenset({"x86_64", "aarch64", "riscv64", "wasm32"})
#: More files of a module with threads: templates by path.
_THREADED_MODULE_FILES: Final = {"worker.js": "npm/worker.js"}


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
    cc: str | None = None,
) -> WrittenPackage:
    """Write a package of a compiled project for an ecosystem into a folder.

    ecosystem     a key of `aotc.packaging.ecosystems.ECOSYSTEMS`
    information   name, version, license, author and description of the package
    overwrite     allow replacing files that aotc did not write or that were changed since
    cc            C compiler of packages that contain a module of WebAssembly; None for the default one

    Raise AotcError: code "package" for an unknown ecosystem, for a project or a name that the
    ecosystem cannot have, and for files that were changed since aotc wrote them; code "output" as
    `aotc.driver.output_folder.stage_output_files`.
    """
    project, output = Path(project), Path(output)
    row = ecosystem_named(ecosystem)
    sources = read_project_sources(project)
    _require_separate_folders(project, output)
    require_project_fits_ecosystem(sources, row)
    information = information or PackageInformation()
    name, notes = package_name(sources, row, information)
    notes += _notes_on_parameters_and_tools(sources, row)
    values = template_values(sources, row, name, information)
    files = package_files(project, sources, row, f"{ecosystem}/usage.md", values, cc)
    check_project_can_be_written_to_folder(output, overwrite)
    with stage_output_files(output, overwrite) as work:
        for path, data in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
    return WrittenPackage(output, name, tuple(sorted(files)), tuple(notes))


def _require_separate_folders(project: Path, output: Path) -> None:
    """Raise AotcError (code "package") if the folders of a project and of its package are not apart."""
    source, target = project.resolve(), output.resolve()
    if source == target:
        text = f"{output} is the project itself, whose files the package would replace"
    elif source in target.parents:
        text = f"{output} is inside of the project {project}"
    elif target in source.parents:
        text = f"{output} contains the project {project}"
    else:
        return
    raise package_error(text, "name another directory with " + option_text("output"))


def require_target_fits_ecosystem(target: Target, bare: bool, row: Ecosystem) -> None:
    """Raise AotcError (code "package") if packages of an ecosystem cannot contain code for a target.

    bare    True for code without an operating system
    """
    if target.gpu is not None:
        text = f"packages contain C code for processors only, and {target.name} is a GPU"
        raise package_error(text, "compile for a processor, for example with " + option_text("target", "c"))
    if row.for_boards and target.machine in _HOST_MACHINES:
        text = f"{row.title} is compiled for microcontrollers: it cannot contain code for {target.name}"
        hint = "compile for one, for example with " + option_text("target", "cortex-m4")
        raise package_error(text, hint + ", or for all with " + option_text("target", "c"))
    if row.content == "module" and target.machine != "wasm32":
        text = f"{row.title} contains a module of WebAssembly, and {target.name} is another target"
        raise package_error(text, "compile with " + option_text("target", "wasm32"))
    if row.projects == "bare" and not bare:
        text = f"{row.title} has no room for the parts that need an operating system"
        raise package_error(text, "compile with " + option_text("environment", "bare"))
    if row.projects == "hosted" and bare:
        text = f"{row.title} contains a shared library, and {target.name} has no operating system here"
        raise package_error(
            text, "compile without " + option_text("environment", "bare") + ", or for a processor with one"
        )


def require_project_fits_ecosystem(sources: ProjectSources, row: Ecosystem) -> None:
    """Raise AotcError (code "package") if packages of an ecosystem cannot contain a project."""
    require_target_fits_ecosystem(sources.target, sources.bare, row)
    if row.for_boards and sources.threads:
        text = f"{row.title} cannot contain code with threads of an operating system"
        raise package_error(text, "compile with " + option_text("environment", "bare"))


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
    project: Path,
    sources: ProjectSources,
    row: Ecosystem,
    usage_template: str,
    values: Mapping[str, Any],
    cc: str | None = None,
) -> dict[str, bytes]:
    """Return the files of a package: contents by relative path.

    usage_template    template of the part of the README on the tools of the ecosystem
    cc                as in `package_project`
    """
    values = dict(values)
    templates = {**row.files, **(_THREADED_MODULE_FILES if row.content == "module" and sources.target.threads else {})}
    files = _library_files(project, values) if row.content == "library" else _source_files(sources, row, values, cc)
    for path, template in {**templates, "LICENSE-APACHE-2.0.txt": "common/LICENSE-APACHE-2.0.txt"}.items():
        files[path.format(**values)] = render_package_template(template, **values).encode()
    usage = render_package_template(usage_template, **values)
    files["README.md"] = render_package_template("common/README.md", **values, usage=usage).encode()
    if row.archive:
        files[row.archive.format(**values)] = zip_archive(files)
    return _wheel_and_readme(files, values) if row.content == "library" else files


def _source_files(sources: ProjectSources, row: Ecosystem, values: dict[str, Any], cc: str | None) -> dict[str, bytes]:
    """Return headers and sources in the folders of an ecosystem, merged, or compiled to a module, whose memory is added
    to `values`.
    """
    if row.content == "module":
        values["stack_bytes"] = stack_bytes(sources)
        names = {"module_exports.c": "npm/module.c"}
        names |= {"module_team.c": "npm/team.c", "module_team.h": "npm/team.h"} if sources.target.threads else {}
        glue = {file: render_package_template(template, **values) for file, template in names.items()}
        module = compile_wasm_module(sources, glue, cc)
        values["initial_pages"], values["most_pages"] = memory_pages(sources, module)
        return {f"{sources.name}.wasm": module}
    if row.content == "merged":
        header, source = merge_sources_into_one(sources)
        return {f"{sources.name}.h": header.encode(), f"{sources.name}.c": source.encode()}
    files = {path_in_folder(row.headers, file): data for file, data in sources.headers.items()}
    files |= {path_in_folder(row.sources, file): data for file, data in sources.files.items()}
    if row.wrapper:
        wrapper = render_package_template("common/model.hpp", **values)
        files[path_in_folder(row.headers, f"{sources.name}.hpp")] = wrapper.encode()
    return files


def _library_files(project: Path, values: dict[str, Any]) -> dict[str, bytes]:
    """Return the built library as a file of a Python package; add the name of its wheel to `values`."""
    library = read_project_library(project)
    values["platform"] = wheel_platform_of_library(library)
    values["wheel_file"] = wheel_file_name(values["package"], values["version"], values["platform"])
    return {f"{values['crate']}/{values['library_file']}": library}


def _wheel_and_readme(files: Mapping[str, bytes], values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a wheel of the files of a Python package, with its README and license beside it."""
    readme = files["README.md"]
    inside = {path: data for path, data in files.items() if path.startswith(f"{values['crate']}/")}
    inside[f"{values['crate']}/LICENSE-APACHE-2.0.txt"] = files["LICENSE-APACHE-2.0.txt"]
    metadata = render_package_template("wheel/METADATA", **values) + readme.decode()
    name, data = wheel_archive(values["package"], values["version"], values["platform"], inside, metadata)
    return {name: data, "README.md": readme}
