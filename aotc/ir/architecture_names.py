# SPDX-License-Identifier: Apache-2.0
"""Names of processor architectures: systems call the same one by different names.

architecture("AMD64")          # "x86_64"
architecture()                 # that of this machine
"""

import platform
from typing import Final

_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}
_ELF: Final = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def architecture(machine: str | None = None) -> str:
    """The architecture that platform.machine() calls `machine`, as Linux names it; of this machine for None."""
    name = (platform.machine() if machine is None else machine).lower()
    return _ALIASES.get(name, name)


def elf_architecture(header: bytes) -> str:
    """The architecture that an ELF file is for, by its first 20 bytes; "" for unknown ones and other files."""
    if len(header) < 20 or not header.startswith(b"\x7fELF"):
        return ""
    return _ELF.get(int.from_bytes(header[18:20], "big" if header[5] == 2 else "little"), "")
