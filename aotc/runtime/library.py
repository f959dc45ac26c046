# SPDX-License-Identifier: Apache-2.0
"""Find, open, validate and describe compiled libraries.

library = Library(find_library(Path("build/net")))
library.name, library.inputs, library.workspace_bytes
library.run(inputs, outputs, workspace, ffi.NULL)          # status; pointers as in aotc.h
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path, PurePath
from typing import Any, Final

from aotc.ir import (
    COMPILE_CALL,
    AotcError,
    DType,
    Quantization,
    did_you_mean_hint,
    elf_architecture,
    normalized_architecture_name,
    option_text,
    python_expression,
    read_json_object,
    text_for_command_or_python,
    translate_os_errors,
)
from aotc.ir.file_checksum_manifest import MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME
from aotc.runtime.abi import (
    ABI_VERSION,
    ABI_VERSION_OF_FOUND_SIZES,
    ABI_VERSION_OF_SIZES,
    DTYPE_BY_CODE,
    ENTRY_SYMBOL,
    GROWING_STATE_SYMBOL,
    MAX_THREADS,
    SIZES_SYMBOL,
    STATE_HASH_BYTES,
    STATE_SYMBOL,
    STRING_CODE,
    TIERS_SYMBOL,
    ffi,
)
from aotc.runtime.fork_safety import ForkSafeMutex
from aotc.runtime.library_integrity import require_complete_library_file, require_file_checksum
from aotc.runtime.run_sizes import RunSizes
from aotc.runtime.separate_weights import separate_weights_or_none, weights_descriptor
from aotc.runtime.tensor_info import TensorInfo, allocate_aligned_bytes, memory_address

#: Name of the metadata file in a project's directory.
METADATA_FILE_NAME: Final = "metadata.json"
_LIBRARY_FOLDERS: Final = ("lib", "build")
#: Largest number of characters of a name that a message quotes.
_MAX_QUOTED_CHARACTERS: Final = 80
_LIBRARY_SUFFIXES: Final = (".so", ".dylib", ".dll")


def find_library(path: Path, check: bool | str = False) -> Path:
    """Return the path of a library: `path` itself if it is a file, else the library in the project
    `path`.

    check    compare the SHA-256 of the library with this one; True: with the one in the project's metadata

    Raises AotcError: code "load" if there is no library or several candidates; code "checksum" if
    the checksums differ or the metadata contain none.
    """
    with translate_os_errors("load", f"look at {path}"):
        if not path.exists():
            raise AotcError("load", f"no such file or directory: {path}")
        library = _require_library_of_project(path) if path.is_dir() else path
    if check:
        require_file_checksum(library, check if isinstance(check, str) else _checksum_from_metadata(library))
    return library


def all_libraries_in_project(project: Path) -> list[Path]:
    """Return all libraries in the directory of a project, the one that its metadata name first.

    Raises AotcError (code "load") if the metadata are damaged or name a library outside of the
    project.
    """
    named = _library_named_in_metadata(project)
    first = [named] if named is not None and named.is_file() else []
    other_files = [file for folder in _LIBRARY_FOLDERS for file in _library_files_in_folder(project / folder)]
    return list(dict.fromkeys([*first, *other_files]))


def _library_files_in_folder(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix in _LIBRARY_SUFFIXES and file.is_file())


def _require_library_of_project(path: Path) -> Path:
    named = _library_named_in_metadata(path)
    if named is not None and named.is_file():
        return named
    for folder in _LIBRARY_FOLDERS:
        candidates = _library_files_in_folder(path / folder)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            text = f"{path / folder} holds several libraries: {', '.join(p.name for p in candidates)}"
            raise AotcError("load", text, hint="give the file itself")
    hint = f"looked in {' and '.join(f'{f}/' for f in _LIBRARY_FOLDERS)}; `make` in an emitted project builds it"
    raise AotcError("load", f"no compiled library in {path}", hint=hint)


def _library_named_in_metadata(project: Path) -> Path | None:
    """Return the library that a project's metadata name, None if they name none; AotcError if it is
    outside of it.
    """
    name = read_project_metadata(project).get("library")
    if name is None:
        return None
    problem = "names no file as the library"
    if isinstance(name, str) and name:
        if is_path_inside_folder(project, name):
            return project / name
        problem = f"places the library outside: {quote_shortened(name)}"
    hint = f"the library is part of the project: a relative path in {METADATA_FILE_NAME}; else give the file itself"
    raise AotcError("load", f"{project / METADATA_FILE_NAME} {problem}", hint=hint)


def quote_shortened(text: str) -> str:
    """Return a text from a file in quotes, cut to 80 characters, for an error message."""
    return repr(text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}...")


def is_path_inside_folder(folder: Path, relative_path: str) -> bool:
    """Return True if a relative path, after resolving links, is inside a folder."""
    path = PurePath(relative_path)
    if "\0" in relative_path or path.is_absolute() or ".." in path.parts:
        return False
    return Path(os.path.realpath(folder / path)).is_relative_to(os.path.realpath(folder))


def read_project_metadata(project: Path) -> dict[str, Any]:
    """Return the metadata in a directory; {} if there are none.

    Raises AotcError (code "load") for damaged metadata, and for a project whose files were only
    partly replaced.
    """
    path = project / METADATA_FILE_NAME
    if (project / PENDING_MANIFEST_FILE_NAME).exists() and not (project / MANIFEST_FILE_NAME).exists():
        text = f"{project} is incomplete: a compile was ended while it wrote there"
        raise AotcError("load", text, hint="compile the model again")
    return read_json_object(path, "load") if path.is_file() else {}


def is_aotc_project(directory: Path) -> bool:
    """Return True if a directory contains a project that aotc emitted."""
    try:
        return read_project_metadata(directory).get("generator") == "aotc"
    except (OSError, AotcError):
        return False


def _checksum_from_metadata(library: Path) -> str:
    """Return the SHA-256 of a library from its project's metadata; AotcError (code "checksum") if
    there is none.
    """
    file = library.absolute()
    for project in file.parents[:2]:
        stated = read_project_metadata(project).get("sha256")
        checksum = stated.get(file.relative_to(project).as_posix()) if isinstance(stated, dict) else None
        if isinstance(checksum, str):
            return checksum
    hint = "it is in the metadata.json of a compiled project; or give the SHA-256 itself"
    raise AotcError("checksum", f"the metadata has no checksum of {library}", hint=hint)


_SPELLINGS_LOCK: Final = ForkSafeMutex()
#: Spellings of a path by the (device, inode) of each file seen there.
_SPELLINGS_BY_PATH: Final[dict[Path, dict[tuple[int, int], str]]] = {}


def _path_spelling_unique_to_file(path: Path) -> str:
    """Return a spelling of an absolute path that is unique to the file that is there now.

    The dynamic linker of glibc identifies loaded libraries by path, even if the file was replaced
    since.  Each file seen at a path therefore gets its own spelling, with one more slash.  Windows
    keeps the file of a loaded library, and reads slashes in paths differently.
    """
    if sys.platform == "win32":
        return str(path)
    stat = path.stat()
    with _SPELLINGS_LOCK:
        spellings = _SPELLINGS_BY_PATH.setdefault(path, {})
        slashes = spellings.setdefault((stat.st_dev, stat.st_ino), "/" * (1 + len(spellings)))
    return f"{path.parent}{slashes}{path.name}"


def load_shared_library(path: Path, cffi_interface: Any = ffi) -> Any:
    """Load a shared library for a cffi interface; return its handle.

    Raises AotcError (code "load") if the file is incomplete or cannot be loaded.
    """
    require_complete_library_file(path)
    try:
        return cffi_interface.dlopen(
            _path_spelling_unique_to_file(path.resolve()), cffi_interface.RTLD_NOW | cffi_interface.RTLD_LOCAL
        )
    except OSError as error:
        raise _load_failure_error(path, error) from error


def _load_failure_error(path: Path, error: OSError) -> AotcError:
    """Return an AotcError that explains why the dynamic linker cannot load a file."""
    hint = "expected a library that " + COMPILE_CALL + " built for this machine, or the directory of a project"
    text, notes = f"cannot load {path}", [str(error)]
    with suppress(OSError), path.open("rb") as file:
        head = file.read(20)
        made_for = elf_architecture(head)
        if made_for not in ("", normalized_architecture_name()):
            text = f"{path} was compiled for {made_for}, this machine is {normalized_architecture_name()}"
            notes = []
            hint = "compile with " + option_text("target", "host") + " to run it here; "
            hint += "docs/targets/cpu.md explains cross compilation"
        elif (system := _system_of_library_file(head)) not in ("", _THIS_SYSTEM):
            text, notes = f"{path} is a library for {system}, this system is {_THIS_SYSTEM}", []
            hint = "compile with " + option_text("target", "host") + " to run the model on this machine"
        elif head.startswith(b"!<arch>\n"):
            text, notes = f"{path} is a static library, which programs are linked with; it cannot be run here", []
            hint = "compile with " + option_text("target", "host") + " to run the model on this machine"
        elif path.suffix in (".onnx", ".pt2", ".tflite", ".relay"):
            text, notes = f"{text}: it is a model, not a library", []
            call = f'aotc.compile({python_expression(str(path))}, output="DIR")'
            hint = text_for_command_or_python(command=f"`aotc compile {shlex.quote(str(path))} -o DIR`", python=call)
            hint += " makes a library of it"
    return AotcError("load", text, notes=notes, hint=hint)


#: First bytes of the files of shared libraries, by the system that loads them.
_LIBRARY_MAGIC: Final = {
    "Linux": (b"\x7fELF",),
    "macOS": (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf"),
    "Windows": (b"MZ",),
}
_THIS_SYSTEM: Final = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux")


def _system_of_library_file(head: bytes) -> str:
    """Return the system whose libraries begin with these bytes; "" for others."""
    return next((system for system, magic in _LIBRARY_MAGIC.items() if head.startswith(magic)), "")


def _require_model_descriptor(path: Path, handle: Any) -> Any:
    entry = getattr(handle, ENTRY_SYMBOL, None)
    if entry is None:
        hint = "only libraries built by aotc can be loaded"
        raise AotcError("load", f"{path} is not a compiled model: it has no symbol {ENTRY_SYMBOL}", hint=hint)
    model = entry()
    if model == ffi.NULL:
        raise AotcError("load", f"{path} is no compiled model: {ENTRY_SYMBOL} returns a null pointer")
    # the first field of every version
    version = int(ffi.cast("const uint32_t *", model)[0])
    if version not in (ABI_VERSION, ABI_VERSION_OF_SIZES, ABI_VERSION_OF_FOUND_SIZES):
        text = f"{path} was compiled for version {version} of the binary interface, this is version {ABI_VERSION}"
        raise AotcError("load", text, hint="compile the model again with the installed aotc")
    return model


def _missing_features_by_instruction_set(path: Path, model: Any) -> dict[str, tuple[str, ...]]:
    """Return the instruction sets of a library's kernels, best first, each with the features that
    this CPU lacks.

    Raises AotcError (code "cpu") if the processor can run none of them.
    """
    if not model.num_isas:
        return {}
    names = map(model.cpu_features.__getitem__, count())
    features = list(map(_decode_c_string, takewhile(lambda name: name != ffi.NULL, names)))
    lacks = int(model.cpu_missing())
    missing_by_isa = {}
    for isa in model.isas[0 : model.num_isas]:
        needs = int(isa.needs) & lacks
        missing_by_isa[_decode_c_string(isa.name)] = tuple(f for bit, f in enumerate(features) if needs >> bit & 1)
    if all(missing_by_isa.values()):
        raise _missing_cpu_features_error(path, *list(missing_by_isa.items())[-1])
    return missing_by_isa


def _missing_cpu_features_error(path: Path, isa: str, features: Sequence[str]) -> AotcError:
    text = f"{path} has code for {isa}, which needs what this processor lacks: {', '.join(features)}"
    hint = "compile with " + option_text("target", "host") + " to run it here, or with "
    return AotcError("cpu", text, hint=hint + option_text("target", "x86-64") + " for any x86-64")


def _decode_c_string(pointer: Any) -> str:
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


def _tensor_infos_from_c(path: Path, pointer: Any, tensor_count: int) -> tuple[TensorInfo, ...]:
    infos = []
    for tensor in pointer[0:tensor_count] if tensor_count else ():
        name, code = _decode_c_string(tensor.name), int(tensor.dtype)
        is_string = code == STRING_CODE
        code = DTYPE_BY_CODE.index(DType("uint8")) if is_string else code
        if not 0 <= code < len(DTYPE_BY_CODE):
            text = f"the compiled library {path} gives tensor {name!r} the unknown element type code {code}"
            raise AotcError("load", text, hint="compile the model again with this version of aotc")
        shape, dtype = [int(tensor.shape[d]) for d in range(tensor.rank)], DTYPE_BY_CODE[code]
        info = TensorInfo(name, shape, dtype, _quantization_from_c(dtype, tensor.quantization), is_string=is_string)
        if info.nbytes != tensor.bytes:
            text = f"tensor {name!r} of the compiled library {path} declares {tensor.bytes} bytes"
            text += f", but its shape needs {info.nbytes}"
            raise AotcError("load", text, hint="compile the model again with this version of aotc")
        infos.append(info)
    return tuple(infos)


def _quantization_from_c(dtype: DType, parameters: Any) -> Quantization | None:
    """Convert the quantization parameters of a tensor from their C structure; None for NULL."""
    if parameters == ffi.NULL:
        return None
    scales, zeros = (tuple(numbers[0 : parameters.count]) for numbers in (parameters.scale, parameters.zero_point))
    return Quantization(dtype, scales, zeros, parameters.axis if parameters.axis >= 0 else None)


def _state_descriptor(handle: Any) -> Any:
    """Return the description of a library's block of state; None for a model without state."""
    entry = getattr(handle, STATE_SYMBOL, None)
    return None if entry is None else entry()


