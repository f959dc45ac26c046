# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA texts for the emulator and launches their kernels.

kernels = build(text, folder)
launch(kernels, "twice", [x, y], blocks=2, threads=64)      # what is wrong; "" where nothing is
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aotc.driver.cuda_emulation import build_fake_cuda_driver, compile_cuda_as_sm80_for_fake_device

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kernels:
    """The library of a text, and what launches its kernels without a model in between."""

    library: ctypes.CDLL
    driver: ctypes.CDLL


@cache
def driver(*flags: str) -> ctypes.CDLL:
    """The emulator, compiled with flags."""
    library = ctypes.CDLL(str(build_fake_cuda_driver(*flags)))
    library.aotc_emulator_launch.restype = ctypes.c_char_p
    return library


def build(text: str, folder: Path, *flags: str, emulator: ctypes.CDLL | None = None) -> Kernels:
    """Compile a text with flags; `emulator` runs it, if given."""
    (image,) = compile_cuda_as_sm80_for_fake_device(text, [80], *flags).values()
    path = folder / "kernels.so"
    path.write_bytes(image)
    return Kernels(ctypes.CDLL(str(path)), emulator or driver())


def launch(
    kernels: Kernels,
    name: str,
    arguments: Sequence[Array | int],
    *,
    blocks: int,
    threads: int,
    shared: int = 0,
    backwards: bool = False,
    hosts: int = 1,
) -> str:
    """Run a kernel to its end on arrays, whose addresses are passed, and ints."""
    values: list[Any] = [ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in arguments]
    pointers = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
    kernel = ctypes.addressof(ctypes.c_char.in_dll(kernels.library, f"{name}_emulated"))
    sizes = (ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_size_t(shared))
    problem = kernels.driver.aotc_emulator_launch(
        ctypes.c_void_p(kernel), *sizes, pointers, ctypes.c_int(backwards), ctypes.c_uint(hosts)
    )
    return (problem or b"").decode()
