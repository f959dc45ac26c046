# SPDX-License-Identifier: Apache-2.0
"""The ecosystems that packages can be made for, as a table.

ECOSYSTEMS["arduino"].files    # {"library.properties": "arduino/library.properties", ...}

To add an ecosystem, add a row here, and to `templates/NAME` the templates that the row lists in
`files`, and `usage.md`, which becomes the section on usage in the README of each package.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from typing import Final, Literal

from aotc.ir import frozen, require_known_name
from aotc.packaging.package_information import PackageNameRule

MIB: Final = 1 << 20
_RUST_KEYWORDS_TEXT: Final = """
abstract as async await become box break const continue crate do dyn else enum extern false final fn for gen if impl in
let loop macro match mod move mut override priv pub ref return self static struct super trait true try type typeof
unsafe unsized use virtual where while yield
"""
RUST_KEYWORDS: Final = frozenset(_RUST_KEYWORDS_TEXT.split())


@frozen
class PackagingTool:
    """A program that builds a package.

    command   name of the program
    debian    Debian's package that has it; "" if there is none
    pypi      package on PyPI that has it; "" if there is none
    npm       package of npm that has it; "" if there is none
    """

    command: str
    debian: str = ""
    pypi: str = ""
    npm: str = ""

    @property
    def installation(self) -> str:
        """The commands that install the program."""
        ways = [f"apt install {self.debian}"] if self.debian else []
        ways += [f"pip install {self.pypi}"] if self.pypi else []
        ways += [f"npm install -g {self.npm}"] if self.npm else []
        return " or ".join(ways)


@frozen
class Ecosystem:
    """The layout of the packages of one ecosystem, and the limits of that ecosystem.

    title               what a package is called, with an article
    names               names that packages can have
    files               templates by the path of the file in the package; {package}, {crate}, {name} and
                        {example} stand for the names of the package, its Python or Rust module, the
                        model and its sketch
    headers, sources    folders of the headers for callers, and of all other sources
    tools               programs that build a package: the first one always, the others only for some packages
    projects            "bare" or "hosted" if only projects without or with an operating system fit
    for_boards          True if packages are compiled for microcontrollers, with the flags of a board
    content             "sources"; "merged" for one source with one header; "library" for the built library;
                        "module" for a module of WebAssembly, which is compiled when the package is made
    wrapper             True if a C++ class is among the headers
    archive             file name of a zip archive of all other files; "" if there is none
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
    content: Literal["sources", "merged", "library", "module"] = "sources"
    wrapper: bool = False
    archive: str = ""
    large_parameters: int = 16 * MIB


