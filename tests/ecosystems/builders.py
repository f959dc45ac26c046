# SPDX-License-Identifier: Apache-2.0
"""Build packages and run their examples, each by the tools of its ecosystem.

BUILDERS["meson"](folder, scratch)     # what the example printed
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.conftest import require_tool, skip_or_fail_without
from tests.ecosystems.conftest import printed

#: What a sketch needs of Arduino's core, as a program that runs the loop once.
_ARDUINO_HEADER = """
#include <stdio.h>
struct Port {
  void begin(long) {}
  void print(const char *text) { fputs(text, stdout); }
  void println(const char *text) { puts(text); }
  void print(double value, int) { printf("%.9g", value); }
  void println(int value) { printf("%d\\n", value); }
  void println() { puts(""); }
};
static Port Serial;
static void delay(unsigned long) {}
"""


def installed_command(name: str) -> str:
    """A command of the Python environment of the tests, else one of the system."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.is_file() else require_tool(name)


def build_single_file(package: Path, scratch: Path) -> str:
    (example,) = package.glob("*_example.c")
    (source,) = [p for p in package.glob("*.c") if p != example]
    printed(["gcc", "-O2", example.name, source.name, "-lm", "-o", scratch / "example"], package)
    return printed([scratch / "example"], scratch)


def build_with_pkg_config(package: Path, scratch: Path) -> str:
    prefix = scratch / "installed"
    printed(["make", "install", "BUILD=" + str(scratch / "build"), f"PREFIX={prefix}"], package)
    (name,) = [p.stem for p in (prefix / "lib/pkgconfig").glob("*.pc")]
    flags = printed(
        [require_tool("pkg-config"), "--cflags", "--libs", name], scratch, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")
    ).split()
    printed(["gcc", package / "examples/main.c", *flags, "-o", "example"], scratch)
    return printed([scratch / "example"], scratch)


def build_with_meson(package: Path, scratch: Path) -> str:
    require_tool("ninja")
    meson = installed_command("meson")
    printed([meson, "setup", scratch / "build"], package)
    return printed([meson, "test", "-C", scratch / "build", "--verbose"], package)


def build_arduino_sketch(package: Path, scratch: Path) -> str:
    """All sources of `src` as Arduino compiles them, without flags of the library; the sketch as C++ with the header of
    the core in front."""
    properties = dict(line.split("=", 1) for line in (package / "library.properties").read_text().splitlines())
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= properties.keys() and all(properties.values())
    (sketch,) = (package / "examples").glob("*/*.ino")
    assert sketch.stem == sketch.parent.name
    (scratch / "Arduino.h").write_text(_ARDUINO_HEADER)
    text = f'#include "Arduino.h"\n{sketch.read_text()}\nint main() {{ setup(); loop(); }}\n'
    (scratch / "sketch.cpp").write_text(text)
    src = package / "src"
    printed(["gcc", "-std=gnu11", "-Os", "-w", "-c", *sorted(src.glob("*.c"))], scratch)
    printed(["g++", "-std=gnu++17", "-Os", f"-I{src}", "sketch.cpp", *scratch.glob("*.o"), "-o", "sketch"], scratch)
    return printed([scratch / "sketch"], scratch)


def build_platformio_library(package: Path, scratch: Path) -> str:
    """The library as PlatformIO compiles it: by the folders that library.json names, with no flags."""
    description = json.loads((package / "library.json").read_text())
    assert {"name", "version", "description", "keywords"} <= description.keys()
    build = description["build"]
    assert (package / build["includeDir"] / description["headers"]).is_file()
    (example,) = description["examples"]
    sources = [
        *sorted((package / build["srcDir"]).glob("*.c")),
        *(package / example["base"] / f for f in example["files"]),
    ]
    printed(["gcc", "-Os", f"-I{package / build['includeDir']}", *sources, "-lm", "-o", "example"], scratch)
    return printed([scratch / "example"], scratch)


