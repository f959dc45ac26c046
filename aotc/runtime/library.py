# SPDX-License-Identifier: Apache-2.0
"""Compiled libraries: found in a project, opened, checked, described.

library = Library(find_library(Path("build/net")))
library.name, library.inputs, library.workspace_bytes
library.run(inputs, outputs, workspace, ffi.NULL)          # status; pointers as in aotc.h
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path, PurePath
from typing import Any, Final

from aotc.ir import AotcError, DType, Quantization, architecture, elf_architecture, nearest, read_table, refusals
from aotc.ir.manifest import MANIFEST, PENDING
from aotc.runtime.abi import ABI_VERSION, DTYPES, ENTRY_SYMBOL, MAX_THREADS, ffi
from aotc.runtime.fork_safety import Turns
from aotc.runtime.library_integrity import require_checksum, require_whole
from aotc.runtime.tensor_info import TensorInfo

#: What tells of a project, in its directory.
MARKER: Final = "metadata.json"
_FOLDERS: Final = ("lib", "build")
#: Characters of a name that a message repeats.
_MOST_SHOWN: Final = 80
_SUFFIXES: Final = (".so", ".dylib", ".dll")


def find_library(path: Path, check: bool | str = False) -> Path:
    """The library file that `path` is, or that lies in the emitted project `path`.

    check    compare the whole library with its SHA-256: this one, or for True that in its project's metadata

    Raises AotcError: code "load" if there is none, or more than one to choose from; code "checksum" where the sums
    differ, and where the metadata state none.
    """
    with refusals("load", f"look at {path}"):
        if not path.exists():
            raise AotcError("load", f"no such file or directory: {path}")
        library = _library_of(path) if path.is_dir() else path
    if check:
        require_checksum(library, check if isinstance(check, str) else _stated_checksum(library))
    return library


def libraries_of(project: Path) -> list[Path]:
    """Every library in the directory of a project: that which its metadata name first.

    Raises AotcError (code "load") for metadata that are damaged or that name a library outside of the project.
    """
    named = _named_in_metadata(project)
    first = [named] if named is not None and named.is_file() else []
    others = [file for folder in _FOLDERS for file in _libraries_in(project / folder)]
    return list(dict.fromkeys([*first, *others]))


def _libraries_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix in _SUFFIXES and file.is_file())


def _library_of(path: Path) -> Path:
    named = _named_in_metadata(path)
    if named is not None and named.is_file():
        return named
    for folder in _FOLDERS:
        found = _libraries_in(path / folder)
        if len(found) == 1:
            return found[0]
        if found:
            text = f"{path / folder} holds several libraries: {', '.join(p.name for p in found)}"
            raise AotcError("load", text, hint="give the file itself")
    hint = f"looked in {' and '.join(f'{f}/' for f in _FOLDERS)}; `make` in an emitted project builds it"
    raise AotcError("load", f"no compiled library in {path}", hint=hint)


def _named_in_metadata(project: Path) -> Path | None:
    """The library that a project's metadata name, if it has metadata that do; AotcError for one outside of it."""
    name = read_metadata(project).get("library")
    if name is None:
        return None
    problem = "names no file as the library"
    if isinstance(name, str) and name:
        if is_inside(project, name):
            return project / name
        problem = f"places the library outside: {shown(name)}"
    hint = f"the library is part of the project: a relative path in {MARKER}; else give the file itself"
    raise AotcError("load", f"{project / MARKER} {problem}", hint=hint)


def shown(text: str) -> str:
    """A text from a file as messages repeat it."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def is_inside(folder: Path, name: str) -> bool:
    """Whether a relative path leads to a place in a folder, after links are followed."""
    path = PurePath(name)
    if "\0" in name or path.is_absolute() or ".." in path.parts:
        return False
    return Path(os.path.realpath(folder / path)).is_relative_to(os.path.realpath(folder))


def read_metadata(project: Path) -> dict[str, Any]:
    """What the metadata in a directory say, none where it has none.

    Raises AotcError (code "load") for damaged ones, and for a project of which only some files were exchanged.
    """
    path = project / MARKER
    if (project / PENDING).exists() and not (project / MANIFEST).exists():
        text = f"{project} is incomplete: a compile was ended while it wrote there"
        raise AotcError("load", text, hint="compile the model again")
    return read_table(path, "load") if path.is_file() else {}


def is_project(directory: Path) -> bool:
    """Whether a directory holds a project that aotc emitted."""
    try:
        return read_metadata(directory).get("generator") == "aotc"
    except (OSError, AotcError):
        return False


def _stated_checksum(library: Path) -> str:
    """The SHA-256 of a library in its project's metadata; AotcError (code "checksum") where they state none."""
    file = library.absolute()
    for project in file.parents[:2]:
        stated = read_metadata(project).get("sha256")
        found = stated.get(file.relative_to(project).as_posix()) if isinstance(stated, dict) else None
        if isinstance(found, str):
            return found
    hint = "it is in the metadata.json of the project that `aotc compile` built; or give the SHA-256 itself"
    raise AotcError("checksum", f"the metadata has no checksum of {library}", hint=hint)


