# SPDX-License-Identifier: Apache-2.0
"""The example for boards runs under QEMU, and recognizes as many digits as the other examples."""

from __future__ import annotations

import re

from tests.conftest import require_tool
from tests.examples.conftest import Shell


def test_make(shell: Shell) -> None:
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        require_tool(tool)
    printed = shell.succeed(f'make -s -C examples/embedded PYTHON=python OUT="{shell.folder}/out" 2>&1')
    assert "353 of 360 digits right" in printed
    used, stated = map(int, re.findall(r"stack (\d+) \(stated: at most (\d+)\)", printed)[0])
    assert 0 < used <= stated
    assert 0 < int(re.findall(r"instructions: (\d+)", printed)[0]) < 200_000
