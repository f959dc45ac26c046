# SPDX-License-Identifier: Apache-2.0
"""Check and benchmark prepared models on a GPU machine without aotc: exact results,
compute-sanitizer, speed vs. PyTorch.

    python -m benchmarks.cuda_prepare build/device                          # here: cases, no GPU is needed
    cd build/device && python3 -m benchmarks.cuda_device results.jsonl      # there; again until it says "0 left"
    python -m benchmarks.cuda_device results.jsonl --table                  # rows for docs/performance.md

Each job runs in its own process; its result is appended to the file at once, and jobs with a result
in the file are skipped. Jobs are "facts" (properties of the machine), "bits/CASE" (outputs equal
the emulator's bit by bit in three runs; outputs of tensor cores, which sum in another order, are
close), "sanitize/TOOL/CASE" (compute-sanitizer reports no error), and "speed/CASE". Required
packages: numpy, and torch for facts and speed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CASES_FOLDER = Path("cases")
EMULATED_DRIVER_PATH = Path("libcuda.so.1")
"""Path of the emulated CUDA driver, which is prepared on request."""
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
CUDA_TOOLKIT_FOLDER = "/usr/local/cuda/bin"
"""Default directory of NVIDIA's tools, which is often not on the path."""
UINT_TYPE_AND_INFINITY_BITS = {"float16": ("u2", 0x7C00), "bfloat16": ("u2", 0x7F80), "float32": ("u4", 0x7F800000)}
UINT_TYPE_AND_INFINITY_BITS["float64"] = ("u8", 0x7FF << 52)
"""For each float dtype: the unsigned integer dtype of its size, and the bits of infinity; larger
magnitudes are NaN.
"""
MAX_TENSOR_CORE_DEVIATION = 0.03
"""Largest accepted difference between results of tensor cores and the emulator, in standard
deviations.
"""
NO_WAIT, PLAIN = 1, 2
SANITIZER_ERROR_EXIT_CODE = 9
"""Exit code of compute-sanitizer if it has found an error."""
TIMEOUT_MESSAGE_PREFIX = "longer than"
MAX_CHILD_PROCESSES = 30
"""Largest number of child processes that one benchmark job may start."""
_WORDS, _NUMBERS = ctypes.c_void_p, ctypes.c_int32


class Program(ctypes.Structure):
    """ctypes declaration of the C struct aotc_cuda_program of aotc_cuda.h."""

    _fields_ = (
        *((name, _WORDS) for name in ("info", "calls", "images", "kernels", "steps", "args", "edges")),
        *((f"num_{name}", _NUMBERS) for name in ("images", "kernels", "steps", "args")),
        *((name, _NUMBERS) for name in ("least_driver", "num_tiers")),
        *((name, ctypes.c_uint64) for name in ("weights", "weights_bytes", "arena_bytes")),
        *((name, _WORDS) for name in ("tiers", "state_hash")),
    )


class CudaOptions(ctypes.Structure):
    """ctypes declaration of the C struct aotc_cuda_options of aotc_cuda.h."""

    _fields_ = (("size", ctypes.c_size_t), ("stream", _WORDS), ("flags", ctypes.c_uint32), ("reserved", _NUMBERS))


