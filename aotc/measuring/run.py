# SPDX-License-Identifier: Apache-2.0
"""Run a compiled library on files and time it.

run_library("build/net", inputs="in.npz", outputs="out.npz", repeat=20)["milliseconds"]["min"]
"""

from pathlib import Path
from typing import Any

from aotc.checking.input_generation import NO_RANGES, InputRanges, save_arrays, session_inputs
from aotc.driver.temporary_folders import output_file
from aotc.ir.atomic_write import require_other_file
from aotc.measuring.timing import milliseconds, summary
from aotc.runtime.session import load

#: How many values of an output are shown.
PREVIEW = 6


def run_library(
    library: str | Path,
    *,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_RANGES,
    outputs: Path | None = None,
    repeat: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Run `repeat` times on the inputs of a file (or seeded random ones); outputs and times in milliseconds.

    input_ranges   the least and the greatest value of random inputs, by name
    options   as for `load`: threads, isa, device, check
    """
    if outputs is not None:
        require_other_file(outputs, "outputs-file", [library, inputs])
    session = load(library, **options)
    arrays = session_inputs(session, inputs, input_ranges)
    results = session.run(None, arrays)
    binding = session.bind(arrays)
    times = [milliseconds(binding.run) for _ in range(repeat)]
    names = [o.name for o in session.get_outputs()]
    if outputs is not None:
        with output_file(outputs, "outputs-file") as file:
            save_arrays(file, dict(zip(names, results, strict=True)))
    rows = [
        {"name": n, "dtype": str(r.dtype), "shape": list(r.shape), "preview": r.reshape(-1)[:PREVIEW].tolist()}
        for n, r in zip(names, results, strict=True)
    ]
    return {"outputs": rows, "repeat": repeat, "milliseconds": summary(times)}