def _growing_state_descriptor(handle: Any) -> Any:
    """Return the description of a library's state that grows; None for others."""
    entry = getattr(handle, GROWING_STATE_SYMBOL, None)
    return None if entry is None else entry()


def run_sizes_of_library(path: Path, handle: Any, model: Any) -> RunSizes | None:
    """Return the sizes that the shapes of a library's tensors depend on; None for known shapes."""
    version = int(model.abi_version)
    if version not in (ABI_VERSION_OF_SIZES, ABI_VERSION_OF_FOUND_SIZES):
        return None
    entry = getattr(handle, SIZES_SYMBOL, None)
    if entry is None:
        raise AotcError("load", f"{path} is no compiled model: it has no symbol {SIZES_SYMBOL}")
    tiers = getattr(handle, TIERS_SYMBOL, None)
    return RunSizes(entry(), version == ABI_VERSION_OF_FOUND_SIZES, None if tiers is None else tiers())


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
    state_bytes              size of the block of state in bytes; 0 for a model that keeps nothing between runs
    state_alignment          alignment of the block, in bytes
    state_header             bytes at the beginning of each block, which identify the model
    growing_state            the C description of a state that grows; None for others
    state_length_size        name of the size of a run that is the length of this state; None for others
    sizes                    sizes of a run that the shapes of tensors depend on; None if all shapes are known
    run                      the C function; releases the GIL
    weights                  parameters that the library does not contain; None for other libraries
    isas                     instruction sets of the kernels, best first, each with the features that this
                             processor lacks for it

    Raises AotcError: code "load" if the file is not a compiled model or has another version of the
    binary interface, code "cpu" if the processor can run none of its kernels, code "weights" as
    `aotc.runtime.separate_weights.separate_weights_or_none`.
    """

    def __init__(self, path: Path, weights: str | os.PathLike[str] | None = None) -> None:
        self.path = path
        self.absolute = path.absolute()
        self.handle = load_shared_library(path)
        model = _require_model_descriptor(path, self.handle)
        self.isas = _missing_features_by_instruction_set(path, model)
        self.name = _decode_c_string(model.name)
        self.version = _decode_c_string(model.version)
        self.inputs = _tensor_infos_from_c(path, model.inputs, model.num_inputs)
        self.outputs = _tensor_infos_from_c(path, model.outputs, model.num_outputs)
        self.workspace_bytes = int(model.workspace_bytes)
        self.workspace_alignment = max(1, int(model.workspace_alignment))
        self.weights_bytes = int(model.weights_bytes)
        self.thread_workspace_bytes = int(model.thread_workspace_bytes)
        self.run: Any = model.run
        descriptor = weights_descriptor(self.handle)
        self.weights = separate_weights_or_none(path, self.name, descriptor, weights)
        # the last input is the file of parameters
        self.inputs = self.inputs[:-1] if self.weights is not None else self.inputs
        self._state = _state_descriptor(self.handle)
        self.sizes = run_sizes_of_library(path, self.handle, model)
        self.growing_state = _growing_state_descriptor(self.handle)
        growing = self.growing_state
        self.state_length_size = None if growing is None else _decode_c_string(growing.size)
        self.state_bytes, self.state_alignment, self.state_header = 0, 1, b""
        if self._state is not None:
            # the last of the other inputs is the block of state
            self.inputs = self.inputs[:-1]
            self.state_bytes, self.state_alignment = int(self._state.bytes), max(1, int(self._state.alignment))
            self.state_header = self._read_state_header()
        if self.sizes is not None:
            # behind the tensors are the array of sizes, and that of the shapes of outputs
            outputs = self.outputs[:-1] if self.sizes.found else self.outputs
            self.inputs, self.outputs = self.sizes.symbolic_infos(self.inputs[:-1], outputs)

    def initialize_state(self, pointer: Any) -> int:
        """Make memory a state as it is before the first run; return a status, 0 for success."""
        return int(self._state.init(pointer))

    def _read_state_header(self) -> bytes:
        memory = allocate_aligned_bytes(self.state_bytes, self.state_alignment)
        self.initialize_state(ffi.cast("void *", memory_address(memory)))
        return memory[:STATE_HASH_BYTES].tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_pickled_library, (str(self.absolute), None if self.weights is None else str(self.weights.file))

    def choose_instruction_set(self, requested_isa: str | None) -> str:
        """Return the instruction set for runs: `requested_isa`, else $AOTC_ISA if the library has
        several, else the processor's best.

        Raises AotcError: code "isa" if the library has no kernels for it, "cpu" if the processor
        lacks features.
        """
        if requested_isa is None and len(self.isas) > 1:
            requested_isa = os.environ.get("AOTC_ISA") or None
        if requested_isa is None:
            return next((isa for isa, lacks in self.isas.items() if not lacks), "")
        if requested_isa not in self.isas:
            hint = did_you_mean_hint(requested_isa, self.isas) or f"known: {', '.join(self.isas)}"
            raise AotcError("isa", f"{self.path} has no kernels for the instruction set {requested_isa!r}", hint=hint)
        if self.isas[requested_isa]:
            raise _missing_cpu_features_error(self.path, requested_isa, self.isas[requested_isa])
        return requested_isa

    def start_thread_pool(self, thread_count: int) -> ThreadPool | None:
        """Start a pool of threads for runs of this or any other compiled model.

        thread_count    1 to 64, including the calling thread

        Returns None for count 1, and for a library whose kernels cannot divide their work.  Raises
        AotcError (code "threads") for other counts, and if the system cannot create the threads.
        """
        if not 1 <= thread_count <= MAX_THREADS:
            raise AotcError("threads", f"threads must be 1 to {MAX_THREADS}, got {thread_count}")
        if thread_count == 1 or not hasattr(self.handle, "aotc_model_threads_create"):
            return None
        out_pointer = ffi.new("const aotc_threads **")
        if self.handle.aotc_model_threads_create(thread_count, out_pointer) != 0:
            raise AotcError("threads", f"the operating system cannot create {thread_count} threads")
        return ThreadPool(self, thread_count, out_pointer[0])


class ThreadPool:
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
        return Library.start_thread_pool, (self._library, self.count)


def _reopen_pickled_library(path: str, weights: str | None = None) -> Library:
    """Load a library that was pickled by its path; AotcError (code "load") if the file no longer
    exists.
    """
    if not Path(path).exists():
        hint = "where it lay in a temporary directory, that went with its process: compile with an output directory"
        raise AotcError("load", f"the library that a pickled session refers to does not exist: {path}", hint=hint)
    return Library(Path(path), weights)
