# SPDX-License-Identifier: Apache-2.0
"""Measure the peak arithmetic rate and the read bandwidth of one core with a small C program.

probe = Probe(target, find_toolchain())
probe.peak_flops_per_second()      # float32 operations per second, with the vectors of the target
probe.peak_read_bytes_per_second(16 << 20)  # bytes per second, reading that many again and again

The program also has the clock that times the steps of a schedule, `step_callback_address`.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import jinja2
from aotc_codegen.c.c_dialects import GNU_C
from aotc_codegen.c.host_project import GENERATED_FILE_BANNER

from aotc.driver.compile_sources import build_project_library
from aotc.driver.toolchain import Toolchain, require_cpu_can_run
from aotc.ir.dtype import DType
from aotc.measuring.timing import repeat_for_seconds
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.tensor_info import allocate_aligned_bytes
from aotc.tir.target import Target

#: Independent chains of multiply-adds: enough for four cycles of latency and two units, and within 16 registers.
MULTIPLY_ADD_CHAINS: Final = 12
READ_STREAMS: Final = 8
MEASURE_SECONDS: Final = 0.1


def _probe_source_text(target: Target) -> str:
    lanes, dtype = target.lanes("float32"), DType("float32")
    text = (Path(__file__).with_name("templates") / "probe.c.j2").read_text(encoding="utf-8")
    source: str = jinja2.Template(text, undefined=jinja2.StrictUndefined).render(
        banner=GENERATED_FILE_BANNER,
        lanes=lanes,
        vectors=GNU_C.vector_typedefs(dtype, lanes) if lanes > 1 else "",
        vector=GNU_C.vector_type_name(dtype, lanes) if lanes > 1 else "float",
        chains=[f"a{k}" for k in range(MULTIPLY_ADD_CHAINS)],
        streams=[f"s{k}" for k in range(READ_STREAMS)],
    )
    return source


class Probe:
    """The measuring program compiled for one target.

    processor_time    measure CPU time of the thread, which excludes other programs, instead of wall-clock
                      time, which is faster to read

    Raises AotcError if the program cannot be compiled, or cannot run on this machine.
    """

    def __init__(self, target: Target, toolchain: Toolchain, processor_time: bool = True) -> None:
        require_cpu_can_run(target)
        self._folder = ScratchDirectory("aotc-probe-")
        folder = Path(self._folder.name)
        (folder / "src").mkdir()
        (folder / "src" / "probe.c").write_text(_probe_source_text(target), encoding="utf-8")
        # add the flags of kernel files; kernels have explicit multiply-adds, here the compiler must
        # contract products and sums
        flags = (*target.cflags, "-ffp-contract=fast")
        library = build_project_library(
            folder, {"library": "lib/libprobe.so"}, replace(toolchain, cflags=(*toolchain.cflags, *flags)), target,
            visible=True,
        )  # fmt: skip
        self._library = ctypes.CDLL(str(library))
        for name in ("probe_multiply_add", "probe_read", "probe_clock"):
            self._library[name].restype = ctypes.c_int64
        self._library.probe_use_processor_time(ctypes.c_int32(processor_time))
        self._lanes = target.lanes("float32")

    @property
    def step_callback_address(self) -> int:
        """The address of an `aotc_step_fn` that adds the nanoseconds of each step to its context, an
        int64 array.

        The first element of the array is the number of steps, which becomes -1 if the library has
        more. The sum of the times of each step follows, then 1 if the run has ended, two elements that
        the function itself uses, and the number of times that each step ran: steps in loops run several
        times, and those of branches that are not taken and of other tiers of sizes not at all.
        """
        return ctypes.cast(self._library.probe_step, ctypes.c_void_p).value or 0

    def clock_overhead_nanoseconds(self) -> int:
        """Return the overhead of reading the clock in nanoseconds: the minimum of many
        measurements.
        """
        return int(self._library.probe_clock(ctypes.c_int64(1000)))

    def make_flops_measurement(self) -> Callable[[], float]:
        """Return a function that measures floating-point operations per second; a multiply-add
        counts as two.
        """
        # short enough to run between two scheduler interrupts
        numbers, rounds = (ctypes.c_float * 4)(0.5, 0.25, 0.0, 0.0), 1 << 14

        def measure_flops_per_second() -> float:
            nanoseconds = float(self._library.probe_multiply_add(ctypes.c_int64(rounds), numbers))
            return 2e9 * rounds * MULTIPLY_ADD_CHAINS * self._lanes / max(1.0, nanoseconds)

        return measure_flops_per_second

    def make_read_bandwidth_measurement(self, nbytes: int) -> Callable[[], float]:
        """Return a function that measures the bandwidth of reading about `nbytes` (at least 1 MB),
        in bytes per second.
        """
        step = READ_STREAMS * self._lanes
        count = -(-max(nbytes, 1 << 20) // 4 // step) * step
        data = allocate_aligned_bytes(4 * count, 64)
        data[:] = 0

        def measure_read_bytes_per_second() -> float:
            pointer, sink = ctypes.c_void_p(data.ctypes.data), (ctypes.c_float * 1)()
            nanoseconds = float(self._library.probe_read(ctypes.c_int64(1), pointer, ctypes.c_int64(count), sink))
            return 4e9 * count / max(1.0, nanoseconds)

        return measure_read_bytes_per_second

    def peak_flops_per_second(self) -> float:
        """Return the peak rate in floating-point operations per second, the highest of several
        measurements.
        """
        return _highest_measured_rate(self.make_flops_measurement())

    def peak_read_bytes_per_second(self, nbytes: int) -> float:
        """Return the bandwidth in bytes per second of reading about `nbytes` (at least 1 MB), the
        highest of several measurements.
        """
        return _highest_measured_rate(self.make_read_bandwidth_measurement(nbytes))


def _highest_measured_rate(measure: Callable[[], float]) -> float:
    """Return the highest rate that `measure` returns within `MEASURE_SECONDS`, in at least three
    measurements.
    """
    return max(measure() for _ in repeat_for_seconds(3, MEASURE_SECONDS))