def build_with_cmake(package: Path, scratch: Path) -> str:
    build = scratch / "build"
    cmake = require_tool("cmake")
    printed([cmake, "-S", package, "-B", build], scratch)
    printed([cmake, "--build", build], scratch)
    return printed([require_tool("ctest"), "--test-dir", build, "--verbose"], scratch).replace("1: ", "")


def build_with_conan(package: Path, scratch: Path) -> str:
    """The recipe builds, installs and tests the package, offline."""
    require_tool("cmake")
    conan = installed_command("conan")
    home = {"CONAN_HOME": str(scratch / "conan")}
    printed([conan, "profile", "detect"], scratch, **home)
    return printed([conan, "create", package, "--no-remote"], scratch, **home)


def build_with_vcpkg(package: Path, scratch: Path) -> str:
    """The port, by functions of vcpkg that are written here; its files are installed where vcpkg looks for them."""
    description = json.loads((package / "vcpkg.json").read_text())
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", description["name"])
    installed = scratch / "packages"
    (scratch / "port.cmake").write_text(f"""
      set(CURRENT_PORT_DIR {package})
      set(CURRENT_PACKAGES_DIR {installed})
      function(vcpkg_check_linkage)
      endfunction()
      function(vcpkg_cmake_configure)
        cmake_parse_arguments(given "" "SOURCE_PATH" "" ${{ARGN}})
        execute_process(COMMAND ${{CMAKE_COMMAND}} -S ${{given_SOURCE_PATH}} -B {scratch}/build
          -DCMAKE_INSTALL_PREFIX={installed} -DCMAKE_INSTALL_LIBDIR=lib COMMAND_ERROR_IS_FATAL ANY)
      endfunction()
      function(vcpkg_cmake_install)
        execute_process(COMMAND ${{CMAKE_COMMAND}} --build {scratch}/build --target install COMMAND_ERROR_IS_FATAL ANY)
      endfunction()
      function(vcpkg_cmake_config_fixup)
        cmake_parse_arguments(given "" "PACKAGE_NAME;CONFIG_PATH" "" ${{ARGN}})
        file(RENAME {installed}/${{given_CONFIG_PATH}} {installed}/share)
        if(NOT EXISTS {installed}/share/${{given_PACKAGE_NAME}}Config.cmake)
          message(FATAL_ERROR "no configuration of ${{given_PACKAGE_NAME}}")
        endif()
      endfunction()
      function(vcpkg_install_copyright)
        cmake_parse_arguments(given "" "" "FILE_LIST" ${{ARGN}})
        file(SIZE ${{given_FILE_LIST}} size)
      endfunction()
      include({package}/portfile.cmake)
    """)
    printed([require_tool("cmake"), "-P", "port.cmake"], scratch)
    return printed([*(scratch / "build").glob("*_example")], scratch)


def build_with_cargo(package: Path, scratch: Path) -> str:
    """The crate, offline, with the crate `cc` of Debian's package librust-cc-dev."""
    registry = Path("/usr/share/cargo/registry")
    cargo = require_tool("cargo")
    if not list(registry.glob("cc-1.*")):
        skip_or_fail_without("librust-cc-dev")
    source = f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{registry}"\n'
    (scratch / "config.toml").write_text(source)
    folders = {"CARGO_HOME": str(scratch), "CARGO_TARGET_DIR": str(scratch / "target")}
    return printed([cargo, "run", "--offline", "--quiet", "--example", "run_once"], package, **folders)


def build_wheel(package: Path, scratch: Path) -> str:
    (wheel,) = package.glob("*.whl")
    options = ["--no-deps", "--no-index", "--quiet", "--target", scratch / "site"]
    printed([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options, wheel], scratch)
    (module,) = [p.parent.name for p in (scratch / "site").glob("*/__main__.py")]
    return printed([sys.executable, "-m", module], scratch, PYTHONPATH=str(scratch / "site"))


def run_npm_package(package: Path, scratch: Path) -> str:
    return printed([require_tool("node"), package / "examples" / "run_once.js"], scratch)


