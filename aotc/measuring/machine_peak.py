# SPDX-License-Identifier: Apache-2.0
"""Measure the peak arithmetic rate and the read bandwidth of one core with a small C program.

probe = Probe(target, find_toolchain())
probe.flops()                      # float32 operations per second, with the vectors of the target
probe.bandwidth(16 << 20)          # bytes per second, reading that many again and again

The program also has the clock that times the steps of a schedule, `step_function`.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import jinja2
from aotc_codegen.c.c_dialects import GNU_C
from aotc_codegen.c.host_project import BANNER

from aotc.driver.compile_sources import build_library
from aotc.driver.toolchain import Toolchain, require_cpu
from aotc.ir.dtype import DType
from aotc.measuring.timing import turns
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.tensor_info import aligned
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
    """The measuring program compiled for one target.

    processor_time    measure CPU time of the thread, which excludes other programs, instead of wall-clock
                      time, which is faster to read

    Raises AotcError if the program cannot be compiled, or cannot run on this machine.
    """

    def __init__(self, target: Target, toolchain: Toolchain, processor_time: bool = True) -> None:
        require_cpu(target)
        self._folder = ScratchDirectory("aotc-probe-")
        folder = Path(self._folder.name)
        (folder / "src").mkdir()
        (folder / "src" / "probe.c").write_text(_source(target), encoding="utf-8")
        # add the flags of kernel files; kernels have explicit multiply-adds, here the compiler must
        # contract products and sums
        flags = (*target.cflags, "-ffp-contract=fast")
        library = build_library(
            folder, {"library": "lib/libprobe.so"}, replace(toolchain, cflags=(*toolchain.cflags, *flags)), target,
            visible=True,
        )  # fmt: skip
        self._library = ctypes.CDLL(str(library))
        for name in ("probe_multiply_add", "probe_read", "probe_clock"):
            self._library[name].restype = ctypes.c_int64
        self._library.probe_use_processor_time(ctypes.c_int32(processor_time))
        self._lanes = target.lanes("float32")

    @property
    def step_function(self) -> int:
        """The address of an `aotc_step_fn` that appends the time in nanoseconds to its context, an
        int64 array.

        The first element of the array is the number of steps, which becomes -1 if the library has
        more; one more time than steps follows.
        """
        return ctypes.cast(self._library.probe_step, ctypes.c_void_p).value or 0

    def clock_nanoseconds(self) -> int:
        """Return the overhead of reading the clock in nanoseconds: the minimum of many
        measurements.
        """
        return int(self._library.probe_clock(ctypes.c_int64(1000)))

    def arithmetic(self) -> Callable[[], float]:
        """Return a function that measures floating-point operations per second; a multiply-add
        counts as two.
        """
        # short enough to run between two scheduler interrupts
        numbers, rounds = (ctypes.c_float * 4)(0.5, 0.25, 0.0, 0.0), 1 << 14

        def measure() -> float:
            nanoseconds = float(self._library.probe_multiply_add(ctypes.c_int64(rounds), numbers))
            return 2e9 * rounds * CHAINS * self._lanes / max(1.0, nanoseconds)

        return measure

    def reading(self, nbytes: int) -> Callable[[], float]:
        """Return a function that measures the bandwidth of reading about `nbytes` (at least 1 MB),
        in bytes per second.
        """
        step = STREAMS * self._lanes
        count = -(-max(nbytes, 1 << 20) // 4 // step) * step
        data = aligned(4 * count, 64)
        data[:] = 0

        def measure() -> float:
            pointer, sink = ctypes.c_void_p(data.ctypes.data), (ctypes.c_float * 1)()
            nanoseconds = float(self._library.probe_read(ctypes.c_int64(1), pointer, ctypes.c_int64(count), sink))
            return 4e9 * count / max(1.0, nanoseconds)

        return measure

    def flops(self) -> float:
        """Return the peak rate in floating-point operations per second, the highest of several
        measurements.
        """
        return _highest(self.arithmetic())

    def bandwidth(self, nbytes: int) -> float:
        """Return the bandwidth in bytes per second of reading about `nbytes` (at least 1 MB), the
        highest of several measurements.
        """
        return _highest(self.reading(nbytes))


def _highest(measure: Callable[[], float]) -> float:
    """Return the highest rate that `measure` returns within `MEASURE_SECONDS`, in at least three
    measurements.
    """
    return max(measure() for _ in turns(3, MEASURE_SECONDS))
