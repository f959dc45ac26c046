# SPDX-License-Identifier: Apache-2.0
"""Table of the kinds of fuzzing cases, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from tests.fuzz import (
    attention,
    control_flow,
    control_flow_runs,
    differential,
    graphs,
    kernels,
    mutate_archive,
    mutate_onnx,
    mutate_pytorch,
    mutate_relay,
    onnx_graphs,
)
from tests.fuzz.case import Files, Kind, Stage
from tests.fuzz.readers import check_model


@dataclass
class Models:
    """Mutated models in one file.

    bases, mutated, smaller   of the module for the format
    """

    name: str
    file: str
    bases: Sequence[Any]
    mutated: Callable[[Sequence[Any], int, frozenset[int]], bytes]
    smaller_data: Callable[[bytes], Iterator[bytes]]

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return {self.file: self.mutated(self.bases, seed, without)}

    def check(self, folder: Path, stage: Stage) -> str:
        return check_model(folder / self.file, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return ({**files, self.file: data} for data in self.smaller_data(files[self.file]))

    def command(self, folder: Path) -> str:
        return f"aotc compile {folder / self.file} --no-build -o build/out"


@dataclass
class Written:
    """Mutated files of our own formats."""

    name: str = "archive"

    def __post_init__(self) -> None:
        mutate_archive.bases()

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return mutate_archive.mutated(seed, without)

    def check(self, folder: Path, stage: Stage) -> str:
        return mutate_archive.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return mutate_archive.smaller(files)

    def command(self, folder: Path) -> str:
        return ""


@dataclass
class Graphs:
    """Random graphs over all operators, executed in every way."""

    name: str = "graphs"

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return graphs.make(seed)

    def check(self, folder: Path, stage: Stage) -> str:
        return differential.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        with tempfile.TemporaryDirectory() as folder:
            yield from differential.smaller(files, Path(folder))

    def command(self, folder: Path) -> str:
        return _verify(folder, "model.relay")


@dataclass
class Kernels:
    """Random kernels, by all C compilers."""

    name: str = "kernels"

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return kernels.make(seed)

    def check(self, folder: Path, stage: Stage) -> str:
        return kernels.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return kernels.smaller(files)

    def command(self, folder: Path) -> str:
        return ""


@dataclass
class OnnxGraphs:
    """Random ONNX graphs, executed in every way and by ONNX Runtime."""

    everything: bool = True
    name: str = "onnx-graphs"

    def __post_init__(self) -> None:
        for version in onnx_graphs.VERSIONS:
            onnx_graphs.pieces(self.everything, version)

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return onnx_graphs.make(seed, self.everything)

    def check(self, folder: Path, stage: Stage) -> str:
        return onnx_graphs.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return onnx_graphs.smaller(files)

    def command(self, folder: Path) -> str:
        return _verify(folder, "model.onnx")


@dataclass
class ControlFlow:
    """Random branches, loops, scans and sequences, against ONNX Runtime."""

    name: str = "control-flow"

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return control_flow.make(seed)

    def check(self, folder: Path, stage: Stage) -> str:
        return control_flow_runs.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return control_flow_runs.smaller(files)

    def command(self, folder: Path) -> str:
        return ""


@dataclass
class Attention:
    """Random attention layers, against ONNX Runtime."""

    name: str = "attention"

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return attention.make(seed)

    def check(self, folder: Path, stage: Stage) -> str:
        return attention.check(folder, stage)

    def smaller(self, files: Files) -> Iterator[Files]:
        return attention.smaller(files)

    def command(self, folder: Path) -> str:
        return ""


def _verify(folder: Path, model: str) -> str:
    setting = differential.setting_of(folder)
    return (
        f"aotc verify {folder / model} --inputs {folder / 'inputs.npz'} --target {setting.target} "
        f"-O {setting.opt_level} --accuracy {setting.accuracy}"
    )


def _reader(name: str, file: str, module: Any) -> Callable[[bool], Kind]:
    return lambda everything: Models(name, file, module.bases(everything), module.mutated, module.smaller)


def _tflite(everything: bool) -> Kind:
    # the interpreters of TFLite, whose schema writes the models, are asked for late
    mutate_tflite = import_module("tests.fuzz.mutate_tflite")
    return _reader("tflite", "model.tflite", mutate_tflite)(everything)


KINDS: Mapping[str, Callable[[bool], Kind]] = {
    "onnx": _reader("onnx", "model.onnx", mutate_onnx),
    "pytorch": _reader("pytorch", "model.pt2", mutate_pytorch),
    "relay": _reader("relay", "model.relay", mutate_relay),
    "tflite": _tflite,
    "archive": lambda _: Written(),
    "graphs": lambda _: Graphs(),
    "kernels": lambda _: Kernels(),
    "onnx-graphs": OnnxGraphs,
    "control-flow": lambda _: ControlFlow(),
    "attention": lambda _: Attention(),
}


def kinds_of(names: Iterable[str], everything: bool = True) -> dict[str, Kind]:
    """Kinds by name; `everything` makes them begin with all that there is, which takes a while."""
    install_operators_and_passes()
    return {name: KINDS[name](everything) for name in names}
