# SPDX-License-Identifier: Apache-2.0
"""`aotc package`: make a package of a compiled project for another ecosystem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, OptionDecorator, combine_option_declarations, declare_flag, declare_option
from aotc.driver.compile import CompileOptions
from aotc.driver.output_folder import check_project_can_be_written_to_folder, require_folder_without_foreign_files
from aotc.ir import frozen, option_text
from aotc.packaging.ecosystems import ECOSYSTEMS, ecosystem_named
from aotc.packaging.package_information import PackageInformation, combine_package_information
from aotc.packaging.write_package import WrittenPackage, package_project, require_target_fits_ecosystem

#: Options for the descriptive metadata of a package, such as its name, version and author.
INFORMATION_OPTIONS: OptionDecorator = combine_option_declarations(
    declare_option("--name", "Name of the package [default: that of the model]."),
    declare_option("--version", "Version of the package: three numbers [default: 0.1.0].", metavar="X.Y.Z"),
    declare_option("--license", "License of the model, as an SPDX identifier.", metavar="SPDX"),
    declare_option("--author", "Author: a name, or a name and <email>."),
    declare_option("--description", "One sentence on the model."),
    declare_option("--url", "Page of the package."),
    declare_option("--manifest", "File with these values as a table [package].", PATH_TYPE, metavar="FILE.toml"),
)


@define_command(
    "package",
    click.argument("project", type=PATH_TYPE),
    declare_option(
        "--for ecosystem",
        "Ecosystem: " + ", ".join(ECOSYSTEMS) + ".",
        required=True,
        metavar="NAME",
        suggestions=lambda: ECOSYSTEMS,
    ),
    declare_option("-o --output", "Directory of the package [default: PROJECT-ECOSYSTEM].", PATH_TYPE, metavar="DIR"),
    INFORMATION_OPTIONS,
    declare_flag("--overwrite", "Replace files that aotc did not write or that were changed since."),
)
def package_command(
    out: Reporter,
    project: Path,
    ecosystem: str,
    output: Path | None,
    manifest: Path | None,
    overwrite: bool,
    **information: str | None,
) -> None:
    """Make a package of PROJECT for an ecosystem: an Arduino library, a Meson project, ..."""
    about = combine_package_information(manifest, information)
    if output is None:
        ecosystem_named(ecosystem)
        place = project.resolve()
        output = place.with_name(f"{place.name}-{ecosystem}")
        require_folder_without_foreign_files(output)
    package = package_project(project, ecosystem, output, about, overwrite)
    out.print_result(package_json(package), render_package_result)


@frozen
class PackageRequest:
    """The package that `aotc compile --package` writes in place of the project."""

    ecosystem: str
    information: PackageInformation
    output: Path
    overwrite: bool
    cc: str | None
    cflags: tuple[str, ...]

    @classmethod
    def from_options(
        cls, ecosystem: str | None, manifest: Path | None, output: Path | None, options: Mapping[str, Any]
    ) -> PackageRequest | None:
        """Return the request of the options of `aotc compile`; None if they ask for a project.

        options    the options of the compilation

        Raise AotcError, before anything is compiled, for an unknown ecosystem, an invalid file, an
        output folder that cannot be written to, and a target that the ecosystem cannot have.
        """
        if ecosystem is None and manifest is not None:
            raise click.UsageError("--manifest needs --package")
        if ecosystem is None or output is None:
            return None
        row = ecosystem_named(ecosystem)
        information = combine_package_information(manifest, {})
        check_project_can_be_written_to_folder(output, options["overwrite"])
        target = CompileOptions(**options).machine
        require_target_fits_ecosystem(target, target.bare, row)
        return cls(ecosystem, information, output, options["overwrite"], options["cc"], tuple(options["cflags"]))

    @property
    def needs_library(self) -> bool:
        """True if the package contains the built library."""
        return ecosystem_named(self.ecosystem).projects == "hosted"

    def write(self, project: Path) -> dict[str, Any]:
        """Write the package of a project; return what `aotc compile --json` prints of it."""
        written = package_project(project, self.ecosystem, self.output, self.information, self.overwrite, self.cc)
        result = {**package_json(written), "library": ""}
        if self.cflags and not self.needs_library:
            flags = option_text("cflags", [*self.cflags])
            result["notes"].append("the build of a package sets the flags of the C compiler, without " + flags)
        return result


def package_json(package: WrittenPackage) -> dict[str, Any]:
    """Return a written package as `aotc package --json` prints it."""
    return {"path": str(package.path), "name": package.name, "files": list(package.files), "notes": list(package.notes)}


def render_package_result(data: JsonObject) -> RenderedParts:
    """Format a written package: its folder, the number of files and what its user should know."""
    yield f"package      {data['path']} ({data['name']}, {len(data['files'])} files)"
    for note in data["notes"]:
        yield f"note         {note}"