class RunOptions(ctypes.Structure):
    """ctypes declaration of the C struct aotc_run_options of aotc.h."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        *((name, _WORDS) for name in ("on_step", "context", "threads", "isa")),
        ("cuda", ctypes.POINTER(CudaOptions)),
    )


# --- cases


class PreparedCase:
    """Prepared case: a library without weights, the rules that generate weights and inputs, and the
    expected outputs.

    about   JSON: name, sanitize (true or false), weights ([first byte, elements, dtype, mean,
            spread] of random weights), inputs and outputs ({name, dtype, shape, bytes}), samples
            ({name, steps: [first, end], outputs: [numbers], exact}), macs, bytes
    data    arrays: library, kept (weights that are not random), in0... if inputs are not random,
            out0... if outputs are known, model (ONNX with weights as inputs) if PyTorch is measured
            too
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.data = dict(file)
        self.about = json.loads(self.data.pop("about").tobytes())

    def weight_bytes_with_regenerated_weights(self) -> Array:
        """Return the bytes of a case's weights; random weights are generated again from their
        seeds.
        """
        weights: Array = self.data["kept"].copy()
        for k, (first, count, dtype, mean, spread) in enumerate(self.about["weights"]):
            random_bytes = draw_uniform_random_bytes(k, count, dtype, mean, spread)
            weights[first : first + random_bytes.size] = random_bytes
        return weights

    def stored_or_generated_input_bytes(self) -> list[Array]:
        """Return the bytes of a case's inputs; random inputs are generated from their seeds."""
        sizes = [int(np.prod(x["shape"])) for x in self.about["inputs"]]
        known = (self.data.get(f"in{k}") for k in range(len(sizes)))
        return [
            draw_uniform_random_bytes(1000 + k, sizes[k], x["dtype"], 0, 2) if data is None else data
            for k, (x, data) in enumerate(zip(self.about["inputs"], known, strict=True))
        ]


def draw_uniform_random_bytes(seed: int, count: int, dtype: str, mean: float, spread: float) -> Array:
    """Return the bytes of uniform random numbers, which are identical on every machine."""
    numbers = np.empty(count, dtype)
    source = np.random.Philox(seed)
    for first in range(0, count, 1 << 22):
        raw = source.random_raw(min(1 << 22, count - first)) >> np.uint64(40)
        unit = raw.astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
        numbers[first : first + raw.size] = unit * np.float32(spread) + np.float32(mean)
    return numbers.view(np.uint8)


class LoadedCase:
    """Case, or some of its samples, loaded onto the first GPU; it stays loaded until the process
    ends.
    """

    def __init__(self, case: PreparedCase, samples: slice = slice(None)) -> None:
        self._objects_alive_until_end: list[Any] = [case, weights := case.weight_bytes_with_regenerated_weights()]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "case.so"
            path.write_bytes(case.data["library"].tobytes())
            library = ctypes.CDLL(str(path))
        name = case.about["name"]
        library.aotc_model_cuda_program.restype = _WORDS
        library.aotc_model_cuda_program.argtypes = ()
        program = Program.from_buffer_copy(Program.from_address(library.aotc_model_cuda_program()))
        program.weights = weights.ctypes.data
        self.whole = samples == slice(None)
        if not self.whole:
            first, end = (case.about["samples"][samples][k]["steps"][k] for k in (0, -1))
            program.steps += first * 6 * 4
            program.num_steps = end - first
            steps = np.ctypeslib.as_array((_NUMBERS * (6 * (end - first))).from_address(program.steps)).copy()
            steps[5::6] = 0  # no dependence edges: the kernels of a stream run in order
            program.steps = steps.ctypes.data
            self._objects_alive_until_end.append(steps)
        calls = (_WORDS * 5).from_address(program.calls)
        message = ctypes.create_string_buffer(512)
        opened, self._session = _WORDS(), _WORDS()
        opening = ctypes.CFUNCTYPE(_NUMBERS, _WORDS, _NUMBERS, _WORDS, _WORDS, ctypes.c_size_t)(calls[0])
        if opening(ctypes.addressof(program), 0, ctypes.addressof(opened), ctypes.addressof(message), 512):
            raise RuntimeError(message.value.decode())
        session = ctypes.CFUNCTYPE(_NUMBERS, _WORDS, _WORDS)(calls[2])
        if status := session(opened, ctypes.addressof(self._session)):
            raise RuntimeError(f"a session cannot be had: status {status}")
        self._error = ctypes.CFUNCTYPE(ctypes.c_char_p, _WORDS)(calls[4])
        self._run = library[f"{name}_run"]
        self._objects_alive_until_end += [library, program]

    def run_on_tensor_addresses(
        self, input_addresses: Sequence[int], output_addresses: Sequence[int], stream: int = 0, flags: int = 0
    ) -> None:
        """Run on tensors at these addresses; raise RuntimeError with the driver's message if the
        run fails.
        """
        how = CudaOptions(ctypes.sizeof(CudaOptions), stream, flags | (0 if self.whole else PLAIN), 0)
        options = RunOptions(ctypes.sizeof(RunOptions), cuda=ctypes.pointer(how))
        sides = ((_WORDS * max(1, len(side)))(*side) for side in (input_addresses, output_addresses))
        if status := self._run(*sides, self._session, ctypes.byref(options)):
            raise RuntimeError(f"status {status}: {self._error(self._session).decode()}")


