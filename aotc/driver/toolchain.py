# SPDX-License-Identifier: Apache-2.0
"""Find the C compiler, check what it can compile for, and run it.

toolchain = find_toolchain(cc=None, cflags=("-g",), target=target)
run_compiler((*toolchain.cc, *toolchain.cflags, "-c", "net.c"), cwd=folder)      # AotcError if it fails
"""

import ctypes
import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias, TypeGuard

from aotc_codegen.c.compiler_flags import least_riscv_vector_bits, riscv_vector_requirement_lines

from aotc.driver.compiled_system import (
    OperatingSystem,
    flags_for_compiler,
    native_compiler_commands,
    split_command_line,
    system_of_triple,
)
from aotc.driver.object_cache import ObjectCache, sha256_of_parts, user_object_cache
from aotc.driver.subprocesses import FinishedProcess, run_program
from aotc.ir import COMPILE_CALL, AotcError, frozen, normalized_architecture_name, option_text, translate_os_errors
from aotc.ir.atomic_write import temporary_folder
from aotc.tir import (
    PROCESSOR_FEATURES,
    TARGETS,
    Target,
    feature_names_from_cpu_flags,
    get_target,
    host_target,
    reject_result_changing_c_flags,
)

#: Cross compilers of bare-metal architectures, and the Debian packages of compiler and C library.
_BARE_METAL_CROSS_COMPILERS: Final = {
    "arm": ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi"),
    "riscv32": (
        "riscv64-unknown-elf-gcc --specs=picolibc.specs", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    ),
    "wasm32": ("clang-19 --target=wasm32-wasi", "clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32"),
}  # fmt: skip
#: Compilers for WebAssembly, the newest first. WASI is the interface of programs to their host; the C library has it.
_WASM_COMPILERS: Final = (*(f"clang-{version}" for version in range(23, 13, -1)), "clang")
_WASM_ARGUMENTS: Final = ("--target=wasm32-wasi",)
#: Compilers that translate vector types to instructions of RISC-V's vector extension, and their Debian packages.
#: gcc 12 accepts the flags of the extension, and translates vectors element by element.
_RISCV_VECTOR_COMPILERS: Final = ("clang", *(f"clang-{version}" for version in range(23, 18, -1)))
_RISCV_VECTOR_PACKAGES: Final = "clang-19 gcc-riscv64-linux-gnu"
#: Debian packages of a compiler for this machine and of the C library.
_NATIVE_PACKAGES: Final = "gcc libc6-dev"
CPUINFO_PATH: Final = Path("/proc/cpuinfo")
#: Largest number of lines of a compiler's message that an error quotes.
MAX_MESSAGE_LINES = 30
#: Default time limit of one run of the C compiler, in seconds.
DEFAULT_CC_TIMEOUT_SECONDS: Final = 1800.0
#: Time limit, in seconds, of commands that query the compiler, such as --version.
PROBE_TIMEOUT_SECONDS: Final = 60.0


@frozen
class Toolchain:
    """A C compiler command, extra flags, the object cache (None for none), and a time limit per run
    in seconds.
    """

    cc: tuple[str, ...]
    cflags: tuple[str, ...] = ()
    cache: ObjectCache | None = None
    seconds: float = DEFAULT_CC_TIMEOUT_SECONDS


#: A `find_toolchain` with some arguments already bound.
ToolchainFactory: TypeAlias = Callable[..., Toolchain]


def find_toolchain(
    cc: str | None = None,
    cflags: Sequence[str] = (),
    *,
    cache: bool = True,
    target: Target | None = None,
    seconds: float | None = None,
) -> Toolchain:
    """Return the C compiler `cc`, else $CC, else the first of cc, gcc and clang on the path.

    cache    use the user's cache of compiled objects
    target   the compilation target; for an architecture other than this machine's, the default is its
             GNU cross compiler (for Linux, or bare-metal) instead of cc, gcc and clang; for vectors of
             RISC-V, the default is the first version of clang that translates them
    seconds  time limit of one run of the compiler; None for 1800 seconds

    Raises AotcError: code "no-compiler" if there is none, "cflags" for flags that change results,
    "cc-timeout" for a limit that is not positive.
    """
    limit = DEFAULT_CC_TIMEOUT_SECONDS if seconds is None else seconds
    if not limit > 0:
        raise AotcError("cc-timeout", f"the time limit of {limit:g} seconds is too short for a C compiler")
    command = _c_compiler_command(cc, target)
    reject_result_changing_c_flags((*command[1:], *cflags))
    return Toolchain(command, flags_for_compiler(command, cflags), user_object_cache() if cache else None, limit)


