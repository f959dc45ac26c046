# SPDX-License-Identifier: Apache-2.0
"""What programs written for Relay use around it: temporary directories and the comparison of results.

temp = tempdir()
lib.export_library(temp.relpath("deploy_lib.tar"))
assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
"""

from pathlib import Path
from typing import Any

import numpy as np

from aotc.runtime.fork_safety import ScratchDirectory


class TempDirectory:
    """A directory that goes away with this object.

    temp_dir, path   where it is
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory("aotc-")
        self.temp_dir = self.path = self._directory.name

    def relpath(self, name: str) -> str:
        """The path of a file in it."""
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        """The names of what is in it, sorted."""
        return sorted(p.name for p in Path(self.temp_dir).iterdir())

    def remove(self) -> None:
        """Remove it now."""
        self._directory.remove()


def tempdir() -> TempDirectory:
    """A new temporary directory."""
    return TempDirectory()


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """AssertionError unless |actual - desired| <= atol + rtol * |desired| everywhere, shapes being equal."""
    got, wanted = np.asarray(actual), np.asarray(desired)
    assert got.shape == wanted.shape, f"shapes differ: {got.shape} and {wanted.shape}"
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, verbose=True)
