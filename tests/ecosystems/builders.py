# SPDX-License-Identifier: Apache-2.0
"""Build packages and run their examples, each by the tools of its ecosystem.

BUILDERS["meson"](folder, scratch)     # what the example printed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import require_tool
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
    (source,) = [p for p in package.glob("*.c") if p.name != "example.c"]
    printed(["gcc", "-O2", "example.c", source.name, "-lm", "-o", scratch / "example"], package)
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
    import json

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


Builder = Callable[[Path, Path], str]
BUILDERS: dict[str, Builder] = {
    "arduino": build_arduino_sketch,
    "meson": build_with_meson,
    "pkg-config": build_with_pkg_config,
    "platformio": build_platformio_library,
    "single-file": build_single_file,
}