def _c_compiler_command(cc: str | None, target: Target | None) -> tuple[str, ...]:
    """Return the command of the C compiler with an absolute path, so that it runs from any
    directory.
    """
    if cc is not None and not cc.strip():
        raise AotcError(
            "no-compiler",
            "the name of the C compiler is empty",
            hint="leave " + option_text("cc") + " out to use the default compiler",
        )
    command_text = cc or os.environ.get("CC") or ""
    try:
        command = split_command_line(command_text)
    except ValueError as error:
        raise AotcError("no-compiler", f"C compiler {command_text!r} is not a command: {error}") from error
    candidates = (command,) if command else _default_compiler_commands(target)
    for name, *extra_args in candidates:
        if path := shutil.which(name):
            found = (name if Path(path).is_absolute() else str(Path(path).absolute()), *extra_args)
            if _takes_options_of_msvc(found):
                break
            if command or not _has_riscv_vectors(target) or _may_translate_vectors(found, target):
                return found
    raise _no_compiler_error(command, candidates, target)


def packages_of_compiler(target: Target | None) -> str:
    """Return the Debian packages of the default C compiler for a target, separated by spaces; for this machine if
    `target` is None.
    """
    if _has_riscv_vectors(target):
        return _RISCV_VECTOR_PACKAGES
    foreign = foreign_architecture_of_target(target)
    if not foreign:
        return _NATIVE_PACKAGES
    _, packages = _BARE_METAL_CROSS_COMPILERS.get(foreign, ("", f"gcc-{foreign.replace('_', '-')}-linux-gnu"))
    return packages


def _no_compiler_error(command: Sequence[str], candidates: Sequence[Sequence[str]], target: Target | None) -> AotcError:
    """Return the error that the command named by the caller, or each default command, is no
    compiler for `target`.
    """
    foreign, looked_for = foreign_architecture_of_target(target), ", ".join(name for name, *_ in candidates)
    if command and _takes_options_of_msvc(command):
        text = f"the C compiler {command[0]!r} takes the options of MSVC, and aotc gives those of gcc and clang"
        hint = "name clang instead, which is installed beside clang-cl, with " + option_text("cc")
    elif command:
        problem = "is a folder, not a compiler" if Path(command[0]).is_dir() else "not found"
        text, hint = f"C compiler {command[0]!r} {problem}", "give its path with " + option_text("cc")
    elif _has_riscv_vectors(target):
        text = f"no C compiler that translates vectors for {target.name} found (looked for {looked_for})"
        packages = packages_of_compiler(target)
        hint = f"install one (on Debian and Ubuntu: {packages}), name one with " + option_text("cc")
    elif foreign:
        text = f"no C compiler for {foreign} found (looked for {looked_for}); this "
        text += f"machine is {normalized_architecture_name()}"
        packages = packages_of_compiler(target)
        hint = f"install it (on Debian and Ubuntu: {packages}), name one with " + option_text("cc")
    else:
        text = f"no C compiler found (looked for {looked_for})"
        hint = "install gcc or clang, name one with " + option_text("cc")
    return AotcError("no-compiler", text, hint=hint + ", or emit sources only with " + option_text("build", False))


def _takes_options_of_msvc(command: Sequence[str]) -> bool:
    return Path(command[0]).stem.lower() in ("cl", "clang-cl")


def _has_riscv_vectors(target: Target | None) -> TypeGuard[Target]:
    """Return True if kernels for a target use the vector extension of RISC-V."""
    return target is not None and least_riscv_vector_bits(target.features) > 0