_TURNS: Final = Turns()
#: The files that were ever seen at a path.
_SEEN: Final[dict[Path, dict[tuple[int, int], str]]] = {}


def _spelling(path: Path) -> str:
    """A name of the file that is at an absolute path now, and of no other one.

    The dynamic linker of glibc takes a name that it has open for the same library, even if another file has
    taken its place since.  Each file that was ever seen at a path has a spelling of its own: one more slash.
    """
    stat = path.stat()
    with _TURNS:
        seen = _SEEN.setdefault(path, {})
        slashes = seen.setdefault((stat.st_dev, stat.st_ino), "/" * (1 + len(seen)))
    return f"{path.parent}{slashes}{path.name}"


def open_library(path: Path, interface: Any = ffi) -> Any:
    """The handle of a shared library, for a cffi interface; AotcError (code "load")."""
    require_whole(path)
    try:
        return interface.dlopen(_spelling(path.resolve()), interface.RTLD_NOW | interface.RTLD_LOCAL)
    except OSError as error:
        raise _unloadable(path, error) from error


def _unloadable(path: Path, error: OSError) -> AotcError:
    """Why the dynamic linker refuses a file."""
    hint = "expected a library that `aotc compile` built for this machine, or the directory of a project"
    text, notes = f"cannot load {path}", [str(error)]
    with suppress(OSError), path.open("rb") as file:
        head = file.read(20)
        made_for = elf_architecture(head)
        if made_for not in ("", architecture()):
            text = f"{path} was compiled for {made_for}, this machine is {architecture()}"
            notes = []
            hint = "compile with --target host to run it here; docs/targets.md tells how to run it elsewhere"
        elif head.startswith(b"!<arch>\n"):
            text, notes = f"{path} is a static library, which programs are linked with; it cannot be run here", []
            hint = "compile with --target host to run the model on this machine"
        elif path.suffix in (".onnx", ".pt2", ".tflite", ".relay"):
            text, notes = f"{text}: it is a model, not a library", []
            hint = f"`aotc compile {path} -o DIR` makes a library of it"
    return AotcError("load", text, notes=notes, hint=hint)


def _model(path: Path, handle: Any) -> Any:
    entry = getattr(handle, ENTRY_SYMBOL, None)
    if entry is None:
        hint = "only libraries built by aotc can be loaded"
        raise AotcError("load", f"{path} is not a compiled model: it has no symbol {ENTRY_SYMBOL}", hint=hint)
    model = entry()
    if model == ffi.NULL:
        raise AotcError("load", f"{path} is no compiled model: {ENTRY_SYMBOL} returns a null pointer")
    # the first field of every version
    version = int(ffi.cast("const uint32_t *", model)[0])
    if version != ABI_VERSION:
        text = f"{path} was compiled for version {version} of the binary interface, this is version {ABI_VERSION}"
        raise AotcError("load", text, hint="compile the model again with the installed aotc")
    return model


def _isas(path: Path, model: Any) -> dict[str, tuple[str, ...]]:
    """The instruction sets that there are kernels for, the best first, each with what the processor lacks for it.

    Raises AotcError (code "cpu") where it lacks something for each.
    """
    if not model.num_isas:
        return {}
    names = map(model.cpu_features.__getitem__, count())
    features = list(map(_text, takewhile(lambda name: name != ffi.NULL, names)))
    lacks = int(model.cpu_missing())
    found = {}
    for isa in model.isas[0 : model.num_isas]:
        needs = int(isa.needs) & lacks
        found[_text(isa.name)] = tuple(f for bit, f in enumerate(features) if needs >> bit & 1)
    if all(found.values()):
        raise _lacks(path, *list(found.items())[-1])
    return found


def _lacks(path: Path, isa: str, features: Sequence[str]) -> AotcError:
    text = f"{path} has code for {isa}, which needs what this processor lacks: {', '.join(features)}"
    return AotcError("cpu", text, hint="compile with --target host to run it here, or --target x86-64 for any x86-64")


def _text(pointer: Any) -> str:
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


def _tensors(path: Path, pointer: Any, number: int) -> tuple[TensorInfo, ...]:
    infos = []
    for tensor in pointer[0:number] if number else ():
        name, code = _text(tensor.name), int(tensor.dtype)
        if not 0 <= code < len(DTYPES):
            raise AotcError("load", f"{path}: tensor {name!r} has the unknown element type {code}")
        shape, dtype = [int(tensor.shape[d]) for d in range(tensor.rank)], DTYPES[code]
        info = TensorInfo(name, shape, dtype, _quantization(dtype, tensor.quantization))
        if info.nbytes != tensor.bytes:
            raise AotcError(
                "load", f"{path}: tensor {name!r} declares {tensor.bytes} bytes, but its shape needs {info.nbytes}"
            )
        infos.append(info)
    return tuple(infos)