def build_esp_idf_component(package: Path, scratch: Path) -> str:
    """The component and the example, by a function of ESP-IDF that is written here."""
    (scratch / "idf.cmake").write_text("""
      function(idf_component_register)
        cmake_parse_arguments(given "" "" "SRCS;INCLUDE_DIRS;PRIV_INCLUDE_DIRS" ${ARGN})
        set(COMPONENT_LIB component_${component})
        add_library(${COMPONENT_LIB} STATIC ${given_SRCS})
        target_include_directories(${COMPONENT_LIB} PUBLIC ${given_INCLUDE_DIRS} PRIVATE ${given_PRIV_INCLUDE_DIRS})
        set(COMPONENT_LIB ${COMPONENT_LIB} PARENT_SCOPE)
      endfunction()
    """)
    (scratch / "start.c").write_text("void app_main(void); int main(void) { app_main(); return 0; }")
    (scratch / "CMakeLists.txt").write_text(f"""
      cmake_minimum_required(VERSION 3.16)
      project(board C)
      include(idf.cmake)
      set(component model)
      add_subdirectory({package} model)
      set(component main)
      add_subdirectory({package}/examples/run_once/main main)
      add_executable(board start.c)
      target_link_libraries(component_main component_model m)
      target_link_libraries(board component_main)
    """)
    text = (package / "idf_component.yml").read_text()
    assert re.search(r'^version: "\d+\.\d+\.\d+"$', text, re.MULTILINE) and "idf:" in text
    return run_cmake_project(scratch, "board")


def build_zephyr_module(package: Path, scratch: Path) -> str:
    """The module and the sample, by functions of Zephyr that are written here."""
    module = (package / "zephyr/module.yml").read_text()
    assert "cmake: zephyr\n" in module and "kconfig: zephyr/Kconfig\n" in module
    (option,) = re.findall(r"^config (\w+)$", (package / "zephyr/Kconfig").read_text(), re.MULTILINE)
    assert f"CONFIG_{option}=y" in (package / "samples/run_once/prj.conf").read_text()
    (scratch / "ZephyrConfig.cmake").write_text(f"""
      enable_language(C)
      add_library(zephyr_interface INTERFACE)
      function(zephyr_include_directories)
        foreach(folder ${{ARGN}})
          target_include_directories(zephyr_interface INTERFACE ${{CMAKE_CURRENT_SOURCE_DIR}}/${{folder}})
        endforeach()
      endfunction()
      macro(zephyr_library_named name)
        set(ZEPHYR_CURRENT_LIBRARY ${{name}})
        file(WRITE {scratch}/empty.c "")
        add_library(${{name}} STATIC {scratch}/empty.c)
        target_link_libraries(${{name}} PUBLIC zephyr_interface)
      endmacro()
      function(zephyr_library_include_directories)
        target_include_directories(${{ZEPHYR_CURRENT_LIBRARY}} PRIVATE ${{ARGN}})
      endfunction()
      function(zephyr_library_sources)
        foreach(file ${{ARGN}})
          target_sources(${{ZEPHYR_CURRENT_LIBRARY}} PRIVATE ${{CMAKE_CURRENT_SOURCE_DIR}}/${{file}})
        endforeach()
      endfunction()
      function(zephyr_library_compile_options)
        target_compile_options(${{ZEPHYR_CURRENT_LIBRARY}} PRIVATE ${{ARGN}})
      endfunction()
      set(CONFIG_{option} y)
      add_executable(app)
      add_subdirectory({package}/zephyr module)
      get_property(libraries DIRECTORY {package}/zephyr PROPERTY BUILDSYSTEM_TARGETS)
      target_link_libraries(app PRIVATE -Wl,--whole-archive ${{libraries}} -Wl,--no-whole-archive m)
    """)
    cmake = require_tool("cmake")
    sample = package / "samples/run_once"
    printed([cmake, "-S", sample, "-B", scratch / "build", f"-DZephyr_DIR={scratch}"], scratch)
    printed([cmake, "--build", scratch / "build"], scratch)
    return printed([scratch / "build/app"], scratch)