def _default_compiler_commands(target: Target | None) -> Sequence[tuple[str, ...]]:
    """Return the commands that are tried in turn where the caller names no C compiler."""
    foreign = foreign_architecture_of_target(target)
    if _has_riscv_vectors(target):
        architecture_args = (f"--target={target.machine}-linux-gnu",) if foreign else ()
        return [(name, *architecture_args) for name in _RISCV_VECTOR_COMPILERS]
    if foreign == "wasm32":
        return [(name, *_WASM_ARGUMENTS) for name in _WASM_COMPILERS]
    if foreign in _BARE_METAL_CROSS_COMPILERS:
        return [tuple(shlex.split(_BARE_METAL_CROSS_COMPILERS[foreign][0]))]
    return [(gnu_cross_compiler_name(foreign),)] if foreign else native_compiler_commands()


def flags_in_compiler_command(cc: str | None = None) -> tuple[str, ...]:
    """Return the flags inside the compiler command `cc` or $CC; () if it cannot be parsed."""
    with suppress(ValueError):
        return split_command_line(cc or os.environ.get("CC") or "")[1:]
    return ()


def gnu_cross_compiler_name(machine: str) -> str:
    """Return the usual name of the GNU cross compiler for an architecture, for Linux or else
    bare-metal.
    """
    return (
        shlex.split(_BARE_METAL_CROSS_COMPILERS[machine][0])[0]
        if machine in _BARE_METAL_CROSS_COMPILERS
        else f"{machine}-linux-gnu-gcc"
    )


def foreign_architecture_of_target(target: Target | None) -> str:
    """Return the architecture of a target if it differs from this machine's; "" otherwise."""
    architecture = target.machine if target is not None else ""
    return "" if architecture in ("", normalized_architecture_name()) else architecture


def cpuinfo_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, such as "flags"; "" if unavailable."""
    with suppress(OSError):
        match = re.search(
            rf"^{name}\s*:(.*)$", CPUINFO_PATH.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
        return match[1].strip() if match is not None else ""
    return ""


def usable_cpu_feature_flags() -> frozenset[str]:
    """Return the processor's feature flags, without AMX if the operating system does not save its
    registers.
    """
    flags = frozenset(cpuinfo_field("flags").split()) | _riscv_extensions(cpuinfo_field("isa"))
    matrices = frozenset(flag for flag in flags if flag.startswith("amx_"))
    return flags - matrices if matrices and not _os_saves_amx_tiles() else flags


def usable_processor_features() -> frozenset[str]:
    """Return the instruction sets of this machine's processor that targets, or texts of instructions, name."""
    known = {name for name, feature in PROCESSOR_FEATURES.items() if feature.machine == normalized_architecture_name()}
    return feature_names_from_cpu_flags(usable_cpu_feature_flags()) & known


def _riscv_extensions(isa: str) -> frozenset[str]:
    """Return the extensions in the name of a RISC-V instruction set: "rv64imafdcv_zicsr" has "v" and
    "zicsr".
    """
    letters, *names = isa.lower().split("_")
    # drafts of the vector extension have other instructions
    return frozenset(name for name in (*re.sub(r"rv64|v0p\d+", "", letters), *names) if name)


def _os_saves_amx_tiles() -> bool:
    """Return True if Linux saves AMX tile data: arch_prctl(ARCH_GET_XCOMP_SUPP), bit 18."""
    saved = ctypes.c_uint64()
    done = ctypes.CDLL(None).syscall(158, 0x1021, ctypes.byref(saved))
    return bool(done == 0 and saved.value >> 18 & 1)


def resolve_target(target: str | Target) -> Target:
    """Return the target called `target`; a Target is returned unchanged.

    "host" is the best target for this machine's architecture and processor features.  Cache sizes
    are those of the target, not measured.
    """
    if isinstance(target, Target):
        return target
    if target == "host":
        return host_target(platform.machine(), usable_cpu_feature_flags())
    return get_target(target)


