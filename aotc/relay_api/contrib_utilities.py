# SPDX-License-Identifier: Apache-2.0
"""Utilities of programs written for Relay: temporary directories and comparison of results.

temp = tempdir()
lib.export_library(temp.relpath("deploy_lib.tar"))
assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
"""

from pathlib import Path
from typing import Any

import numpy as np

from aotc.runtime.fork_safety import ScratchDirectory


class TempDirectory:
    """A temporary directory that is removed together with this object.

    temp_dir, path   path of the directory
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory("aotc-")
        self.temp_dir = self.path = self._directory.name

    def relpath(self, name: str) -> str:
        """Return the path of a file with a name in the temporary directory."""
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        """Return the sorted names of the files in the temporary directory."""
        return sorted(p.name for p in Path(self.temp_dir).iterdir())

    def remove(self) -> None:
        """Remove the temporary directory and its contents now."""
        self._directory.remove()


def tempdir() -> TempDirectory:
    """Create a temporary directory."""
    return TempDirectory()


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raise AssertionError unless shapes are equal and |actual - desired| <= atol + rtol *
    |desired| for all elements.
    """
    got, desired_array = np.asarray(actual), np.asarray(desired)
    assert got.shape == desired_array.shape, f"shapes differ: {got.shape} and {desired_array.shape}"
    np.testing.assert_allclose(got, desired_array, rtol=rtol, atol=atol, verbose=True)
