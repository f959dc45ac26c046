# SPDX-License-Identifier: Apache-2.0
"""Commands of QEMU that run programs for a target of another architecture.

qemu_command("riscv64", get_target("riscv64-v256"))    # ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,...")
"""

from typing import Final

from aotc_codegen.c.compiler_flags import least_riscv_vector_bits

from aotc.tir import Target

#: Debian's package of the emulators of programs for Linux.
QEMU_USER_PACKAGE: Final = "qemu-user"
#: Emulators of boards by architecture, and their Debian packages; node runs WebAssembly.
BARE_METAL_EMULATORS: Final = {
    "arm": ("qemu-system-arm", "qemu-system-arm"),
    "riscv32": ("qemu-system-riscv32", "qemu-system-misc"),
    "wasm32": ("node", "nodejs"),
}


def qemu_command(architecture: str, target: Target) -> tuple[str, ...]:
    """Return the command of QEMU that runs programs for an architecture on a processor with the
    features of a target, and with the shortest vector registers that these allow.
    """
    vector_bits = least_riscv_vector_bits(target.features)
    cpu = ("-cpu", f"rv64,v=true,vlen={vector_bits},elen=64,vext_spec=v1.0") if vector_bits else ()
    return (f"qemu-{architecture}", *cpu)