def require_cpu_can_run(target: Target) -> None:
    """Raise AotcError (code "cpu") if code for a target cannot run here: it is for another
    architecture, or the processor is known to lack features that the target, or each of its
    versions, needs.
    """
    flags = feature_names_from_cpu_flags(usable_cpu_feature_flags())
    # most systems do not list the length of RISC-V's vector registers: libraries check it themselves
    unlisted = () if any(flag.startswith("zvl") for flag in flags) else ("zvl",)
    lacks = [
        [feature for feature in version.features if feature not in flags and not feature.startswith(unlisted)]
        for version in target.versions or (target,)
    ]
    if foreign := foreign_architecture_of_target(target):
        reason = f"it is for {foreign}, this machine is {normalized_architecture_name()}"
    elif flags and all(lacks):
        reason = f"the processor lacks {', '.join(sorted(lacks, key=len)[0])}"
    else:
        return
    hint = "take " + option_text("target", "host") + " for what runs here; "
    hint += COMPILE_CALL + " builds libraries for other machines"
    if target.bare:
        hint = "take " + option_text("target", "c") + ": integer models give equal bytes; "
        hint += COMPILE_CALL + " with " + option_text("selftest", True) + " makes a test for the board, "
        hint += "or QEMU, itself (docs/tutorials/model_to_board.md)"
    raise AotcError("cpu", f"code for {target.name} cannot run here: {reason}", hint=hint)


def index_of_best_runnable_version(versions: Sequence[Target]) -> int:
    """Return the index of the first target version that this machine can run; 0 if it can run none."""
    for k, candidate in enumerate(versions):
        with suppress(AotcError):
            require_cpu_can_run(candidate)
            return k
    return 0


def best_runnable_version(target: Target) -> Target:
    """Return the version of a target for which stand-alone kernels are compiled: the best that runs
    here.
    """
    every = target.versions or (target,)
    return every[index_of_best_runnable_version(every)]


def run_compiler_command(
    command: Sequence[str], seconds: float, cwd: Path | None = None, stdin_bytes: bytes = b""
) -> FinishedProcess:
    try:
        return run_program(command, cwd=cwd, given=stdin_bytes, seconds=seconds)
    except TimeoutError:
        text = f"{command[0]} was ended: it was not done after {seconds:g} seconds"
        hint = option_text("cc_timeout") + " gives it more; the command was: " + shlex.join(command)
        raise AotcError("compiler-failed", text, hint=hint) from None
    except OSError as error:
        raise AotcError("compiler-failed", f"cannot run {command[0]}: {error.strerror or error}") from error


def run_compiler(
    command: Sequence[str], cwd: Path, seconds: float = DEFAULT_CC_TIMEOUT_SECONDS, required_output: Path | None = None
) -> None:
    """Run one compiler command.

    seconds            time limit
    required_output    the file that it must write

    Raise AotcError (code "compiler-failed") with the compiler's message if it fails or does not
    write `required_output`.
    """
    done = run_compiler_command(command, seconds, cwd)
    problem = f"failed with exit code {done.code}" if done.code else ""
    if (
        not problem
        and required_output is not None
        and not (required_output.is_file() and required_output.stat().st_size)
    ):
        problem = "did not fail, but wrote nothing"
    if problem:
        notes = done.error_or_output_lines()[:MAX_MESSAGE_LINES]
        hint = f"the command was: {shlex.join(command)}"
        raise AotcError("compiler-failed", f"{command[0]} {problem}", notes=notes, hint=hint)


def archiver_of_compiler(toolchain: Toolchain) -> str:
    """Return the archiver command that belongs to a C compiler, for static libraries: `ar`, and that of
    LLVM for WebAssembly, whose object files others do not index.
    """
    name = "llvm-ar" if architecture_compiled_for(toolchain) == "wasm32" else "ar"
    done = run_compiler_command([*toolchain.cc, f"-print-prog-name={name}"], PROBE_TIMEOUT_SECONDS)
    return done.output.decode("utf-8", "replace").strip() if done.code == 0 else name


def compiler_version_line(toolchain: Toolchain) -> str:
    """Return the first line of the compiler's --version: "cc (Debian 12.2.0-14) 12.2.0"."""
    output = run_compiler_command([*toolchain.cc, "--version"], PROBE_TIMEOUT_SECONDS).output
    return (output.decode("utf-8", "backslashreplace").splitlines() or ["unknown"])[0]


_VECTOR_PROBE_SOURCE: Final = """\
typedef float vector __attribute__((__vector_size__(16)));
typedef int whole __attribute__((__vector_size__(16)));
typedef char is_wide[sizeof(vector) == 16 ? 1 : -1];
whole doubled(vector a) { return __builtin_convertvector(a + a, whole); }
"""


