# SPDX-License-Identifier: Apache-2.0
"""Run a compiled library on inputs from a file, write its outputs, and time it.

run_library("build/net", inputs="in.npz", outputs="out.npz", repeat=20)["milliseconds"]["min"]
"""

from pathlib import Path
from typing import Any

from aotc.checking.input_generation import NO_INPUT_RANGES, InputRanges, read_or_draw_session_inputs, save_arrays_to_npz
from aotc.driver.temporary_folders import open_output_file
from aotc.ir.atomic_write import require_not_an_input_file
from aotc.measuring.timing import milliseconds_per_call, min_and_median
from aotc.runtime.session import load

#: Number of values of an output in a preview.
PREVIEW_ELEMENTS = 6


def run_library(
    library: str | Path,
    *,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_INPUT_RANGES,
    outputs: Path | None = None,
    repeat: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Run a library on inputs from a file (or seeded random ones); return previews of outputs and
    times.

    outputs   .npz file to write the outputs to; None: no file
    repeat    number of timed runs, after one untimed run
    input_ranges   smallest and largest value of random inputs, by name
    options   as for `load`: threads, isa, device, check, weights

    "random_inputs" in the result is True if the inputs were random; "milliseconds" has the minimum and
    median time of a run.
    """
    if outputs is not None:
        require_not_an_input_file(outputs, "outputs-file", [library, inputs])
    session = load(library, **options)
    arrays = read_or_draw_session_inputs(session, inputs, input_ranges)
    state = session.new_state_or_none(measured=True)
    results = session.run(None, arrays, state=state)
    binding = session.bind(arrays, state=state)
    times = [milliseconds_per_call(binding.run) for _ in range(repeat)]
    names = [o.name for o in session.get_outputs()]
    if outputs is not None:
        with open_output_file(outputs, "outputs-file") as file:
            save_arrays_to_npz(file, dict(zip(names, results, strict=True)))
    rows = [
        {"name": n, "dtype": str(r.dtype), "shape": list(r.shape), "preview": r.reshape(-1)[:PREVIEW_ELEMENTS].tolist()}
        for n, r in zip(names, results, strict=True)
    ]
    return {
        "outputs": rows,
        "random_inputs": inputs is None and bool(arrays),
        "repeat": repeat,
        "milliseconds": min_and_median(times),
    }
