# SPDX-License-Identifier: Apache-2.0
"""Compiled libraries as Relay modules, which create an executor for a device.

library = load_module("deploy_lib.tar")
executor = library["default"](aotc.cpu())            # for contrib.graph_executor.GraphModule
"""

import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from aotc.ir import (
    AotcError,
    Device,
    did_you_mean_hint,
    gpu_count,
    open_regular_file,
    require_usable_device,
    translate_os_errors,
)
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.gpu_session import has_gpu_code
from aotc.runtime.kernel_by_kernel_execution import GraphMachine
from aotc.runtime.kernel_library import has_kernel_table
from aotc.runtime.library import Library, find_library, is_path_inside_folder, quote_shortened
from aotc.runtime.library_integrity import require_file_checksum
from aotc.runtime.session import Session

#: Prefix of the C name of a model before the name that the user gave to `relay.build`.
MODEL_NAME_PREFIX: Final = "aotcgen_"
_HOST_TARGET_NAMES: Final = frozenset({"llvm", "c", "cpu", "host"})


class Module:
    """Base class of loaded shared libraries in Relay's interface; `path` is the path of the file."""

    path: Path


class KernelModule(Module):
    """Kernels of a saved VM executable; `aotc.runtime.vm.Executable.load_exec` combines them with
    its bytecode.
    """

    def __init__(self, path: Path, keep_alive: object = None) -> None:
        self.path, self._keep_alive = path, keep_alive

    def export_library(self, file_name: str | Path) -> None:
        """Copy the shared library of kernels to a file (.so) for `load_module`; AotcError (code
        "export") on failure.
        """
        with translate_os_errors("export", f"write {file_name}"):
            shutil.copyfile(self.path, file_name)


class CompiledLibrary(Module):
    """A compiled model.

    path      path of the shared library
    name      name of the model: `library[name](device)` creates an executor
    threads   default number of threads of executors
    debug     creates an interpreter of the model's kernel calls; None if loaded from a file
    """

    def __init__(
        self,
        path: Path,
        keep_alive: object = None,
        *,
        threads: int = 1,
        debug: Callable[[], GraphMachine] | None = None,
    ) -> None:
        self._library, self._keep_alive = Library(path), keep_alive
        self._threads, self._debug = threads, debug
        self.path = path
        self.name = self._library.name.removeprefix(MODEL_NAME_PREFIX)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the function that creates executors of the model `name`, AotcError for another
        name.

        The function takes a device and optionally the number of threads (as `aotc.load`).
        "debug_create" returns a function of the model's name and a device that creates executors
        which keep every intermediate.
        """
        if name == "debug_create":
            return self._create_debug_executor
        if name != self.name:
            hint = did_you_mean_hint(str(name), [self.name]) or f"the model is called {self.name!r}"
            raise AotcError("module-name", f"the library holds no model {name!r}", hint=hint)
        return self._create_executor

    def __iter__(self) -> Iterator[str]:
        return iter([self.name])

    def _create_executor(self, device: Device, threads: int | None = None) -> Session:
        usable_device = require_usable_device(device, allow_cuda=True)
        if usable_device.kind == "cpu" and has_gpu_code(self._library):
            raise AotcError(
                "device", f"{self.path.name} runs on GPUs only, not on {usable_device}", hint="use aotc.cuda(0)"
            )
        number = usable_device.index if usable_device.kind == "cuda" else None
        session = Session(self._library, self._threads if threads is None else threads, device=number)
        session.keep_alive = self._keep_alive
        return session

    def _create_debug_executor(self, name: str, device: Device) -> GraphMachine:
        self[name]
        require_usable_device(device)
        if self._debug is None:
            text = f"{self.path.name} keeps its kernels to itself: it cannot be executed call by call"
            raise AotcError("debug", text, hint="relay.build the module in this process, for a processor")
        return self._debug()

    def __repr__(self) -> str:
        return f"<CompiledLibrary {self.name!r} from {str(self.path)!r}>"


def load_module(path: str | Path, *, check: bool | str = False) -> Any:
    """Load a file that `export_library` wrote (.so or .tar), any library of aotc, or the directory
    of a built project.

    Returns a CompiledLibrary, or a KernelModule for the kernels of a VM executable.

    check    compare the file with this SHA-256; True: compare the library with the SHA-256 in its metadata

    Raises AotcError: code "load" if the file is missing or not a compiled model, code "checksum" if
    it differs.
    """
    file = Path(path)
    if isinstance(check, str) and file.is_file():
        require_file_checksum(file, check)
        check = False
    if file.suffix != ".tar" or not file.is_file():
        library = find_library(file, check)
        return KernelModule(library) if has_kernel_table(library) else CompiledLibrary(library)
    folder = ScratchDirectory("aotc-load-")
    try:
        _extract_model_archive(file, Path(folder.name))
        return CompiledLibrary(find_library(Path(folder.name), check), folder)
    except BaseException:
        folder.remove()
        raise


def _extract_model_archive(archive: Path, folder: Path) -> None:
    """Extract an archive of regular files; AotcError for links, paths outside of it, duplicates,
    and damage.
    """
    hint = "load_module unpacks what export_library wrote; other archives can be unpacked by hand"
    try:
        refused = _extract_until_refused_member(archive, folder)
    except OSError as error:
        reason = error.strerror or "its data end too soon"
        raise AotcError("load", f"cannot unpack {archive}: {reason}", hint=hint) from error
    except (EOFError, tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        # tarfile does not validate numbers, sizes and depths in headers
        raise AotcError("load", f"cannot unpack {archive}: it is damaged, or no archive", hint=hint) from error
    if refused:
        raise AotcError("load", f"{archive}: will not unpack {quote_shortened(refused)}", hint=hint)


def _extract_until_refused_member(archive: Path, folder: Path) -> str:
    """Extract an uncompressed tar archive; return the first member that is not allowed, "" if there
    is none.

    Compressed archives are refused: a small one can expand to fill the disk.
    """
    with open_regular_file(archive, "load") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if member.isdir():
                continue
            path = folder / PurePosixPath(member.name)
            data = tar.extractfile(member) if _is_regular_tar_member(member) else None
            if data is None or not is_path_inside_folder(folder, member.name) or path.exists():
                return member.name or "a member without a name"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                shutil.copyfileobj(data, out)
        if not _is_tar_end_block(file, tar.offset):
            raise EOFError
    return ""


def _is_tar_end_block(file: IO[bytes], offset: int) -> bool:
    """Return True if an archive has its terminating block of zeros at `offset`: otherwise it is
    truncated or damaged.
    """
    file.seek(offset)
    return file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)


def _is_regular_tar_member(member: tarfile.TarInfo) -> bool:
    """Return True if an archive member is a regular, non-sparse file: sparse files can state any
    size.
    """
    return member.isfile() and not member.issparse() and member.size >= 0 and "\\" not in member.name


def enabled(target: str) -> bool:
    """Return True if models can be compiled for a target, given by its Relay name, and run on this
    machine.
    """
    words = str(target).split()
    return bool(words) and (words[0] in _HOST_TARGET_NAMES or (words[0] == "cuda" and gpu_count() > 0))
