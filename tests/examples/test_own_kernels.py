# SPDX-License-Identifier: Apache-2.0
"""The example with handwritten kernels runs, calls them, and agrees with the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "own_kernels" / "own_kernels.py"


def test_own_kernels(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, own, difference = done.stdout.splitlines()
    assert re.fullmatch(r"the compiler's kernels: 4 calls, 0 of code written by hand, [\d.]+ us", plain)
    assert re.fullmatch(r"kernel.c: 2 calls, 1 of code written by hand, [\d.]+ us", own)
    assert float(difference.removeprefix("largest difference: ")) < 1e-5
    code = (tmp_path / "out" / "own" / "src" / "own_extern_0.c").read_text(encoding="utf-8")
    assert "static void dense_relu(" in code
    assert code.count("  dense_relu(") == 3
