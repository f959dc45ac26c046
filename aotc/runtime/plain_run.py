# SPDX-License-Identifier: Apache-2.0
"""Run a model whose shapes are known, which keeps no state, in the least time that a call from Python takes.

run = new_plain_run(interface, frames, options, runs)
run({"x": x}, library.run, new_frame, new_error)        # [y]; None if the inputs need a check or a copy

Kernels of a small model take less than a microsecond, so that the attributes that `Session.run` reads and the functions
that it calls for sizes, state and strings take most of the time of a run. Here what a session knows is bound once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from aotc.ir import Array
from aotc.runtime.run_interface import RunInterface, memory_of_array

#: A function of the inputs by name, of the C function of the model, of a function that returns new arrays of pointers
#: to inputs and outputs, and a workspace, and of one that returns the error for a status of a run and its workspace.
#: It returns all outputs; None, without a run, if the inputs are not a dictionary of exactly the arrays that the model
#: reads in place.
PlainRun: TypeAlias = Callable[
    [
        Mapping[str, Any],
        Callable[[Any, Any, Any, Any], int],
        Callable[[], tuple[Any, Any, Any, Any]],
        Callable[[int, Any], Exception],
    ],
    list[Array] | None,
]


def new_plain_run(interface: RunInterface, frames: list[Any], options: Any, runs: Iterator[int]) -> PlainRun:
    """Return a function that runs a model. It refers to no session, which is then deleted with its last reference.

    frames    list to which pointers and workspaces are returned after a run
    options   C structure of options for each run
    runs      an iterator that counts runs
    """
    buffers_of, memory, empty = interface.buffers_read_in_place, memory_of_array, np.empty
    results = tuple((k, shape, dtype) for k, (shape, dtype) in enumerate(interface.results))
    take_frame, give_frame_back = frames.pop, frames.append

    def run(
        inputs: Mapping[str, Any],
        call: Callable[[Any, Any, Any, Any], int],
        new_frame: Callable[[], tuple[Any, Any, Any, Any]],
        new_error: Callable[[int, Any], Exception],
    ) -> list[Array] | None:
        buffers = buffers_of(inputs)
        if buffers is None:
            return None
        try:
            frame = take_frame()
        except IndexError:
            frame = new_frame()
        try:
            read, written, workspace, _ = frame
            for k, buffer in enumerate(buffers):
                read[k] = buffer
            outputs = []
            for k, shape, dtype in results:
                output = empty(shape, dtype)
                written[k] = memory(output)
                outputs.append(output)
            next(runs)
            status = call(read, written, workspace, options)
        finally:
            give_frame_back(frame)
        if status != 0:
            raise new_error(status, workspace)
        return outputs

    return run
