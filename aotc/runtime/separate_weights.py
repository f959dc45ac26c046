# SPDX-License-Identifier: Apache-2.0
"""Read and check the file of parameters of a library that does not contain them.

weights = SeparateWeights(Path("lib/libnet.so"), "net", descriptor, None)     # net_weights.bin
weights.pointer                                                   # an input of each run
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aotc.ir.diagnostics import AotcError
from aotc.ir.option_mentions_in_messages import option_text
from aotc.runtime.abi import STATUS_MESSAGES, WEIGHTS_SYMBOL, ffi
from aotc.runtime.tensor_info import allocate_aligned_bytes, memory_address


def weights_descriptor(handle: Any) -> Any:
    """Return the description of the parameters that a library does not contain; None for other libraries."""
    entry = getattr(handle, WEIGHTS_SYMBOL, None)
    return None if entry is None else entry()


def separate_weights_or_none(
    library: Path, model: str, descriptor: Any, given: str | os.PathLike[str] | None
) -> SeparateWeights | None:
    """Return the parameters of a library that does not contain them; None for other libraries.

    given    the file of parameters; None for the one in the project of the library

    Raises AotcError (code "weights") if `given` is a file, and the library contains its parameters; and as
    `SeparateWeights`.
    """
    if descriptor is not None:
        return SeparateWeights(library, model, descriptor, None if given is None else Path(given))
    if given is not None:
        hint = "leave " + option_text("weights") + " out, or compile with " + option_text("separate_weights", True)
        raise AotcError("weights", f"{library} contains its parameters", hint=hint)
    return None


class SeparateWeights:
    """Parameters in memory, for the runs of a library that does not contain them.

    file       path of the file that they were read from
    pointer    address of the contents

    library       path of the library
    model         name of the model
    descriptor    the C description `aotc_weights`
    file          the file of parameters; None: the file of the model in the folder of the library, or in the one
                  above, which is the project

    The file is read as a whole, so that changes of it have no effect on the runs.

    Raises AotcError (code "weights") if the file cannot be read, is damaged, or was made for other code.
    """

    def __init__(self, library: Path, model: str, descriptor: Any, file: Path | None) -> None:
        self.file = (file or _file_beside_library(library, model)).absolute()
        size = int(descriptor.bytes)
        self._memory = allocate_aligned_bytes(size, max(1, int(descriptor.alignment)))
        self.pointer = ffi.cast("void *", memory_address(self._memory))
        try:
            with self.file.open("rb") as source:
                count = source.readinto(self._memory.data)
                is_longer = bool(source.read(1))
        except OSError as error:
            text = f"cannot read the parameters of {model} from {self.file}: {error.strerror or error}"
            raise AotcError("weights", text) from error
        hint = "take the file of a model with the same structure, compiled with the same options"
        if count != size or is_longer:
            found = "more" if is_longer else str(count)
            text = f"{self.file} has {found} bytes, and the parameters of {library} have {size}"
            raise AotcError("weights", text, hint=hint)
        if (status := int(descriptor.check(self.pointer, size))) != 0:
            reason = STATUS_MESSAGES.get(status, "unknown status")
            raise AotcError("weights", f"{library} cannot run with the file {self.file}: {reason}", hint=hint)


def _file_beside_library(library: Path, model: str) -> Path:
    name = f"{model}_weights.bin"
    folder = library.absolute().parent
    for candidate in (folder / name, folder.parent / name):
        if candidate.is_file():
            return candidate
    text = f"{library} does not contain its parameters, and there is no file {name} in its folder or project"
    raise AotcError("weights", text, hint="name the file with " + option_text("weights", name, "aotc.load"))