# --- jobs, each in its own process


def elements_as_equality_key_integers(raw: Array, dtype: str) -> Array:
    """Return elements as integers that are equal if and only if the elements are equal; all NaNs
    count as equal.
    """
    if dtype not in UINT_TYPE_AND_INFINITY_BITS:
        return raw
    kind, infinity = UINT_TYPE_AND_INFINITY_BITS[dtype]
    integers = raw.view(kind).copy()
    integers[integers & ((1 << (8 * integers.itemsize - 1)) - 1) > infinity] = infinity + 1
    return integers


def max_difference_in_standard_deviations(actual: Array, expected: Array, dtype: str) -> float:
    """Return the largest difference between elements, divided by the standard deviation of the
    known elements.
    """
    wide = (a.view("u2").astype("u4") << 16 for a in (actual, expected)) if dtype == "bfloat16" else (actual, expected)
    a, b = (x.view("f4" if dtype == "bfloat16" else dtype).astype(np.float64) for x in wide)
    return float(np.abs(a - b).max(initial=0) / max(float(b.std()), 1e-30))


def run_case_and_yield_outputs(
    case: PreparedCase, samples: slice = slice(None), run_count: int = 1
) -> Iterator[list[Array]]:
    """Load a prepared case onto the GPU, run it `run_count` times, and yield after each run one
    byte array per output.  Outputs of tests outside of the slice `samples` are undefined.
    """
    opened, inputs = LoadedCase(case, samples), case.stored_or_generated_input_bytes()
    for _ in range(run_count):
        outputs = [np.full(x["bytes"], 0xA5, np.uint8) for x in case.about["outputs"]]
        opened.run_on_tensor_addresses([a.ctypes.data for a in inputs], [a.ctypes.data for a in outputs])
        yield outputs


def compare_outputs_with_emulator(case_name: str, first_sample: int, end_sample: int) -> dict[str, Any]:
    """Compare the outputs of samples with the known outputs; return the number of samples and the
    differences.

    Samples `first_sample` up to `end_sample` (exclusive) are compared, all samples if `end_sample`
    is 0. "far" is the largest difference of results from tensor cores, in standard deviations.
    """
    case = PreparedCase(CASES_FOLDER / f"{case_name}.npz")
    chosen = slice(first_sample, end_sample) if end_sample else slice(None)
    differ: dict[str, str] = {}
    far = 0.0
    for outputs in run_case_and_yield_outputs(case, chosen, run_count=3):
        for sample in case.about["samples"][chosen]:
            for k in sample["outputs"]:
                dtype, known = case.about["outputs"][k]["dtype"], case.data[f"out{k}"]
                if not sample["exact"] and dtype in UINT_TYPE_AND_INFINITY_BITS:
                    far = max(far, away := max_difference_in_standard_deviations(outputs[k], known, dtype))
                    if not away < MAX_TENSOR_CORE_DEVIATION:
                        differ[sample["name"]] = f"off by {away:.1e} of the standard deviation"
                elif text := _describe_first_difference(
                    elements_as_equality_key_integers(outputs[k], dtype),
                    elements_as_equality_key_integers(known, dtype),
                ):
                    differ.setdefault(sample["name"], text)
    return {"samples": len(case.about["samples"][chosen]), "differ": differ, "far": far}


def _describe_first_difference(actual: Array, expected: Array) -> str:
    """Return a text about the first element in which two arrays differ; "" if they are equal."""
    places = np.flatnonzero(actual != expected)
    if not places.size:
        return ""
    k = int(places[0])
    return f"element {k} is {actual[k]:#x}, not {expected[k]:#x}; {places.size} of {actual.size} differ"


