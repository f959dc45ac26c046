# SPDX-License-Identifier: Apache-2.0
"""Compare the compile time, code size and run time of quantized networks with those of the float32
networks.

Each network of `benchmarks.networks`, and each model given by its path, is quantized by ONNX
Runtime's tool (QDQ, a scale for each output channel) with uint8 and with int8 activations. Every
version is compiled in its own process, without the cache. The columns:

    kernels       number of kernel functions in the emitted C
    C kB          text of the emitted kernels, in 1000 bytes
    aotc s        CPU seconds of the compiler, imports included
    cc s          CPU seconds of the C compiler
    code kB       machine code in the library, in 1000 bytes
    run ms        minimum time of one run, measured alternately with the other versions

    # the networks that ONNX Runtime quantizes:
    python -m benchmarks.quantized_vs_float32_code_size
    python -m benchmarks.quantized_vs_float32_code_size mobilenet_v3_small --target x86-64-v3 --json figures.json
    # and the kernels with the longest text:
    python -m benchmarks.quantized_vs_float32_code_size --largest ds_cnn
"""

from __future__ import annotations

import json
import logging
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click
import numpy as np
import onnx

from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from benchmarks.quantized_models import quantize_statically_to_file

TABLE_HEADER: Final = ("model", "version", "kernels", "C kB", "aotc s", "cc s", "code kB", "run ms", "C", "time", "run")
#: Consecutive timed runs of each version, and number of repetitions of this series.
RUNS_PER_SERIES: Final = 3
SERIES_COUNT: Final = 60
_KERNEL_FUNCTION_PATTERN: Final = re.compile(
    r"^(?:static )?void \w+_(\w+)\([^;]*?\) \{$.*?^\}$", re.DOTALL | re.MULTILINE
)


def compile_and_measure_code_size(path: Path, folder: Path, target: str) -> dict[str, Any]:
    """Compile a model in this process and return its figures; CPU times are right only in a fresh
    process.
    """
    from aotc import compile
    from aotc.driver.operator_and_pass_registration import install_operators_and_passes

    install_operators_and_passes()
    model = compile(path, output=folder, name="net", target=target, cache=False)
    self_usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    files = sorted(path for kind in ("*kernels*.c", "*helpers*.h") for path in (folder / "src").glob(kind))
    text = "".join(f.read_text(encoding="utf-8") for f in files)
    kernels = {m[1]: len(m[0]) for m in _KERNEL_FUNCTION_PATTERN.finditer(text)}
    library = folder / model.metadata["library"]
    sizes = subprocess.run(["size", str(library)], capture_output=True, text=True, check=True).stdout.split()
    return {
        "kernels": len(kernels),
        "text_bytes": len(text),
        "aotc_seconds": self_usage.ru_utime + self_usage.ru_stime,
        "cc_seconds": children.ru_utime + children.ru_stime,
        "code_bytes": int(sizes[6]),
        "largest": sorted(kernels.items(), key=lambda item: -item[1])[:12],
    }


def minimum_run_milliseconds(project_folders: Mapping[str, Path]) -> dict[str, float]:
    """Return the minimum run time in milliseconds of each compiled project, measured alternately."""
    from aotc import load

    sessions = {name: load(folder) for name, folder in project_folders.items()}
    inputs = {name: draw_random_inputs_of_compiled_project(folder) for name, folder in project_folders.items()}
    best = dict.fromkeys(sessions, float("inf"))
    for _ in range(SERIES_COUNT):
        for name, session in sessions.items():
            session.run(None, inputs[name])
            for _ in range(RUNS_PER_SERIES):
                start = perf_counter()
                session.run(None, inputs[name])
                best[name] = min(best[name], (perf_counter() - start) * 1e3)
    return best


def draw_random_inputs_of_compiled_project(folder: Path) -> dict[str, np.ndarray]:
    """Return seeded random inputs for a compiled project."""
    rng = np.random.default_rng(0)
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    return {i["name"]: rng.uniform(0, 2, i["shape"]).astype(i["dtype"]) for i in metadata["inputs"]}


def write_float_and_quantized_models(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """Write the float32 model and both quantized versions into a folder; return their paths by
    version.
    """
    path = folder / "float32.onnx"
    onnx.save(model, path)
    return {
        "float32": path,
        "u8": quantize_statically_to_file(model, folder),
        "s8": quantize_statically_to_file(model, folder, signed=True),
    }


def measure_code_size_of_network_versions(
    paths: Mapping[str, Path], folder: Path, target: str
) -> dict[str, dict[str, Any]]:
    """Return the figures of each version of a network, each compiled in its own process."""
    figures, folders = {}, {}
    for version, path in paths.items():
        folders[version] = folder / version
        command = [
            sys.executable,
            "-m",
            "benchmarks.quantized_vs_float32_code_size",
            str(path),
            "--only",
            str(folders[version]),
        ]
        done = subprocess.run([*command, "--target", target], check=True, capture_output=True, text=True)
        figures[version] = json.loads(done.stdout.splitlines()[-1])
    for version, least in minimum_run_milliseconds(folders).items():
        figures[version]["milliseconds"] = least
    return figures


def code_size_table_row(name: str, version: str, figures: Mapping[str, Any], float32_figures: Mapping[str, Any]) -> str:
    """Return a table row from the figures of a version; the last columns are ratios to the float32
    figures in `float32_figures`.
    """
    seconds, other = (f["aotc_seconds"] + f["cc_seconds"] for f in (figures, float32_figures))
    cells = [
        name, version, str(figures["kernels"]), f"{figures['text_bytes'] / 1e3:.0f}", f"{figures['aotc_seconds']:.1f}",
        f"{figures['cc_seconds']:.1f}", f"{figures['code_bytes'] / 1e3:.0f}", f"{figures['milliseconds']:.3f}",
        f"{figures['text_bytes'] / float32_figures['text_bytes']:.2f}", f"{seconds / other:.2f}",
        f"{figures['milliseconds'] / float32_figures['milliseconds']:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--target", default="host", help="Machine to compile for; it must be able to run the code.")
@click.option("--only", type=click.Path(path_type=Path), help="Compile one file there, and print its figures.")
@click.option("--largest", is_flag=True, help="List the kernels with the longest text, too.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures there.")
def compare_code_sizes(
    names: Sequence[str], target: str, only: Path | None, largest: bool, json_file: Path | None
) -> None:
    logging.disable(logging.WARNING)
    if only is not None:
        print(json.dumps(compile_and_measure_code_size(Path(names[0]), only, target)))
        return
    print(f"| {' | '.join(TABLE_HEADER)} |\n{'|---' * len(TABLE_HEADER)}|")
    figures = {}
    for name in names or NETWORK_BUILD_FUNCTIONS:
        with tempfile.TemporaryDirectory() as scratch:
            model = onnx.load(name) if name.endswith(".onnx") else NETWORK_BUILD_FUNCTIONS[name]()
            figures[name] = measure_code_size_of_network_versions(
                write_float_and_quantized_models(model, Path(scratch)), Path(scratch) / "projects", target
            )
        for version, facts in figures[name].items():
            print(code_size_table_row(Path(name).stem, version, facts, figures[name]["float32"]), flush=True)
            if largest:
                print("\n".join(f"    {kernel:40} {size:9,}" for kernel, size in facts["largest"]))
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    compare_code_sizes()
