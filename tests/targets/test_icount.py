# SPDX-License-Identifier: Apache-2.0
"""The counting plugin of QEMU counts each instruction of a program, and finds its function."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.projects import run
from tests.targets.icount import by_function, count
from tests.targets.machines import machine

#: A loop of two instructions, an instruction at the end.
LOOPS = {"aarch64": "subs x0, x0, 1\\n b.ne work\\n ret", "riscv64": "addi a0, a0, -1\\n bnez a0, work\\n ret"}
PROGRAM = """
#include <stdlib.h>
void work(long n);
__asm__(".globl work\\n .type work, %%function\\n work:\\n %s\\n .size work, .-work");
int main(int argc, char **argv) {
  if (argc > 1) work(atol(argv[1]));
  return 0;
}
"""


@pytest.mark.parametrize("target", LOOPS)
def test_every_instruction_is_counted(target: str, tmp_path: Path) -> None:
    here = machine(target)
    if not here.emulator:
        pytest.skip("this machine needs no emulator for it")
    (tmp_path / "loop.c").write_text(PROGRAM % LOOPS[target], encoding="utf-8")
    run([*here.compiler, "-static", "loop.c", "-o", "loop"], tmp_path)
    for times in ("1", "12345"):
        counts = count([*here.emulator, tmp_path / "loop", times], tmp_path)
        assert by_function(counts, tmp_path / "loop", here.cc)["work"] == 2 * int(times) + 1
