# SPDX-License-Identifier: Apache-2.0
"""Normalize names of processor architectures, which differ between operating systems ("AMD64" and
"x86_64").

architecture("AMD64")          # "x86_64"
architecture()                 # that of this machine
"""

import platform
from typing import Final

_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}
_ELF: Final = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def architecture(machine: str | None = None) -> str:
    """Return the Linux name of the architecture that platform.machine() calls `machine`; None: this
    machine's.
    """
    name = (platform.machine() if machine is None else machine).lower()
    return _ALIASES.get(name, name)


def elf_architecture(header: bytes) -> str:
    """Return the architecture of an ELF file from its first 20 bytes; "" for unknown architectures
    and other files.
    """
    if len(header) < 20 or not header.startswith(b"\x7fELF"):
        return ""
    return _ELF.get(int.from_bytes(header[18:20], "big" if header[5] == 2 else "little"), "")
