# SPDX-License-Identifier: Apache-2.0
"""Find, open, validate and describe compiled libraries.

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

#: Name of the metadata file in a project's directory.
MARKER: Final = "metadata.json"
_FOLDERS: Final = ("lib", "build")
#: Largest number of characters of a name that a message quotes.
_MOST_SHOWN: Final = 80
_SUFFIXES: Final = (".so", ".dylib", ".dll")


def find_library(path: Path, check: bool | str = False) -> Path:
    """Return the path of a library: `path` itself if it is a file, else the library in the project
    `path`.

    check    compare the SHA-256 of the library with this one; True: with the one in the project's metadata

    Raises AotcError: code "load" if there is no library or several candidates; code "checksum" if
    the checksums differ or the metadata contain none.
    """
    with refusals("load", f"look at {path}"):
        if not path.exists():
            raise AotcError("load", f"no such file or directory: {path}")
        library = _library_of(path) if path.is_dir() else path
    if check:
        require_checksum(library, check if isinstance(check, str) else _stated_checksum(library))
    return library


def libraries_of(project: Path) -> list[Path]:
    """Return all libraries in the directory of a project, the one that its metadata name first.

    Raises AotcError (code "load") if the metadata are damaged or name a library outside of the
    project.
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
    """Return the library that a project's metadata name, None if they name none; AotcError if it is
    outside of it.
    """
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
    """Return a text from a file in quotes, cut to 80 characters, for an error message."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def is_inside(folder: Path, name: str) -> bool:
    """Return True if a relative path, after resolving links, is inside a folder."""
    path = PurePath(name)
    if "\0" in name or path.is_absolute() or ".." in path.parts:
        return False
    return Path(os.path.realpath(folder / path)).is_relative_to(os.path.realpath(folder))


def read_metadata(project: Path) -> dict[str, Any]:
    """Return the metadata in a directory; {} if there are none.

    Raises AotcError (code "load") for damaged metadata, and for a project whose files were only
    partly replaced.
    """
    path = project / MARKER
    if (project / PENDING).exists() and not (project / MANIFEST).exists():
        text = f"{project} is incomplete: a compile was ended while it wrote there"
        raise AotcError("load", text, hint="compile the model again")
    return read_table(path, "load") if path.is_file() else {}


def is_project(directory: Path) -> bool:
    """Return True if a directory contains a project that aotc emitted."""
    try:
        return read_metadata(directory).get("generator") == "aotc"
    except (OSError, AotcError):
        return False


def _stated_checksum(library: Path) -> str:
    """Return the SHA-256 of a library from its project's metadata; AotcError (code "checksum") if
    there is none.
    """
    file = library.absolute()
    for project in file.parents[:2]:
        stated = read_metadata(project).get("sha256")
        found = stated.get(file.relative_to(project).as_posix()) if isinstance(stated, dict) else None
        if isinstance(found, str):
            return found
    hint = "it is in the metadata.json of the project that `aotc compile` built; or give the SHA-256 itself"
    raise AotcError("checksum", f"the metadata has no checksum of {library}", hint=hint)


_TURNS: Final = Turns()
#: Spellings of a path by the (device, inode) of each file seen there.
_SEEN: Final[dict[Path, dict[tuple[int, int], str]]] = {}


def _spelling(path: Path) -> str:
    """Return a spelling of an absolute path that is unique to the file that is there now.

    The dynamic linker of glibc identifies loaded libraries by path, even if the file was replaced
    since.  Each file seen at a path therefore gets its own spelling, with one more slash.
    """
    stat = path.stat()
    with _TURNS:
        seen = _SEEN.setdefault(path, {})
        slashes = seen.setdefault((stat.st_dev, stat.st_ino), "/" * (1 + len(seen)))
    return f"{path.parent}{slashes}{path.name}"


def open_library(path: Path, interface: Any = ffi) -> Any:
    """Load a shared library for a cffi interface; return its handle.

    Raises AotcError (code "load") if the file is incomplete or cannot be loaded.
    """
    require_whole(path)
    try:
        return interface.dlopen(_spelling(path.resolve()), interface.RTLD_NOW | interface.RTLD_LOCAL)
    except OSError as error:
        raise _unloadable(path, error) from error


def _unloadable(path: Path, error: OSError) -> AotcError:
    """Return an AotcError that explains why the dynamic linker cannot load a file."""
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
    """Return the instruction sets of a library's kernels, best first, each with the features that
    this CPU lacks.

    Raises AotcError (code "cpu") if the processor can run none of them.
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
    """Convert the quantization parameters of a tensor from their C structure; None for NULL."""
    if stated == ffi.NULL:
        return None
    scales, zeros = (tuple(numbers[0 : stated.count]) for numbers in (stated.scale, stated.zero_point))
    return Quantization(dtype, scales, zeros, stated.axis if stated.axis >= 0 else None)


class Library:
    """A loaded library of a compiled model; unloaded when no longer referenced.  Pickling stores
    its path.

    path                     path as given
    absolute                 absolute path, independent of later changes of the working directory
    name                     name of the model
    version                  version of the compiler that built it
    inputs, outputs          descriptions of tensors, in the order of `run`'s arguments
    workspace_bytes          scratch memory of one run, in bytes
    workspace_alignment      alignment of the scratch memory, in bytes
    weights_bytes            size of the parameters in the library, in bytes
    thread_workspace_bytes   additional scratch memory for each thread after the first, in bytes
    run                      the C function; releases the GIL
    isas                     instruction sets of the kernels, best first, each with the features that this
                             processor lacks for it

    Raises AotcError: code "load" if the file is not a compiled model or has another version of the
    binary interface, code "cpu" if the processor can run none of its kernels.
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
        """Return the instruction set for runs: `name`, else $AOTC_ISA if the library has several,
        else the processor's best.

        Raises AotcError: code "isa" if the library has no kernels for it, "cpu" if the processor
        lacks features.
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
        """Start a pool of threads for runs of this or any other compiled model.

        count   1 to 64, including the calling thread

        Returns None for count 1, and for a library whose kernels cannot divide their work.  Raises
        AotcError (code "threads") for other counts, and if the system cannot create the threads.
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
    """A pool of threads that execute runs; it ends when no longer referenced.

    count   number of threads that execute a run, including the calling thread

    Forked children create their own threads.  Pickling stores the library and the count.
    """

    def __init__(self, library: Library, count: int, pointer: Any) -> None:
        self.count = count
        self.pointer = pointer
        # a reference that prevents unloading the library while threads run its code
        self._library = library
        # looked up here: `__del__` may run inside cffi, where a lookup would deadlock on cffi's lock
        self._destroy = library.handle.aotc_model_threads_destroy

    def __del__(self) -> None:
        # must run before the library is closed; `ffi.gc` does not guarantee this within a reference cycle
        self._destroy(self.pointer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Library.start_threads, (self._library, self.count)


def _reopened(path: str) -> Library:
    """Load a library that was pickled by its path; AotcError (code "load") if the file no longer
    exists.
    """
    if not Path(path).exists():
        hint = "where it lay in a temporary directory, that went with its process: compile with an output directory"
        raise AotcError("load", f"the library that a pickled session refers to does not exist: {path}", hint=hint)
    return Library(Path(path))
