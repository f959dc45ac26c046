# SPDX-License-Identifier: Apache-2.0
"""Random kernels compiled by several C compilers at two optimization levels have the interpreter's bits.

files = make(seed)                      # a few kernels as text, their inputs, the target
check(folder, stage)                    # "agreed", or Found for the first compiler that gives other bits
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aotc.checking.input_generation import save_arrays_to_npz
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.target import get_target
from tests.fuzz.case import Files, Found, Stage
from tests.fuzz.execute import targets
from tests.targets.machines import machine
from tests.targets.random_kernels import Job, disagreements, drawn

AT_ONCE = 10
"""Kernels of a case: a compiler is slow to start."""


def make(seed: int) -> Files:
    """Kernels for a target whose code runs here."""
    name = targets()[seed % len(targets())]
    files = {"target.txt": name.encode()}
    for number in range(AT_ONCE):
        kernel, inputs = drawn(AT_ONCE * seed + number, get_target(name))
        blob = io.BytesIO()
        save_arrays_to_npz(blob, {str(k): np.ravel(array).view(np.uint8) for k, array in enumerate(inputs)})
        files |= {f"{number}.tir": to_text(kernel).encode(), f"{number}.npz": blob.getvalue()}
    return files


def job_of(path: Path) -> Job:
    """A kernel of a case; files hold the bytes of its inputs, since numpy's know no type of fewer than 16 bits."""
    kernel = parse_kernel(path.read_text(encoding="utf-8"))
    with np.load(path.with_suffix(".npz")) as file:
        return kernel, [file[str(k)].view(buffer.dtype.numpy) for k, buffer in enumerate(kernel.inputs)]


def check(folder: Path, stage: Stage) -> str:
    """Every compiler gives the bits of the interpreter; otherwise Found."""
    stage("read")
    jobs = [job_of(path) for path in sorted(folder.glob("*.tir"))]
    stage("compile")
    found = disagreements(jobs, machine((folder / "target.txt").read_text(encoding="ascii")), folder)
    if found:
        raise Found("wrong", found[0].partition(":")[0], "\n".join(found))
    return "agreed"


def smaller(files: Files) -> Iterator[Files]:
    """Fewer kernels."""
    names = sorted(name.removesuffix(".tir") for name in files if name.endswith(".tir"))
    half = len(names) // 2
    parts = [names[:half], names[half:], *([name] for name in names)] if half else []
    for part in parts:
        yield {n: data for n, data in files.items() if n.partition(".")[0] in ("target", *part)}
