# SPDX-License-Identifier: Apache-2.0
"""Projects and the runtime for Windows and macOS: they compile there, and what Windows loads and runs under Wine gives
the bits of Linux."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.compile_sources import make_project_object_compiler
from aotc.driver.compiled_system import (
    LINUX,
    MACOS,
    WINDOWS,
    flags_for_compiler,
    native_compiler_commands,
    split_command_line,
    system_of_triple,
)
from aotc.driver.toolchain import find_toolchain
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.runtime.library import find_library
from aotc.tir.target import get_target
from tests.conftest import require_tool, skip_or_fail_without
from tests.e2e.projects import DIGITS, affine, build_program_that_opens_libraries, run
from tests.share import share

MINGW = "x86_64-w64-mingw32-gcc"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
ROOT = Path(__file__).parents[2]
#: First bytes of object files: Mach-O of 64 bits, and COFF of a processor.
MAGIC = {"x86_64-macos": b"\xcf\xfa\xed\xfe", "aarch64-macos": b"\xcf\xfa\xed\xfe"}
MAGIC |= {"x86_64-windows-gnu": b"\x64\x86", "aarch64-windows-gnu": b"\x64\xaa"}
TARGETS = {"x86_64": "x86-64-multi", "aarch64": "aarch64-bf16"}


@pytest.fixture(scope="module")
def zig() -> str:
    if importlib.util.find_spec("ziglang") is None:
        skip_or_fail_without("ziglang")
    return f"{shlex.quote(sys.executable)} -m ziglang cc"


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that runs a program for Windows, in a folder of this test run."""
    # Debian's package has no command on the path
    found = next(filter(shutil.which, ("wine64", "wine", "/usr/lib/wine/wine64")), None)
    if found is None:
        skip_or_fail_without("wine64")
    folder = tmp_path_factory.mktemp("wine")
    script = folder / "wine.sh"
    script.write_text(f'#!/bin/sh\nWINEPREFIX={folder}/prefix WINEDEBUG=-all exec {found} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("triple", share(MAGIC, 1))
def test_projects_and_the_runtime_compile(triple: str, zig: str, tmp_path: Path) -> None:
    target = TARGETS[triple.partition("-")[0]]
    net = aotc.compile(affine(160, 0), output=tmp_path / "net", name="net", target=target, build=False)
    for file in ROOT.glob("runtime_c/aotc_runtime_c/*/aotc*.[ch]"):
        if file.parent.name != "emulator":
            shutil.copy(file, net.path / ("include" if file.parent.name == "include" else "runtime"))
    toolchain = find_toolchain(f"{zig} -target {triple}", WARNINGS, cache=False)
    compiler = make_project_object_compiler(net.path, net.metadata, toolchain, get_target(target))
    patterns = ("src/*.[cS]", "runtime/*.c", "examples/*.c")
    sources = [path for pattern in patterns for path in net.path.glob(pattern) if path.name != "params_to_c.c"]
    jobs = [(source, tmp_path / f"{source.name}.o") for source in sources]
    compiler.compile_objects_in_parallel(jobs)
    assert {"net_params.S", "net.c", "net_threads.c", "aotc_loader.c", "aotc_cuda.c", "main.c"} <= {
        s.name for s in sources
    }
    assert {made.read_bytes()[: len(MAGIC[triple])] for _, made in jobs} == {MAGIC[triple]}


@pytest.mark.slow
@pytest.mark.parametrize("triple", MAGIC)
def test_libraries_are_linked(triple: str, zig: str, tmp_path: Path) -> None:
    """The first library for a system takes minutes: zig compiles the C library of the system."""
    target = TARGETS[triple.partition("-")[0]]
    net = aotc.compile(affine(160, 0), output=tmp_path / "net", name="net", target=target, cc=f"{zig} -target {triple}")
    suffix = ".dll" if "windows" in triple else ".dylib"
    assert net.library == tmp_path / f"net/lib/libnet{suffix}" == find_library(net.path, check=True)
    assert net.metadata["library"] == f"lib/libnet{suffix}"
    assert exported_functions(net.library) == EXPORTS


#: What programs and loaders call.
EXPORTS = {"net_run", "net_info", *(f"aotc_model_{name}" for name in ("entry", "threads_create", "threads_destroy"))}


def exported_functions(library: Path) -> set[str]:
    """The functions that a DLL or a library for macOS exports."""
    if library.suffix == ".dll":
        text = run([require_tool("llvm-readobj-19"), "--coff-exports", library], library.parent)
        return set(re.findall(r"^ *Name: (\w+)$", text, re.MULTILINE))
    tool = require_tool("llvm-nm-19")
    text = run([tool, "--extern-only", "--defined-only", library], library.parent)
    return set(re.findall(r" T _(\w+)$", text, re.MULTILINE))


def test_scalar_projects_need_no_extensions_of_gcc(clang: str, tmp_path: Path) -> None:
    """Strict C11, and the language of Microsoft's compiler as clang checks it, with the headers of mingw-w64."""
    headers = Path("/usr/share/mingw-w64/include")
    if not headers.is_dir():
        skip_or_fail_without("mingw-w64-common")
    net = aotc.compile(affine(160, 0), output=tmp_path / "net", name="net", target="c", build=False)
    files = [*net.path.glob("src/*.c"), *net.path.glob("runtime/*.c")]
    common = ["-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Isrc", "-fsyntax-only"]
    run(["gcc", *common, *files, "examples/main.c"], net.path)
    windows = ["--target=x86_64-pc-windows-msvc", "-isystem", headers]
    run([clang, *windows, *common, *(file for file in files if file.name != "params_to_c.c")], net.path)
    with pytest.raises(AssertionError):
        # clang checks as Microsoft's compiler does: there is no __GNUC__
        (tmp_path / "gnu.c").write_text("#if !defined(__GNUC__)\n#error without\n#endif\nint one(void);\n")
        run([clang, *windows, *common, tmp_path / "gnu.c"], net.path)


@pytest.mark.skipif(normalized_architecture_name() != "x86_64", reason="Wine runs programs for this processor only")
def test_windows_gives_the_bits_of_linux(wine: Path, tmp_path: Path) -> None:
    """The runtime's loader opens the DLL that `aotc.compile` builds, and refuses one that was cut short."""
    host = build_program_that_opens_libraries(require_tool(MINGW), tmp_path, libraries=())
    here = aotc.compile(DIGITS, output=tmp_path / "here", name="net", target="x86-64")
    there = aotc.compile(DIGITS, output=tmp_path / "there", name="net", target="x86-64", cc=MINGW, cflags=WARNINGS)
    assert there.library is not None and there.library == find_library(there.path, check=True)
    assert there.library.name == "libnet.dll"
    expected = run([build_program_that_opens_libraries("gcc", here.path), str(here.library)], tmp_path)
    assert "0 success" in expected
    assert run([wine, f"{host}.exe", there.library], tmp_path).split() == expected.split()
    cut = tmp_path / "cut.dll"
    cut.write_bytes(there.library.read_bytes()[: there.library.stat().st_size // 2])
    assert run([wine, f"{host}.exe", f"./{cut.name}"], tmp_path).startswith("4 ")


@pytest.mark.skipif(normalized_architecture_name() != "x86_64", reason="Wine runs programs for this processor only")
def test_make_builds_for_windows(wine: Path, tmp_path: Path) -> None:
    """The Makefile asks the compiler for the system; vectors of 32 bytes work although the stack is aligned to 16."""
    require_tool(MINGW)
    net = aotc.compile(affine(160, 0), output=tmp_path / "net", name="net", target="x86-64-v3", build=False)
    run(["make", "-j2", f"CC={MINGW}", "AR=x86_64-w64-mingw32-ar", f"CFLAGS={' '.join(WARNINGS)}"], net.path)
    assert {p.name for p in (net.path / "build").glob("*net*.[de]*")} == {"libnet.dll", "net_example.exe"}
    run(["make", "BUILD=here"], net.path)
    np.linspace(-2, 2, 160, dtype=np.float32).tofile(net.path / "x")
    for folder, command in (("build", [wine, "net_example.exe"]), ("here", ["./net_example"])):
        subprocess.run([*command, "../x", f"../{folder}.y"], cwd=net.path / folder, check=True, capture_output=True)
    assert (net.path / "build.y").read_bytes() == (net.path / "here.y").read_bytes()
    run(["make", "clean", f"CC={MINGW}"], net.path)
    assert not (net.path / "build").exists()


@pytest.mark.parametrize(
    ("triple", "system"),
    [
        ("x86_64-linux-gnu", LINUX),
        ("x86_64-unknown-linux-musl", LINUX),
        ("arm64-apple-darwin23.1.0", MACOS),
        ("aarch64-unknown-macos", MACOS),
        ("x86_64-w64-mingw32", WINDOWS),
        ("aarch64-unknown-windows-gnu", WINDOWS),
        ("x86_64-pc-windows-msvc", WINDOWS),
    ],
)
def test_compilers_name_the_system(triple: str, system: object) -> None:
    assert system_of_triple(triple) is system


def test_zig_reads_other_names_of_processors() -> None:
    flags = ("-O2", "-march=x86-64-v3", "-march=armv8-a", "-march=armv8.2-a+dotprod+i8mm", "-mavxvnni")
    names = ("-O2", "-march=x86_64_v3", "-mcpu=generic+v8a", "-mcpu=generic+v8_2a+dotprod+i8mm", "-mavxvnni")
    for command in (
        ("zig", "cc"),
        ("/opt/zig/zig", "cc"),
        ("python3", "-m", "ziglang", "cc"),
        (r"C:/zig/zig.exe", "cc"),
    ):
        assert flags_for_compiler(command, flags) == names
    assert flags_for_compiler(("clang",), flags) == flags


@pytest.mark.parametrize(("platform", "first"), [("win32", "gcc"), ("darwin", "cc"), ("linux", "cc")])
def test_the_system_chooses_the_compilers_that_are_tried(
    platform: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    commands = native_compiler_commands()
    assert commands[0] == (first,) and ("clang",) in commands and commands[-1] == ("zig", "cc")
    path = r'"C:\Program Files\LLVM\clang.exe" -O1'
    words = split_command_line(path if platform == "win32" else path.replace("\\", "/"))
    assert words == ("C:/Program Files/LLVM/clang.exe", "-O1")


@pytest.mark.parametrize("name", ["clang-cl", "cl.exe"])
def test_compilers_with_options_of_msvc_are_named(name: str, tmp_path: Path) -> None:
    compiler = tmp_path / name
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    with pytest.raises(aotc.AotcError, match="takes the options of MSVC") as caught:
        find_toolchain(str(compiler))
    assert "clang" in str(caught.value)
