# SPDX-License-Identifier: Apache-2.0
"""Discovery and execution of the C compiler."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aotc_codegen.c.template_rendering import render_template

from aotc import relay
from aotc.driver.compile import compile
from aotc.driver.object_compiler import ObjectCompiler
from aotc.driver.toolchain import (
    Toolchain,
    architecture_compiled_for,
    compiler_version_line,
    find_toolchain,
    resolve_target,
    run_compiler,
)
from aotc.ir import normalized_architecture_name
from aotc.ir.diagnostics import AotcError
from aotc.relay.module import IRModule
from aotc.tir.target import Target, get_target, host_target


def test_the_named_compiler_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_toolchain("gcc -m64", ["-g"]).cc == ("gcc", "-m64")
    with pytest.raises(AotcError, match="no-such-compiler"):
        find_toolchain()


VECTORS = replace(get_target("x86-64"), name="vectors", machine="", cflags=(), base_cflags=())
INEXACT = """
-Ofast --optimize=fast -ffast-math -funsafe-math-optimizations -ffinite-math-only -fassociative-math
-freciprocal-math -fno-signed-zeros
-mfpmath=387 -mfpmath=both -ffp-contract=fast -ffp-model=fast -ffp-eval-method=double -fno-honor-nans
-fdenormal-fp-math=preserve-sign -mrecip -mrecip=all -mdaz-ftz
-menable-unsafe-fp-math -mreassociate -enable-unsafe-fp-math -enable-no-nans-fp-math -fp-contract=fast
"""
HARMLESS = "-O3 -fno-fast-math -fsigned-zeros -fno-trapping-math -mfpmath=sse -ffp-contract=off -mrecip=none"


def test_flags_by_which_results_are_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in INEXACT.split():
        with pytest.raises(AotcError, match=f"not compiled with {flag}:"):
            find_toolchain("gcc", ["-O3", flag])
        with pytest.raises(AotcError, match=f"not compiled with {flag}:"):
            Target(name="mine", cflags=(flag,))
        monkeypatch.setenv("CC", f"gcc {flag}")
        with pytest.raises(AotcError, match=f"not compiled with {flag}:") as caught:
            compile(IRModule.from_expr(relay.abs(relay.var("x", shape=(2,)))))
        assert [d.code for d in caught.value.diagnostics] == ["cflags"]
    with pytest.raises(AotcError, match="not compiled with -Ofast -mrecip:"):
        find_toolchain("gcc", ["-Ofast", "-mrecip", "-Ofast"])
    assert find_toolchain("gcc", HARMLESS.split()).cflags == tuple(HARMLESS.split())


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        *((f, "no library would come of it") for f in ("-c", "-E", "-S", "-M")),
        ("@flags", "in a file are not looked at"),
    ],
)
def test_flags_that_hide_or_make_something_else_are_refused(flag: str, why: str) -> None:
    with pytest.raises(AotcError, match=f"not compiled with {flag}: .*{why}") as caught:
        find_toolchain("gcc", ["-g", flag])
    assert caught.value.code == "cflags"
    assert find_toolchain("gcc", ["-MMD", "-Dc=@x"]).cflags == ("-MMD", "-Dc=@x")


@pytest.mark.parametrize("flags", ["-ffast-math", "-freciprocal-math", "-fno-signed-zeros", "-ffinite-math-only"])
def test_emitted_projects_refuse_them_as_well(flags: str, tmp_path: Path) -> None:
    """Whoever builds them with make."""
    (tmp_path / "kernel.h").write_text(render_template("kernel.h", banner="test", upper="TEST"))
    command = ["gcc", "-include", "kernel.h", "-fsyntax-only", "-x", "c", "/dev/null"]
    run_compiler(command, tmp_path)
    with pytest.raises(AotcError) as caught:
        run_compiler([*command, flags], tmp_path)
    assert any("kernels are compiled without -ffast-math" in note for note in caught.value.diagnostics[0].notes)


def test_compilers_without_vectors_compile_scalar_targets_only(tmp_path: Path) -> None:
    """One that ignores the attribute, and one that does not know it."""
    module = IRModule.from_expr(relay.abs(relay.var("x", shape=(40,))))
    unknown = script(tmp_path / "cc", 'for f; do grep -q vector_size "$f" 2>/dev/null && exit 1; done; exec gcc "$@"')
    for cc in ("gcc -D__vector_size__=__aligned__", str(unknown)):
        with pytest.raises(AotcError, match="has no vectors as gcc and clang have") as caught:
            compile(module, target=VECTORS, cc=cc)
        assert [d.code for d in caught.value.diagnostics] == ["no-vectors"]
        assert compile(module, target="c", cc=cc).library is not None


def test_a_folder_is_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="is a folder, not a compiler"):
        find_toolchain(str(tmp_path))


@pytest.mark.parametrize(
    ("said", "target", "known"),
    [
        ("riscv64-linux-gnu", "x86-64-v3", True),
        ("arm64-apple-darwin", "x86-64", True),
        ("x86_64-pc-linux-gnu", "aarch64", True),
        ("m68k-atari", "aarch64", False),
        ("riscv64-linux-gnu", "c", False),
        ("", "riscv64", False),
    ],
)
def test_compilers_for_another_machine_are_named(said: str, target: str, known: bool, tmp_path: Path) -> None:
    """One that says nothing, or what nobody knows, may be right."""
    cc = script(tmp_path / "cc", f"[ $1 = -dumpmachine ] && echo {said} || exit 1")
    with pytest.raises(AotcError) as caught:
        compile(IRModule.from_expr(relay.abs(relay.var("x", shape=(2,)))), target=target, cc=str(cc))
    (problem,) = caught.value.diagnostics
    assert (problem.code == "no-compiler") == known == ("makes code for" in problem.message)
    machine = normalized_architecture_name(said.partition("-")[0])
    assert not known or machine.replace("_", "-") in str(problem.hint)


def test_flags_say_for_which_machine_clang_compiles(clang: str) -> None:
    for flag, machine in (("--target=aarch64-linux-gnu", "aarch64"), ("--target=riscv64-linux-gnu", "riscv64")):
        assert (
            architecture_compiled_for(find_toolchain(clang, [flag]))
            == architecture_compiled_for(find_toolchain(f"{clang} {flag}"))
            == machine
        )


@pytest.mark.usefixtures("no_ziglang")
def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AotcError, match="no C compiler found") as caught:
        find_toolchain()
    assert "build=False" in caught.value.diagnostics[0].hint


def test_targets_of_another_architecture_have_compilers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = get_target("riscv64" if platform.machine() == "aarch64" else "aarch64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(AotcError, match=f"no C compiler for {other.name} found") as caught:
        find_toolchain(target=other)
    assert f"gcc-{other.name}-linux-gnu" in str(caught.value.diagnostics[0].hint)
    for name in ("cc", f"{other.name}-linux-gnu-gcc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_toolchain(target=other).cc == (f"{other.name}-linux-gnu-gcc",)
    assert find_toolchain(target=get_target("c")).cc == find_toolchain(target=resolve_target("host")).cc == ("cc",)
    monkeypatch.setenv("CC", "cc --target=other")
    assert find_toolchain(target=other).cc == ("cc", "--target=other")


def test_the_compilers_message_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int main(void) { return undeclared; }\n")
    with pytest.raises(AotcError) as caught:
        run_compiler(["gcc", "-c", "bad.c"], tmp_path)
    assert any("undeclared" in note for note in caught.value.diagnostics[0].notes)
    with pytest.raises(AotcError, match="failed with exit code"):
        jobs = [(tmp_path / "bad.c", tmp_path / f"{k}.o") for k in range(3)]
        ObjectCompiler(Toolchain(("gcc",)), (), tmp_path).compile_objects_in_parallel(jobs)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_relative_path_is_that_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers run in the directory of the project."""
    script(tmp_path / "mycc", 'exec gcc "$@"')
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    found = find_toolchain("./mycc -O1").cc
    assert found == (str(tmp_path / "mycc"), "-O1")
    run_compiler([*found, "--version"], tmp_path / "project")
    monkeypatch.setenv("CC", "mycc")
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    assert find_toolchain().cc == found[:1]


