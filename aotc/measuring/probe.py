# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at the moment: multiply-adds and bytes per second, measured by a small C program.

probe = Probe(target, find_toolchain())
probe.flops()                      # of float32, on one core, with the target's vectors
probe.bandwidth(16 << 20)          # bytes per second, reading that many again and again

The program also has a clock for the steps of a schedule, `step_function`.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Final

import jinja2
from aotc_codegen.c.dialect import GNU_C
from aotc_codegen.c.project import BANNER

from aotc.driver.build import build_library
from aotc.driver.toolchain import Toolchain, require_cpu
from aotc.ir.dtype import DType
from aotc.measuring.timing import turns
from aotc.runtime.forks import ScratchDirectory
from aotc.runtime.tensor import aligned
from aotc.tir.target import Target

#: Independent chains of multiply-adds: enough for four cycles of latency and two units, and within 16 registers.
CHAINS: Final = 12
STREAMS: Final = 8
MEASURE_SECONDS: Final = 0.1


def _source(target: Target) -> str:
    lanes, dtype = target.lanes("float32"), DType("float32")
    text = (Path(__file__).with_name("templates") / "probe.c.j2").read_text(encoding="utf-8")
    source: str = jinja2.Template(text, undefined=jinja2.StrictUndefined).render(
        banner=BANNER,
        lanes=lanes,
        vectors=GNU_C.vector_definition(dtype, lanes) if lanes > 1 else "",
        vector=GNU_C.vector_name(dtype, lanes) if lanes > 1 else "float",
        chains=[f"a{k}" for k in range(CHAINS)],
        streams=[f"s{k}" for k in range(STREAMS)],
    )
    return source


class Probe:
    """The compiled program, for one target.

    Raises AotcError where it cannot be compiled, or not run here.
    """

    def __init__(self, target: Target, toolchain: Toolchain) -> None:
        require_cpu(target)
        self._folder = ScratchDirectory("aotc-probe-")
        folder = Path(self._folder.name)
        (folder / "src").mkdir()
        (folder / "src" / "probe.c").write_text(_source(target), encoding="utf-8")
        library = build_library(folder, {"library": "lib/libprobe.so"}, toolchain, target, visible=True)
        self._library = ctypes.CDLL(str(library))
        self._library.probe_multiply_add.restype = self._library.probe_read.restype = ctypes.c_int64
        self._lanes = target.lanes("float32")

    @property
    def step_function(self) -> int:
        """The address of an `aotc_step_fn` that writes nanoseconds into the array of int64 that is its context.

        The array holds the number of steps, which becomes -1 where the library has more, and a time more than steps.
        """
        return ctypes.cast(self._library.probe_step, ctypes.c_void_p).value or 0

    def flops(self) -> float:
        """Floating-point operations per second, the most that was seen: a multiply-add counts as two."""
        numbers, rounds = (ctypes.c_float * 4)(0.5, 0.25, 0.0, 0.0), 1 << 18
        best = _least(lambda: self._library.probe_multiply_add(ctypes.c_int64(rounds), numbers))
        return 2e9 * rounds * CHAINS * self._lanes / best

    def bandwidth(self, nbytes: int) -> float:
        """Bytes per second of reading about `nbytes` (1 MB at least) again and again, the most that was seen."""
        step = STREAMS * self._lanes
        count = -(-max(nbytes, 1 << 20) // 4 // step) * step
        data = aligned(4 * count, 64)
        data[:] = 0
        pointer, sink = ctypes.c_void_p(data.ctypes.data), (ctypes.c_float * 1)()
        size = ctypes.c_int64(count)
        best = _least(lambda: self._library.probe_read(ctypes.c_int64(1), pointer, size, sink))
        return 4e9 * count / best


def _least(measure: Callable[[], float]) -> float:
    """The least of what `measure` gives within a moment, three times at least."""
    return max(1.0, min(measure() for _ in turns(3, MEASURE_SECONDS)))
