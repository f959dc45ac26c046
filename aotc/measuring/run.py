# SPDX-License-Identifier: Apache-2.0
"""Run a compiled library on files and time it.

run_library("build/net", inputs="in.npz", outputs="out.npz", repeat=20)["milliseconds"]["min"]
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from aotc.checking.inputs import random_inputs, read_inputs, save_arrays
from aotc.driver.scratch import written
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.runtime.session import load

PREVIEW = 6
"""How many values of an output are shown."""


def run_library(
    library: str | Path,
    *,
    inputs: Path | None = None,
    outputs: Path | None = None,
    repeat: int = 1,
    threads: int = 1,
    isa: str | None = None,
    check: bool = False,
) -> dict[str, Any]:
    """Run `repeat` times on the inputs of a file (or seeded random ones); outputs and times in milliseconds.

    threads, isa, check   as for `load`
    """
    session = load(library, threads=threads, isa=isa, check=check)
    types = {i.name: TensorType(i.shape, i.dtype) for i in session.get_inputs()}
    arrays = read_inputs(inputs, types) if inputs is not None else random_inputs(types, 0)
    results = session.run(None, arrays)
    binding = session.bind(arrays)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        binding.run()
        times.append(1e3 * (time.perf_counter() - start))
    names = [o.name for o in session.get_outputs()]
    if outputs is not None:
        try:
            with written(outputs) as file:
                save_arrays(file, dict(zip(names, results, strict=True)))
        except OSError as error:
            raise AotcError("outputs-file", f"cannot write {outputs}: {error.strerror}") from error
    rows = [
        {"name": n, "dtype": str(r.dtype), "shape": list(r.shape), "preview": r.reshape(-1)[:PREVIEW].tolist()}
        for n, r in zip(names, results, strict=True)
    ]
    return {"outputs": rows, "repeat": repeat, "milliseconds": {"min": min(times), "median": statistics.median(times)}}