@lru_cache
def _may_translate_vectors(cc: tuple[str, ...], target: Target, timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> bool:
    """Return True if a compiler supports the vector extensions of gcc and clang and, on RISC-V,
    translates them to vector instructions.

    True as well if it cannot compile anything: later runs report that problem.
    """
    requirements = "".join(f"{line}\n" for line in riscv_vector_requirement_lines(target))
    flags = target.cflags if requirements else ()
    probes = ((requirements + _VECTOR_PROBE_SOURCE, flags), ("int one(void) { return 1; }\n", ()))
    with temporary_folder("aotc-probe-") as folder:
        for number, (text, probe_flags) in enumerate(probes):
            (Path(folder) / "probe.c").write_text(text, encoding="utf-8")
            command = [*cc, *probe_flags, "-c", "probe.c", "-o", "probe.o"]
            if run_compiler_command(command, timeout_seconds, Path(folder)).code == 0:
                return number == 0
    return True


@lru_cache
def _triple_from_dumpmachine(command: tuple[str, ...], seconds: float) -> str:
    done = run_compiler_command([*command, "-dumpmachine"], seconds)
    return done.output.decode("utf-8", "replace").strip() if done.code == 0 else ""


def triple_compiled_for(toolchain: Toolchain) -> str:
    """Return the target triple that a compiler prints for -dumpmachine; "" if it prints none."""
    command = (*toolchain.cc, *toolchain.cflags)
    return _triple_from_dumpmachine(command, min(toolchain.seconds, PROBE_TIMEOUT_SECONDS))


def system_compiled_for(toolchain: Toolchain) -> OperatingSystem:
    """Return the operating system that a compiler generates code for."""
    return system_of_triple(triple_compiled_for(toolchain))


def architecture_compiled_for(toolchain: Toolchain) -> str:
    """Return the architecture that a compiler generates code for (-dumpmachine); "" if no target
    has it.
    """
    architecture = normalized_architecture_name(triple_compiled_for(toolchain).partition("-")[0])
    return architecture if any(t.machine == architecture for t in TARGETS.values()) else ""


def require_compiler_for_architecture(toolchain: Toolchain, target: Target) -> None:
    """Raise AotcError (code "no-compiler") if the compiler generates code for an architecture other
    than the target's.
    """
    architecture = architecture_compiled_for(toolchain)
    # one RISC-V compiler generates code for both 32 and 64 bits
    if (
        target.machine
        and architecture not in ("", target.machine)
        and architecture.removesuffix("64") != target.machine.removesuffix("32").removesuffix("64")
    ):
        text = f"{shlex.join(toolchain.cc)} makes code for {architecture}"
        text += f", and {target.name} is for {target.machine}"
        fitting = ", ".join(n for n, t in TARGETS.items() if t.machine == architecture)
        hint = "name another compiler with " + option_text("cc") + f", or take one of its targets: {fitting}"
        raise AotcError("no-compiler", text, hint=hint)


def require_vector_extensions(toolchain: Toolchain, target: Target) -> None:
    """Raise AotcError (code "no-vectors") if the target's kernels use vectors and the compiler has
    no vector extensions.
    """
    if target.is_scalar or _may_translate_vectors(toolchain.cc, target, toolchain.seconds):
        return
    if _has_riscv_vectors(target):
        text = f"{shlex.join(toolchain.cc)} does not translate vectors to instructions for {target.name}"
        compiler = 'clang 19 or newer ("clang-19 --target=riscv64-linux-gnu")'
        hint = f"name {compiler} with " + option_text("cc") + ", or compile for the target riscv64"
    else:
        text = f"{shlex.join(toolchain.cc)} has no vectors as gcc and clang have, and kernels for {target.name} do"
        hint = "name gcc or clang with " + option_text("cc") + ", or compile for the target c"
    raise AotcError("no-vectors", text, hint=hint)


def compiler_identity_hash(toolchain: Toolchain) -> str:
    """Return a hash of the compiler's path, file size, modification time and version."""
    path = Path(shutil.which(toolchain.cc[0]) or toolchain.cc[0]).resolve()
    version_output = run_compiler_command(
        [*toolchain.cc, "--version"], min(toolchain.seconds, PROBE_TIMEOUT_SECONDS)
    ).output
    with translate_os_errors("compiler-failed", f"run {toolchain.cc[0]}"):
        stat = path.stat()
    return sha256_of_parts(str(path), f"{stat.st_size} {stat.st_mtime_ns}", version_output)
