# SPDX-License-Identifier: Apache-2.0
"""Run a model whose shapes are known, which keeps no state, in the least time that a call from Python takes.

run = new_plain_run(interface, frames)
run({"x": x}, take_frame, invoke)       # [y]; None if the inputs need a check or a copy

Kernels of a small model take less than a microsecond, so that the attributes that `Session.run` reads and the functions
that it calls for sizes, state and strings take most of the time of a run. Here what a session knows is bound once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from aotc.ir import Array
from aotc.runtime.run_interface import RunInterface, memory_of_array

#: A function of the inputs by name, of a function that returns arrays of pointers to inputs and outputs, and a
#: workspace, and of one that runs the model with these. It returns all outputs; None, without a run, if the inputs are
#: not a dictionary of exactly the arrays that the model reads in place.
PlainRun: TypeAlias = Callable[
    [Mapping[str, Any], Callable[[], tuple[Any, Any, Any, Any]], Callable[[Any, Any, Any], None]], list[Array] | None
]


def new_plain_run(interface: RunInterface, frames: list[Any]) -> PlainRun:
    """Return a function that runs a model. It refers to no session, which is then deleted with its last reference.

    frames    list to which pointers and workspaces are returned after a run
    """
    results = tuple(enumerate(interface.results))
    buffers_of, memory, empty = interface.buffers_read_in_place, memory_of_array, np.empty

    def run(
        inputs: Mapping[str, Any],
        take_frame: Callable[[], tuple[Any, Any, Any, Any]],
        invoke: Callable[[Any, Any, Any], None],
    ) -> list[Array] | None:
        buffers = buffers_of(inputs)
        if buffers is None:
            return None
        frame = take_frame()
        try:
            read, written, workspace, _ = frame
            for k, buffer in enumerate(buffers):
                read[k] = buffer
            outputs = []
            for k, (shape, dtype) in results:
                outputs.append(output := empty(shape, dtype))
                written[k] = memory(output)
            invoke(read, written, workspace)
        finally:
            frames.append(frame)
        return outputs

    return run