def test_a_compiler_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    hanging = script(tmp_path / "cc", f"sleep 300 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(AotcError, match=r"was not done after 0\.5 seconds") as caught:
        run_compiler([str(hanging)], tmp_path, 0.5)
    assert "`cc_timeout`" in caught.value.diagnostics[0].hint
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    for _ in range(100):  # until its new parent has taken note
        if not child.is_dir() or "Z (zombie)" in (child / "status").read_text():
            break
        time.sleep(0.02)
    else:
        pytest.fail("what the compiler started goes on")
    (tmp_path / "x.c").write_text("int x;")
    for seconds in (0, -1, float("nan")):
        with pytest.raises(AotcError, match="is too short for a C compiler"):
            find_toolchain(seconds=seconds)


def test_a_compiler_that_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int x;")
    toolchain = Toolchain((str(script(tmp_path / "cc", "echo done")),))
    with pytest.raises(AotcError, match="did not fail, but wrote nothing") as caught:
        ObjectCompiler(toolchain, (), tmp_path).compile_objects_in_parallel([(tmp_path / "x.c", tmp_path / "x.o")])
    assert caught.value.diagnostics[0].notes == ("done",)


def test_compilers_may_write_in_any_encoding(tmp_path: Path) -> None:
    strange = script(tmp_path / "cc", r"printf 'gcc \344\377\n'; printf 'Fehl\344\n' >&2; exit 1")
    assert compiler_version_line(find_toolchain(str(strange))) == r"gcc \xe4\xff"
    with pytest.raises(AotcError) as caught:
        run_compiler([str(strange)], tmp_path)
    assert caught.value.diagnostics[0].notes == (r"Fehl\xe4",)


def test_host_targets() -> None:
    sse = {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "movbe", "abm"}
    v3 = sse | {"avx", "avx2", "fma", "bmi1", "bmi2", "f16c"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert [host_target("x86_64", flags).name for flags in ((), v3, v4)] == ["x86-64", "x86-64-v3", "x86-64-v4"]
    assert host_target("x86_64", v3 | {"avx_vnni"}).name == "x86-64-v3-vnni"
    assert host_target("x86_64", v4 | {"avx_vnni"}).name == "x86-64-v4"
    assert host_target("x86_64", v4 | {"avx512_vnni"}).name == "x86-64-v4-vnni"
    assert host_target("x86_64", v4 | {"avx512_bf16"}).name == "x86-64-v4"
    assert host_target("x86_64", v4 | {"avx512_vnni", "avx512_bf16"}).name == "x86-64-v4-bf16"
    assert host_target("x86_64", v4 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8"}).name == "x86-64-v4-amx"
    assert host_target("aarch64", ()).name == host_target("arm64", ()).name == "aarch64"
    riscv = [host_target("riscv64", flags).name for flags in ((), {"v"}, {"v", "zvl256b"}, {"zvl256b"})]
    assert riscv == ["riscv64", "riscv64-v128", "riscv64-v256", "riscv64"]
    assert host_target("mips", ()).name == "c"
    assert resolve_target("x86-64-v4").lanes("float32") == 16
    with pytest.raises(AotcError, match="unknown target 'x86-64-v5'"):
        resolve_target("x86-64-v5")