def build_cmsis_pack(package: Path, scratch: Path) -> str:
    """The sources that the description names, from the archive."""
    (description,) = package.glob("*.pdsc")
    root = ElementTree.parse(description).getroot()
    vendor, name = (root.findtext(tag) for tag in ("vendor", "name"))
    (release,) = root.iter("release")
    assert description.name == f"{vendor}.{name}.pdsc"
    with zipfile.ZipFile(package / f"{vendor}.{name}.{release.get('version')}.pack") as archive:
        assert archive.testzip() is None and description.name in archive.namelist()
        archive.extractall(scratch)
    files = {file.get("name", ""): file.get("category") for file in root.iter("file")}
    folders = {f"-I{Path(file).parent}" for file, category in files.items() if category == "header"}
    sources = [file for file, category in files.items() if category == "sourceC"]
    assert (scratch / str(root.findtext("license"))).is_file() and set(files) <= set(archive.namelist())
    printed(["gcc", "-Os", *sorted(folders), *sources, "-lm", "-o", "example"], scratch)
    return printed([scratch / "example"], scratch)


def build_bazel_module(package: Path, scratch: Path) -> str:
    """The rules, evaluated as Python, which has the syntax that they use, and their commands by gcc."""
    targets: dict[str, dict[str, Any]] = {}

    def record(**rule: Any) -> None:
        targets[rule["name"]] = rule

    def glob(patterns: list[str]) -> list[str]:
        return [p.relative_to(package).as_posix() for pattern in patterns for p in sorted(package.glob(pattern))]

    rules = {"load": lambda *names: None, "cc_library": record, "cc_binary": record, "glob": glob}
    exec((package / "BUILD.bazel").read_text(), rules)
    modules: list[dict[str, Any]] = []
    module_rules = {"module": lambda **rule: modules.append(rule), "bazel_dep": lambda **rule: None}
    exec((package / "MODULE.bazel").read_text(), module_rules)
    assert [sorted(rule) for rule in modules] == [["name", "version"]]
    objects: list[Path] = []
    for name, rule in targets.items():
        assert {label.removeprefix(":") for label in rule.get("deps", ())} <= targets.keys()
        folders = [f"-I{package / folder}" for folder in {*rule.get("includes", ()), "include"}]
        for source in [file for file in rule["srcs"] if file.endswith(".c")]:
            objects.append(scratch / f"{name}-{Path(source).stem}.o")
            printed(["gcc", *rule.get("copts", ()), *folders, "-c", package / source, "-o", objects[-1]], scratch)
    flags = [flag for rule in targets.values() for flag in rule.get("linkopts", ())]
    printed(["gcc", *objects, *flags, "-o", "example"], scratch)
    return printed([scratch / "example"], scratch)


def run_cmake_project(folder: Path, program: str) -> str:
    """What a program of a CMake project prints."""
    cmake = require_tool("cmake")
    printed([cmake, "-S", folder, "-B", folder / "build"], folder)
    printed([cmake, "--build", folder / "build"], folder)
    return printed([folder / "build" / program], folder)


Builder = Callable[[Path, Path], str]
BUILDERS: dict[str, Builder] = {
    "arduino": build_arduino_sketch,
    "bazel": build_bazel_module,
    "cmake": build_with_cmake,
    "cmsis-pack": build_cmsis_pack,
    "conan": build_with_conan,
    "esp-idf": build_esp_idf_component,
    "meson": build_with_meson,
    "npm": run_npm_package,
    "pkg-config": build_with_pkg_config,
    "platformio": build_platformio_library,
    "rust": build_with_cargo,
    "single-file": build_single_file,
    "vcpkg": build_with_vcpkg,
    "wheel": build_wheel,
    "zephyr": build_zephyr_module,
}
