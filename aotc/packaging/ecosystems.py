# SPDX-License-Identifier: Apache-2.0
"""The ecosystems that packages can be made for, as a table.

ECOSYSTEMS["arduino"].files    # {"library.properties": "arduino/library.properties", ...}

To add an ecosystem, add a row here and its templates to `templates/NAME`: `usage.md` is part of the
README, the other files are those of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from aotc.ir import frozen, require_known_name
from aotc.packaging.package_information import PackageNameRule

MIB: Final = 1 << 20


@frozen
class PackagingTool:
    """A program that builds a package.

    command   name of the program
    debian    Debian's package that has it; "" if there is none
    pypi      package on PyPI that has it; "" if there is none
    """

    command: str
    debian: str = ""
    pypi: str = ""

    @property
    def installation(self) -> str:
        """The commands that install the program."""
        ways = [f"apt install {self.debian}"] if self.debian else []
        ways += [f"pip install {self.pypi}"] if self.pypi else []
        return " or ".join(ways)


@frozen
class Ecosystem:
    """What a kind of package looks like.

    title               what a package is called, with an article
    names               names that packages can have
    files               templates by the path of the file in the package; {package}, {name} and
                        {name}_example stand for the names of the package and the model
    headers, sources    folders of the headers for callers, and of all other sources
    tools               programs that build a package; the first is needed, the others may be
    projects            "bare" or "hosted" if only projects without or with an operating system fit
    for_boards          True if packages are compiled for microcontrollers, with the flags of a board
    merged              True if all sources are merged into one file and one header
    large_parameters    size of parameters in bytes above which there is a warning
    """

    title: str
    names: PackageNameRule
    files: Mapping[str, str]
    headers: str = "include"
    sources: str = "src"
    tools: tuple[PackagingTool, ...] = ()
    projects: Literal["any", "bare", "hosted"] = "any"
    for_boards: bool = False
    merged: bool = False
    large_parameters: int = 16 * MIB


_EXAMPLE: Final = {"examples/main.c": "common/main.c"}
ECOSYSTEMS: Final[Mapping[str, Ecosystem]] = {
    "arduino": Ecosystem(
        title="an Arduino library",
        names=PackageNameRule(
            r"(?!Arduino)[A-Za-z0-9][A-Za-z0-9 _.-]*",
            "up to 63 letters, digits, spaces, '_', '.' and '-', not beginning with Arduino",
            most=63,
        ),
        files={
            "library.properties": "arduino/library.properties",
            "examples/{example}/{example}.ino": "arduino/example.ino",
        },
        headers="src",
        tools=(PackagingTool("arduino-cli"),),
        for_boards=True,
        large_parameters=MIB,
    ),
    "meson": Ecosystem(
        title="a Meson project",
        names=PackageNameRule(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "letters, digits, '_', '.', '+' and '-'"),
        files={"meson.build": "meson/meson.build", **_EXAMPLE},
        tools=(PackagingTool("meson", "meson", "meson"), PackagingTool("ninja", "ninja-build", "ninja")),
    ),
    "pkg-config": Ecosystem(
        title="a library with pkg-config",
        names=PackageNameRule(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "letters, digits, '_', '.', '+' and '-'"),
        files={"Makefile": "pkg-config/Makefile", "{package}.pc.in": "pkg-config/package.pc.in", **_EXAMPLE},
        tools=(PackagingTool("make", "make"), PackagingTool("pkg-config", "pkg-config")),
    ),
    "platformio": Ecosystem(
        title="a PlatformIO library",
        names=PackageNameRule(
            r"[A-Za-z0-9][A-Za-z0-9 _.-]*", "up to 50 letters, digits, spaces, '_', '.' and '-'", most=50
        ),
        files={"library.json": "platformio/library.json", "examples/run_once/main.c": "common/main.c"},
        tools=(PackagingTool("pio", pypi="platformio"),),
        for_boards=True,
        large_parameters=MIB,
    ),
    "single-file": Ecosystem(
        title="one source with one header",
        names=PackageNameRule(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and '_'"),
        files={"example.c": "common/main.c"},
        headers="",
        sources="",
        projects="bare",
        merged=True,
    ),
}


def ecosystem_named(name: str) -> Ecosystem:
    """Return the row of an ecosystem; raise AotcError (code "package") for an unknown name."""
    require_known_name("package", "ecosystem", name, ECOSYSTEMS)
    return ECOSYSTEMS[name]
