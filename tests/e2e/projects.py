# SPDX-License-Identifier: Apache-2.0
"""Models whose emitted projects are tested, and commands that run in these projects.

project = emit("resnet18", "c", folder, models)      # sources only
run(["make"], cwd=project.path)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from aotc_runtime_c import hosted_runtime_files, include_dir, model_loader_files
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.driver.pipeline import CompiledModel
from benchmarks.onnx_graph_builder import resnet18

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
NETWORKS = ("resnet18", "yolox_nano", "vittrack")
TARGETS = ("c", "x86-64-v3")


def source_of(name: str, models: Path | None) -> onnx.ModelProto | Path:
    """A network: one of the trained models in a folder, or the one built here."""
    return resnet18() if models is None else models / f"{name}.onnx"


def emit(name: str, target: str, folder: Path, models: Path | None) -> CompiledModel:
    """The sources of a network."""
    return aotc.compile(source_of(name, models), output=folder / name, name=name, target=target, build=False)


def affine(size: int, seed: int, name: str = "x") -> onnx.ModelProto:
    """y = tanh(x W + b) for x of float32[1, size]; above 128 the weights are a binary file."""
    rng = np.random.default_rng(seed)
    weights = {"w": rng.standard_normal((size, size)) / size, "b": rng.standard_normal(size)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [name, "w"], ["h"], name="product"),
            helper.make_node("Add", ["h", "b"], ["s"], name="sum"),
            helper.make_node("Tanh", ["s"], ["y"], name="tanh"),
        ],
        "affine",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(command: Sequence[str | Path], cwd: Path, **env: str) -> str:
    """What a command printed; fails with its complaint."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | env,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[:4000]}{done.stdout[-2000:]}"
    return done.stdout


def build_program_that_opens_libraries(compiler: str, folder: Path, libraries: Sequence[str] = ("-ldl",)) -> Path:
    """The program of isa_host.c with the loader: it prints the status of opening a library and of a run.

    compiler     the C compiler of the architecture for which the program is built
    libraries    what it is linked with
    """
    sources = (Path(__file__).parent / "isa_host.c", *model_loader_files(), *hosted_runtime_files())
    files = [file for file in sources if file.suffix == ".c"]
    program = folder / "host"
    run([compiler, "-std=c99", "-O1", f"-I{include_dir()}", *files, *libraries, "-o", program], folder)
    return program


def run_all(commands: Sequence[Sequence[str | Path]], cwd: Path) -> None:
    """Independent commands, as many at once as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in [pool.submit(run, command, cwd) for command in commands]:
            result.result()


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by relative path."""
    files = (p for p in directory.rglob("*") if p.is_file())
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}


def write_raw(folder: Path, name: str, array: np.ndarray) -> Path:
    """An array in a file, as the example program reads it."""
    path = folder / f"{name}.bin"
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return path