def measure_bandwidth_and_device_facts() -> dict[str, Any]:
    """Return properties of the device and library versions, and the measured bandwidth of a large
    copy.
    """
    import torch

    from benchmarks.pytorch_gpu_timing import seconds_per_run_by_round

    facts: dict[str, Any] = {"torch": torch.__version__, "numpy": np.__version__}
    if not torch.cuda.is_available():
        return facts | {"device": "none"}
    x = torch.ones(1 << 28, device="cuda")
    y = torch.empty_like(x)
    device = torch.cuda.get_device_properties(0)
    copied = 2e-12 * x.nbytes / min(seconds_per_run_by_round({"copy": lambda: y.copy_(x)})["copy"])
    return facts | {"device": device.name, "processors": device.multi_processor_count, "copy, TB/s": copied}


def run_job_and_print_json_results(job_words: Sequence[str]) -> None:
    """Run one job in this process; each printed line is a JSON result, of which the last one
    counts.
    """
    match job_words:
        case ["facts"]:
            print(json.dumps(measure_bandwidth_and_device_facts()))
        case ["bits", name, first, end]:
            print(json.dumps(compare_outputs_with_emulator(name, int(first), int(end))))
        case ["speed", name]:
            from benchmarks.pytorch_gpu_timing import time_case_and_competitors

            case = PreparedCase(CASES_FOLDER / f"{name}.npz")
            for result in time_case_and_competitors(
                case.data["model"].tobytes(), case.stored_or_generated_input_bytes(), LoadedCase(case), case.about
            ):
                print(json.dumps(result), flush=True)


# --- all jobs