def _quantization(dtype: DType, stated: Any) -> Quantization | None:
    """What the integers of a tensor stand for, as C states it."""
    if stated == ffi.NULL:
        return None
    scales, zeros = (tuple(numbers[0 : stated.count]) for numbers in (stated.scale, stated.zero_point))
    return Quantization(dtype, scales, zeros, stated.axis if stated.axis >= 0 else None)


class Library:
    """An open library; it is closed when nothing refers to it any more.  Pickled, it is its path.

    path, absolute                           as given, and whatever the working directory becomes
    name, version                            of the model, and of the compiler that made it
    inputs, outputs                          in the order in which `run` takes them
    workspace_bytes, workspace_alignment     what a run needs, in bytes
    weights_bytes                            parameters inside the library, in bytes
    thread_workspace_bytes                   what a run needs more for each thread after the first
    run                                      the C function; releases the GIL

    isas                                     instruction sets that there are kernels for, the best first, each with
                                             the features that this processor lacks for it

    Raises AotcError (code "load") for a file that is no compiled model, or one for another version of the
    binary interface; code "cpu" where the processor can run none of its kernels.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.absolute = path.absolute()
        self.handle = open_library(path)
        model = _model(path, self.handle)
        self.isas = _isas(path, model)
        self.name = _text(model.name)
        self.version = _text(model.version)
        self.inputs = _tensors(path, model.inputs, model.num_inputs)
        self.outputs = _tensors(path, model.outputs, model.num_outputs)
        self.workspace_bytes = int(model.workspace_bytes)
        self.workspace_alignment = max(1, int(model.workspace_alignment))
        self.weights_bytes = int(model.weights_bytes)
        self.thread_workspace_bytes = int(model.thread_workspace_bytes)
        self.run: Any = model.run

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.absolute),)

    def choose_isa(self, name: str | None) -> str:
        """The instruction set of runs: `name`, else what the environment variable AOTC_ISA says to libraries that
        have several, else the best that the processor has.

        Raises AotcError: code "isa" for one that the library has no kernels for, "cpu" for one that the processor
        lacks.
        """
        if name is None and len(self.isas) > 1:
            name = os.environ.get("AOTC_ISA") or None
        if name is None:
            return next((isa for isa, lacks in self.isas.items() if not lacks), "")
        if name not in self.isas:
            hint = nearest(name, self.isas) or f"known: {', '.join(self.isas)}"
            raise AotcError("isa", f"{self.path} has no kernels for the instruction set {name!r}", hint=hint)
        if self.isas[name]:
            raise _lacks(self.path, name, self.isas[name])
        return name

    def start_threads(self, count: int) -> Threads | None:
        """Threads for runs of this or any other compiled model; None where one is enough.

        count   1 to 64, the calling thread included

        That is for 1, and for a library without kernels that can be shared: its runs are the calling thread's.
        Raises AotcError (code "threads") for other numbers, and where the system refuses.
        """
        if not 1 <= count <= MAX_THREADS:
            raise AotcError("threads", f"threads must be 1 to {MAX_THREADS}, got {count}")
        if count == 1 or not hasattr(self.handle, "aotc_model_threads_create"):
            return None
        found = ffi.new("const aotc_threads **")
        if self.handle.aotc_model_threads_create(count, found) != 0:
            raise AotcError("threads", f"the operating system cannot create {count} threads")
        return Threads(self, count, found[0])


class Threads:
    """Threads that wait for runs; they end when nothing refers to them any more.

    count   how many share a run, the calling thread included

    Forked children have threads of their own.  Pickled, they are the library and their number.
    """

    def __init__(self, library: Library, count: int, pointer: Any) -> None:
        self.count = count
        self.pointer = pointer
        # whose code the threads run
        self._library = library
        # looked up here: `__del__` may run within cffi, where looking up would wait for cffi's lock for ever
        self._destroy = library.handle.aotc_model_threads_destroy

    def __del__(self) -> None:
        # called before the library is closed: `ffi.gc` is not, where both are parts of one cycle
        self._destroy(self.pointer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Library.start_threads, (self._library, self.count)


def _reopened(path: str) -> Library:
    """A library that was pickled; AotcError (code "load") where it is gone."""
    if not Path(path).exists():
        hint = "where it lay in a temporary directory, that went with its process: compile with an output directory"
        raise AotcError("load", f"the library that a pickled session refers to does not exist: {path}", hint=hint)
    return Library(Path(path))
