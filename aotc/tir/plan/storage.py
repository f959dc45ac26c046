# SPDX-License-Identifier: Apache-2.0
"""The memory of tensors of a program, and the places of temporaries in the arena.

x = Storage(name="x", dtype=DType("float32"), shape=(2, 3), kind="input")
View(x, 3)                              # the second row of x
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from aotc.ir import Dim, DType, Quantization, Shape, SymDim, frozen, product_of_dims


@frozen(eq=False, kw_only=True)
class Storage:
    """Memory that holds one tensor; compared by identity.

    name           name in the model, from which code generation derives C identifiers
    shape          extents; the largest ones if they depend on sizes that are known at run time
    kind           "input" and "output" (memory of the caller), "constant" (contents in `data`),
                   "temp" (in the arena), "state" (in the caller's block of state)
    quantization   mapping of the integers of an input or output to real numbers, if known
    is_string      True for an input or output that holds slots of strings: the last axis counts the
                   bytes of a slot (`aotc.ir.string_slots`)
    least          for a constant packed as 4-bit values: the number that unpacking adds; None for
                   all others
    dims           extents as formulas over the sizes of a run; None if all of them are numbers. The
                   elements are dense in these extents, from the beginning of the memory on
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: str = "temp"
    data: np.ndarray[Any, Any] | None = None
    align: int = 64
    quantization: Quantization | None = None
    least: int | None = None
    dims: Shape | None = None
    is_string: bool = False

    @property
    def size(self) -> int:
        """Number of elements of the stored tensor; the largest one if it depends on sizes."""
        return math.prod(self.shape)

    @property
    def run_time_shape(self) -> Shape:
        """Extents, as formulas where they depend on sizes that are known at run time."""
        return self.shape if self.dims is None else self.dims

    @property
    def dim_texts(self) -> list[str]:
        """Extents as numbers, or as formulas over the sizes of a run."""
        return [d.name if isinstance(d, SymDim) else str(d) for d in self.run_time_shape]

    @property
    def element_count(self) -> Dim:
        """Number of elements, as a formula if it depends on sizes that are known at run time."""
        return product_of_dims(self.run_time_shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@frozen(eq=False, kw_only=True)
class StateTensor:
    """Tensor that a model keeps between runs.

    past      storage that a run reads: an input until `aotc.tir.plan.state_placement` places it in
              the block of state
    present   storage that a run writes: an output until then; `past` itself where runs update it
    initial   contents before the first run; None for zeros
    grows     True for a tensor that becomes longer in each run (see `GrowingState`)
    """

    past: Storage
    present: Storage
    initial: np.ndarray[Any, Any] | None = None
    grows: bool = False

    @property
    def has_two_copies(self) -> bool:
        """Return True if runs read one copy and write another one, which then change roles."""
        return self.past is not self.present


@frozen
class View:
    """Contiguous part of a storage from element `offset` on, which a kernel gets as an argument."""

    storage: Storage
    offset: int = 0


@frozen
class ArenaPart:
    """Part of the arena that lies in one memory: `bytes` bytes from byte `begin` on."""

    memory: str
    begin: int
    bytes: int


@frozen
class MemoryPlan:
    """Offsets of temporaries in the arena, in bytes.

    peak          size of the arena in bytes
    lower_bound   largest sum of bytes live at one step; no plan for this schedule can be smaller
    parts         parts of the arena in memories, in address order, if the target has several; no
                  temporary crosses parts
    """

    offsets: Mapping[Storage, int] = field(default_factory=dict)
    peak: int = 0
    lower_bound: int = 0
    align: int = 64
    parts: tuple[ArenaPart, ...] = ()

    @property
    def bytes_above_lower_bound(self) -> int:
        """Number of bytes by which the planned arena exceeds its lower bound."""
        return self.peak - self.lower_bound

    def arena_part_and_offset(self, storage: Storage) -> tuple[int, int]:
        """Return the number of the part that holds a temporary (0 if there are no parts), and the
        offset in this part.
        """
        at = self.offsets[storage]
        number = max((k for k, part in enumerate(self.parts) if part.begin <= at), default=0)
        return number, at - (self.parts[number].begin if self.parts else 0)