def run_job_in_child_process(
    job_words: Sequence[object], timeout_seconds: float, tool_command: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a job in a child process and return its result, with the key "error" if it fails or
    exceeds the time limit.
    """
    command = [*tool_command, sys.executable, "-m", "benchmarks.cuda_device", "--child", *map(str, job_words)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            code: object = subprocess.run(
                command, stdout=out, stderr=errors, timeout=timeout_seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"{TIMEOUT_MESSAGE_PREFIX} {timeout_seconds:.0f} s"
        printed, error_text = (file.seek(0) or file.read() for file in (out, errors))
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if code != 0:
        result["error"] = f"exit code {code}: " + " | ".join(
            (printed if tool_command else error_text).strip().splitlines()[-4:]
        )
    return result


def compare_outputs_or_bisect_samples(case_name: str, seconds: float) -> dict[str, Any]:
    """Compare the outputs of a case; if it fails, bisect its samples in separate processes to find
    the failing samples.

    Samples that could not be checked in the time limit are listed as "left", so that a hanging
    sample does not block later jobs.
    """
    end = time.monotonic() + seconds
    whole = run_job_in_child_process(["bits", case_name, 0, 0], seconds / 2)
    if "error" not in whole:
        return whole
    samples = PreparedCase(CASES_FOLDER / f"{case_name}.npz").about["samples"]
    report: dict[str, Any] = {"samples": 0, "differ": {}, "failed": {}, "whole": whole["error"]}
    parts, left = [(0, len(samples))], MAX_CHILD_PROCESSES
    while parts and left and (remaining := end - time.monotonic()) > 0:
        first, last = parts.pop()
        part, left = run_job_in_child_process(["bits", case_name, first, last], min(seconds / 8, remaining)), left - 1
        if "error" not in part:
            report["samples"] += part["samples"]
            report["differ"] |= part["differ"]
        elif last - first == 1:
            report["failed"][samples[first]["name"]] = part["error"]
        else:
            middle = (first + last) // 2
            parts += [(middle, last), (first, middle)]
    return report | {"left": parts}


def run_job_by_name(job_name: str, seconds: float) -> dict[str, Any]:
    """Run a job by its name within a time limit and return its result."""
    match job_name.split("/"):
        case ["bits", case]:
            return compare_outputs_or_bisect_samples(case, seconds)
        case ["sanitize", tool, case]:
            sanitizer = shutil.which(
                "compute-sanitizer", path=os.pathsep.join((os.environ["PATH"], CUDA_TOOLKIT_FOLDER))
            )
            if sanitizer is None:
                return {"skipped": "compute-sanitizer is not installed"}
            wrapper = [sanitizer, "--tool", tool, "--error-exitcode", str(SANITIZER_ERROR_EXIT_CODE)]
            return run_job_in_child_process(["bits", case, 0, 0], seconds, wrapper)
        case words:
            return run_job_in_child_process(words, seconds)


def job_names_by_priority() -> list[str]:
    """Return the names of all checks and measurements to run, the most important first."""
    cases = {path.stem: PreparedCase(path) for path in sorted(CASES_FOLDER.glob("*.npz"))}
    checked = [name for name, case in cases.items() if "out0" in case.data]
    sanitized = [f"sanitize/{tool}/{n}" for tool in SANITIZER_TOOLS for n in checked if cases[n].about["sanitize"]]
    timed = [f"speed/{name}" for name, case in cases.items() if "model" in case.data]
    return ["facts", *(f"bits/{name}" for name in checked), *timed, *sanitized]


def read_finished_job_results(results: Path) -> dict[str, Any]:
    """Return the results of finished jobs by name; lines that were truncated by an interruption are
    ignored.
    """
    rows = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        with suppress(ValueError):
            row = json.loads(line)
            rows[row["job"]] = row
    return rows


def benchmark_table_rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield Markdown table rows: microseconds per run, and the ratio to the fastest competitor."""
    rivals = ("eager", "graph", "compiled")
    yield f"| case | aotc, us | {' | '.join(f'{r}, us' for r in rivals)} | ratio | CPU, us | TB/s | TFLOP/s |"
    yield "|---" * 9 + "|"
    for name, row in results.items():
        if name.startswith("speed/") and "us" in row:
            us = row["us"]
            cells = [f"{us[k]:.1f}" if k in us else "-" for k in ("aotc", *rivals)]
            rates = (f"{1e-6 * row[quantity] / us['aotc']:.2f}" for quantity in ("bytes", "flops"))
            cells = [name[6:], *cells, f"{row['ratio']:.2f}", f"{row['cpu_us']:.1f}", *rates]
            yield f"| {' | '.join(cells)} |"


def run_remaining_jobs() -> int:
    """Run the remaining jobs until the time is used up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results.jsonl"))
    parser.add_argument("--minutes", type=float, default=8.0, help="for all that is done now")
    parser.add_argument("--seconds", type=float, default=150.0, help="for each job, at most")
    parser.add_argument("--only", default="", help="jobs whose names contain this")
    parser.add_argument("--emulated", action="store_true", help="on this machine's processor, where that was prepared")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        run_job_and_print_json_results(chosen.child)
        return 0
    if chosen.table:
        print(*benchmark_table_rows(read_finished_job_results(chosen.results)), sep="\n")
        return 0
    if chosen.emulated:
        os.environ["AOTC_CUDA_DRIVER"] = str(EMULATED_DRIVER_PATH.resolve())
    end = time.monotonic() + 60 * chosen.minutes
    left = [
        name
        for name in job_names_by_priority()
        if name not in read_finished_job_results(chosen.results) and chosen.only in name
    ]
    while left and time.monotonic() < end:
        start = time.monotonic()
        name = left.pop(0)
        limit = min(chosen.seconds, end - start)
        try:
            result = run_job_by_name(name, limit)
        except Exception as error:
            result = {"error": repr(error)}
        if limit < chosen.seconds and TIMEOUT_MESSAGE_PREFIX in str(result):
            left.insert(0, name)  # it ran out of time; the next call has more
            break
        row = {"job": name, "seconds": round(time.monotonic() - start, 1), **result}
        with chosen.results.open("a") as file:
            file.write(f"\n{json.dumps(row)}\n")
        print(json.dumps(row)[:400], flush=True)
    print(f"{len(left)} left")
    return 0


if __name__ == "__main__":
    sys.exit(run_remaining_jobs())
