# SPDX-License-Identifier: Apache-2.0
"""Normalize names of processor architectures, which differ between operating systems ("AMD64" and
"x86_64").

normalized_architecture_name("AMD64")  # "x86_64"
normalized_architecture_name()  # that of this machine
"""

import platform
from typing import Final

_ARCHITECTURE_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}
_ARCHITECTURE_BY_ELF_MACHINE: Final = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def normalized_architecture_name(machine_name: str | None = None) -> str:
    """Return the Linux name of the architecture that platform.machine() calls `machine_name`; None:
    this machine's.
    """
    name = (platform.machine() if machine_name is None else machine_name).lower()
    return _ARCHITECTURE_ALIASES.get(name, name)


def elf_architecture(header: bytes) -> str:
    """Return the architecture of an ELF file from its first 20 bytes; "" for unknown architectures
    and other files.
    """
    if len(header) < 20 or not header.startswith(b"\x7fELF"):
        return ""
    return _ARCHITECTURE_BY_ELF_MACHINE.get(int.from_bytes(header[18:20], "big" if header[5] == 2 else "little"), "")