_EXAMPLE: Final = {"examples/main.c": "common/main.c"}
_CMAKE_FILES: Final = {"CMakeLists.txt": "cmake/CMakeLists.txt", **_EXAMPLE}
_CMAKE: Final = PackagingTool("cmake", "cmake", "cmake")
_ANY_NAME: Final = PackageNameRule(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "letters, digits, '_', '.', '+' and '-'")
_PYTHON_NAMES: Final = frozenset(map(str.lower, (*keyword.kwlist, *sys.stdlib_module_names, "numpy")))
_RUST_NAMES: Final = frozenset(
    (*RUST_KEYWORDS, "alloc", "build", "cc", "core", "deps", "examples", "run_once", "std", "test")
)
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
    "bazel": Ecosystem(
        title="a Bazel module",
        names=PackageNameRule(
            r"[a-z]([a-z0-9._-]*[a-z0-9])?", "lower-case letters, digits, '.', '_' and '-'", lower=True
        ),
        files={"MODULE.bazel": "bazel/MODULE.bazel", "BUILD.bazel": "bazel/BUILD.bazel", **_EXAMPLE},
        tools=(PackagingTool("bazel", npm="@bazel/bazelisk"),),
        wrapper=True,
    ),
    "cmake": Ecosystem(
        title="a CMake package",
        names=_ANY_NAME,
        files={**_CMAKE_FILES, "CMakePresets.json": "cmake/CMakePresets.json"},
        tools=(_CMAKE,),
        wrapper=True,
    ),
    "cmsis-pack": Ecosystem(
        title="a CMSIS pack",
        names=PackageNameRule(r"[A-Za-z0-9_-]+", "letters, digits, '_' and '-'"),
        files={"{vendor}.{package}.pdsc": "cmsis-pack/pack.pdsc", "LICENSE.txt": "cmsis-pack/LICENSE.txt", **_EXAMPLE},
        tools=(PackagingTool("cpackget"),),
        projects="bare",
        for_boards=True,
        archive="{vendor}.{package}.{version}.pack",
        large_parameters=MIB,
    ),
    "conan": Ecosystem(
        title="a Conan package",
        names=PackageNameRule(
            r"[a-z0-9_][a-z0-9_+.-]+", "at least 2 lower-case letters, digits, '_', '+', '.' and '-'", lower=True
        ),
        files={
            **_CMAKE_FILES,
            "conanfile.py": "conan/conanfile.py",
            "test_package/conanfile.py": "conan/test_conanfile.py",
            "test_package/CMakeLists.txt": "conan/test_CMakeLists.txt",
            "test_package/main.c": "common/main.c",
        },
        tools=(PackagingTool("conan", pypi="conan"), _CMAKE),
        wrapper=True,
    ),
    "esp-idf": Ecosystem(
        title="an ESP-IDF component",
        names=PackageNameRule(r"[a-z0-9_-]+", "lower-case letters, digits, '_' and '-'", lower=True),
        files={
            "CMakeLists.txt": "esp-idf/CMakeLists.txt",
            "idf_component.yml": "esp-idf/idf_component.yml",
            "examples/run_once/CMakeLists.txt": "esp-idf/example_CMakeLists.txt",
            "examples/run_once/main/CMakeLists.txt": "esp-idf/main_CMakeLists.txt",
            "examples/run_once/main/idf_component.yml": "esp-idf/main_component.yml",
            "examples/run_once/main/main.c": "esp-idf/main.c",
        },
        tools=(PackagingTool("idf.py"),),
        for_boards=True,
        large_parameters=4 * MIB,
    ),
    "meson": Ecosystem(
        title="a Meson project",
        names=_ANY_NAME,
        files={"meson.build": "meson/meson.build", **_EXAMPLE},
        wrapper=True,
        tools=(PackagingTool("meson", "meson", "meson"), PackagingTool("ninja", "ninja-build", "ninja")),
    ),
    "npm": Ecosystem(
        title="an npm package",
        names=PackageNameRule(
            r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*",
            "up to 214 lower-case letters, digits, '.', '_' and '-', after a scope such as @scope/ or none",
            lower=True,
            most=214,
            reserved=frozenset(["node_modules", "favicon.ico"]),
        ),
        files={
            "package.json": "npm/package.json",
            "index.js": "npm/index.js",
            "index.d.ts": "npm/index.d.ts",
            "examples/run_once.js": "npm/run_once.js",
        },
        tools=(PackagingTool("node", "nodejs"),),
        content="module",
    ),
    "pkg-config": Ecosystem(
        title="a library with pkg-config",
        names=_ANY_NAME,
        files={"Makefile": "pkg-config/Makefile", "{package}.pc.in": "pkg-config/package.pc.in", **_EXAMPLE},
        wrapper=True,
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
    "rust": Ecosystem(
        title="a Rust crate",
        names=PackageNameRule(
            r"[A-Za-z][A-Za-z0-9_-]*", "letters, digits, '_' and '-', and no word of Rust", reserved=_RUST_NAMES
        ),
        files={
            "Cargo.toml": "rust/Cargo.toml",
            "build.rs": "rust/build.rs",
            "src/lib.rs": "rust/lib.rs",
            "examples/run_once.rs": "rust/run_once.rs",
        },
        sources="csrc",
        tools=(PackagingTool("cargo", "cargo"),),
    ),
    "single-file": Ecosystem(
        title="one source with one header",
        names=PackageNameRule(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and '_'"),
        files={"{example}.c": "common/main.c"},
        headers="",
        sources="",
        projects="bare",
        content="merged",
    ),
    "vcpkg": Ecosystem(
        title="a vcpkg port",
        names=PackageNameRule(
            r"[a-z0-9]+(-[a-z0-9]+)*",
            "lower-case letters and digits, with '-' between",
            separator="-",
            lower=True,
            reserved=frozenset(["aux", "con", "core", "default", "nul", "prn"]),
        ),
        files={**_CMAKE_FILES, "vcpkg.json": "vcpkg/vcpkg.json", "portfile.cmake": "vcpkg/portfile.cmake"},
        tools=(PackagingTool("vcpkg"), _CMAKE),
        wrapper=True,
    ),
    "wheel": Ecosystem(
        title="a Python wheel",
        names=PackageNameRule(
            r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?",
            "letters, digits, '_' and '-', and no name of Python's library",
            reserved=_PYTHON_NAMES,
        ),
        files={"{crate}/__init__.py": "wheel/__init__.py", "{crate}/__main__.py": "wheel/__main__.py"},
        tools=(PackagingTool("pip", "python3-pip"),),
        projects="hosted",
        content="library",
    ),
    "zephyr": Ecosystem(
        title="a Zephyr module",
        names=PackageNameRule(r"[A-Za-z0-9_-]+", "letters, digits, '_' and '-'"),
        files={
            "zephyr/module.yml": "zephyr/module.yml",
            "zephyr/CMakeLists.txt": "zephyr/CMakeLists.txt",
            "zephyr/Kconfig": "zephyr/Kconfig",
            "samples/run_once/CMakeLists.txt": "zephyr/sample_CMakeLists.txt",
            "samples/run_once/prj.conf": "zephyr/prj.conf",
            "samples/run_once/sample.yaml": "zephyr/sample.yaml",
            "samples/run_once/src/main.c": "common/main.c",
        },
        tools=(PackagingTool("west", pypi="west"),),
        projects="bare",
        for_boards=True,
        large_parameters=MIB,
    ),
}


def ecosystem_named(name: str) -> Ecosystem:
    """Return the row of an ecosystem; raise AotcError (code "package") for an unknown name."""
    require_known_name("package", "ecosystem", name, ECOSYSTEMS)
    return ECOSYSTEMS[name]
