# SPDX-License-Identifier: Apache-2.0
"""The program that code generation prints: storage, kernels and the static schedule of calls.

Program(name="net", inputs=(x,), outputs=(y,), steps=(Step(kernel, (View(x), View(w), View(y))),))
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from aotc.ir import DType, Quantization, Span, frozen
from aotc.tir import Kernel, to_text


@frozen(eq=False, kw_only=True)
class Storage:
    """Memory that holds one tensor.  Compares by identity.

    kind: "input" and "output" (the caller's), "constant" (baked in; `data` holds it), "temp" (in the arena).
    `name` is the name in the model; C identifiers are made from it by code generation.
    `quantization` says what the integers of an input or output stand for, where that is known.
    `least` is what code adds to the halves of bytes that a constant is stored in; None for all others.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: str = "temp"
    data: np.ndarray[Any, Any] | None = None
    align: int = 64
    quantization: Quantization | None = None
    least: int | None = None

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@frozen
class View:
    """A contiguous part of a storage, from element `offset` on: what a kernel gets as an argument."""

    storage: Storage
    offset: int = 0


@frozen(eq=False)
class Step:
    """One call: `args` in the order of `kernel.params` (inputs, outputs, workspace).

    shapes   of the results, where they are not those of the storage: a reshape of a result may be its storage
    origin   what the kernel was made from: a function of the graph
    """

    kernel: Kernel
    args: tuple[View, ...]
    span: Span | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    origin: object = None

    @property
    def inputs(self) -> tuple[View, ...]:
        return self.args[: len(self.kernel.inputs)]

    @property
    def outputs(self) -> tuple[View, ...]:
        first = len(self.kernel.inputs)
        return self.args[first : first + len(self.kernel.outputs)]

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each result."""
        return self.shapes or tuple(view.storage.shape for view in self.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        return self.args[len(self.kernel.inputs) + len(self.kernel.outputs) :]


@frozen
class Part:
    """What of the arena lies in one memory: `bytes` from byte `begin` on."""

    memory: str
    begin: int
    bytes: int


@frozen
class MemoryPlan:
    """Where temporaries lie in the arena (bytes from its start).

    peak          bytes of the arena
    lower_bound   the largest sum of bytes live at one step: no plan for this schedule can be smaller
    parts         the memories that it lies in, in its order, where the target knows; no temporary lies across two
    """

    offsets: Mapping[Storage, int] = field(default_factory=dict)
    peak: int = 0
    lower_bound: int = 0
    align: int = 64
    parts: tuple[Part, ...] = ()

    @property
    def gap(self) -> int:
        """Bytes that the plan needs beyond the lower bound."""
        return self.peak - self.lower_bound

    def place(self, storage: Storage) -> tuple[int, int]:
        """The number of the part that a temporary lies in, 0 where there are none, and its place in that."""
        at = self.offsets[storage]
        number = max((k for k, part in enumerate(self.parts) if part.begin <= at), default=0)
        return number, at - (self.parts[number].begin if self.parts else 0)


@frozen(eq=False, kw_only=True)
class Program:
    """A compiled model, ready to be printed as C.

    inputs, outputs   the caller's tensors, in the model's order
    steps             the schedule; temporaries are the "temp" storage that the steps mention
    homes             temporaries that are computed in place: whose bytes each takes over
    resident          inputs and outputs that callers may keep in the arena: the temporaries that are there
    plan              filled in by `aotc.tir.plan.memory_plan`
    """

    name: str
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    steps: tuple[Step, ...]
    homes: Mapping[Storage, Storage] = field(default_factory=dict)
    resident: Mapping[Storage, Storage] = field(default_factory=dict)
    plan: MemoryPlan = field(default_factory=MemoryPlan)

    def __str__(self) -> str:
        """The storage, the calls in order, then every kernel in its text form."""
        views = [view.storage for step in self.steps for view in step.args]
        lines = [f"program {json.dumps(self.name)} {{"]
        for storage in dict.fromkeys((*self.inputs, *views, *self.outputs)):
            at = f" at {self.plan.offsets[storage]}" if storage in self.plan.offsets else ""
            lines.append(f"  {storage.kind} {json.dumps(storage.name)}: {storage.dtype}{[*storage.shape]}{at}")
        for step in self.steps:
            args = (json.dumps(v.storage.name) + (f" + {v.offset}" if v.offset else "") for v in step.args)
            team = "team " if step.kernel.team else ""
            lines.append(f"  {team}call {json.dumps(step.kernel.name)} ({', '.join(args)})")
        lines.append("}")
        return "\n\n".join(("\n".join(lines), *map(to_text, self.kernels)))

    def storages(self, kind: str) -> tuple[Storage, ...]:
        """The storage of a kind that the steps mention, in order of first use."""
        found = (view.storage for step in self.steps for view in step.args)
        return tuple(dict.fromkeys(s for s in found if s.kind == kind))

    @property
    def constants(self) -> tuple[Storage, ...]:
        return self.storages("constant")

    def with_kernels(self, made: Mapping[Kernel, Kernel]) -> Program:
        """The program that calls other kernels, of equal parameters, in place of its own."""
        found = [(step, made[step.kernel]) for step in self.steps]
        steps = (s if s.kernel is kernel else replace(s, kernel=kernel) for s, kernel in found)
        return replace(self, steps=tuple(steps))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Each kernel once, in order of first call."""
        return tuple(dict.fromkeys(step.kernel for step in self.steps))
