# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions that a program executes under QEMU, in user or system mode, by address and by function.

counts = count(["qemu-aarch64", "./net_example", "input.bin"], tmp_path)      # {0x400720: 1000, ...}
by_function(counts, "net_example", "aarch64-linux-gnu-gcc")                   # {"kernel0": 123456, ...}

Instructions are not cycles.  The first call in a folder compiles the plugin, icount.c.
"""

from __future__ import annotations

import bisect
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import require_tool
from tests.e2e.projects import run

SOURCE = Path(__file__).with_suffix(".c")


def plugin(folder: Path) -> Path:
    """The plugin, for QEMU on this machine."""
    made = folder / "libicount.so"
    if not made.exists():
        run([require_tool("gcc"), "-std=gnu99", "-O2", "-shared", "-fPIC", SOURCE, "-o", made], folder)
    return made


def count(command: Sequence[str | Path], folder: Path) -> dict[int, int]:
    """How often the instruction at each address is executed by a command of QEMU's, which must succeed."""
    emulator, *arguments = command
    found = folder / "icount.txt"
    run([emulator, "-plugin", f"{plugin(folder)},out={found}", *arguments], folder)
    rows = (line.split() for line in found.read_text(encoding="ascii").splitlines())
    return {int(address, 16): int(times) for address, times in rows}


def by_function(counts: Mapping[int, int], program: Path, cc: str) -> Counter[str]:
    """Executed instructions of each function of a program that the command `cc` made, without those that it calls."""
    nm = run([*shlex.split(cc), "-print-prog-name=nm"], program.parent).strip()
    rows = (line.split() for line in run([nm, "--defined-only", "-n", program], program.parent).splitlines())
    places = [(int(address, 16) & ~1, name) for address, kind, name in rows if kind in "tTwW" and name[0] != "$"]
    starts, found = [start for start, _ in places], Counter[str]()
    for address, times in counts.items():
        at = bisect.bisect_right(starts, address)
        found[places[at - 1][1] if at else "?"] += times
    return found
