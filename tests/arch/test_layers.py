# SPDX-License-Identifier: Apache-2.0
"""Imports between packages follow the layers of the table in this file, which is the architecture.

A package may import itself, the rows it lists, the standard library, numpy, and the third-party packages of
THIRD_PARTY.  The longest prefix decides to which row a module belongs.  Lazy imports count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.sources import REEXPORTING_MODULES, SOURCES, imports, modules, tree_of

GRAPH = {"aotc.ir", "aotc.relay", "aotc.relay.op"}
LOOPS = {"aotc.ir", "aotc.tir", "aotc.tir.loops"}
PLANS = LOOPS | {"aotc.tir.plan"}
CONTRACTION = LOOPS | {"aotc.tir.schedule.contraction"}
STAGES = CONTRACTION | {"aotc.tir.schedule.stages"}
ALGORITHMS = STAGES | {"aotc.tir.schedule.algorithms"}
TENSOR = ALGORITHMS | {
    "aotc.tir.device",
    "aotc.tir.interpreter",
    "aotc.tir.passes",
    "aotc.tir.plan",
    "aotc.tir.program_interpreter",
    "aotc.tir.schedule",
    "aotc.tir.threads",
    "aotc.tir.kernel_verifier",
}
IMPORTED = GRAPH | {"aotc.relay.frontend", "aotc.relay.frontend.onnx"}
GRAPH_TOOLS = {"aotc.relay.transform", "aotc.relay.instrument"}
BELOW_DRIVER = (
    GRAPH
    | TENSOR
    | {
        "aotc.runtime",
        "aotc.relay.transform",
        "aotc.relay.instrument",
        "aotc.relay.frontend",
        "aotc.relay.frontend.onnx",
        "aotc.relay.frontend.pytorch",
        "aotc.relay.frontend.tflite",
        "aotc.relay.testing",
        "aotc.relay.backend",
        "aotc_codegen",
        "aotc_runtime_c",
    }
)
SHOWN = {"aotc.checking", "aotc.measuring", "aotc.quantizing", "aotc.reporting"}
LAYER_IMPORTS: dict[str, set[str]] = {
    "aotc.ir": set(),
    "aotc.tir": {"aotc.ir"},
    "aotc.tir.interpreter": LOOPS,
    "aotc.tir.program_interpreter": PLANS | {"aotc.tir.interpreter"},
    "aotc.tir.loops": LOOPS,
    "aotc.tir.plan": LOOPS,
    "aotc.tir.threads": PLANS,
    "aotc.tir.kernel_verifier": LOOPS,
    "aotc.tir.device": PLANS | {"aotc.tir.threads", "aotc.tir.kernel_verifier"},
    "aotc.tir.passes": PLANS | {"aotc.tir.device", "aotc.tir.threads", "aotc.tir.kernel_verifier"},
    "aotc.tir.schedule": ALGORITHMS,
    "aotc.tir.schedule.stages": STAGES,
    "aotc.tir.schedule.contraction": CONTRACTION,
    "aotc.tir.schedule.algorithms": ALGORITHMS,
    "aotc.relay": {"aotc.ir"},
    "aotc.runtime": {"aotc.ir", "aotc_runtime_c"},
    "aotc.relay.op": {"aotc.ir", "aotc.tir", "aotc.tir.schedule.algorithms", "aotc.relay"},
    "aotc_codegen": PLANS | {"aotc_runtime_c"},
    "aotc_runtime_c": set(),
    "aotc.relay.transform": GRAPH
    | {"aotc.tir", "aotc.tir.passes", "aotc.tir.schedule.algorithms", "aotc.tir.schedule.contraction"},
    "aotc.relay.instrument": GRAPH,
    "aotc.relay.frontend": GRAPH,
    "aotc.relay.frontend.onnx": GRAPH | {"aotc.relay.frontend"},
    "aotc.relay.frontend.pytorch": GRAPH | {"aotc.relay.frontend"},
    "aotc.relay.frontend.tflite": GRAPH | {"aotc.relay.frontend"},
    "aotc.relay.testing": GRAPH,
    "aotc.relay.backend": GRAPH | {"aotc.tir", "aotc.tir.plan", "aotc.tir.schedule"},
    "aotc.driver": BELOW_DRIVER,
    "aotc.checking": IMPORTED | TENSOR | {"aotc.runtime", "aotc_codegen", "aotc.driver"},
    "aotc.measuring": IMPORTED | TENSOR | {"aotc.runtime", "aotc_codegen", "aotc.driver", "aotc.checking"},
    "aotc.quantizing": IMPORTED | {"aotc.runtime", "aotc.driver", "aotc.checking", "aotc.measuring"},
    "aotc.reporting": IMPORTED | TENSOR | GRAPH_TOOLS | {"aotc.runtime", "aotc.driver"},
    "aotc.packaging": {"aotc.ir", "aotc.tir", "aotc.runtime", "aotc_codegen", "aotc.driver"},
    "aotc.topi": {"aotc.ir"},
    "aotc.relay_api": BELOW_DRIVER | {"aotc.driver"},
    "aotc.cli": SHOWN | {"aotc.packaging", "aotc.driver", "aotc.ir", "aotc"},
    "aotc.__main__": {"aotc.cli"},
}
FACADES = {
    "aotc",
    "aotc._ffi",
    "aotc._ffi.base",
    "aotc.contrib",
    "aotc.contrib.debugger",
    "aotc.contrib.debugger.debug_executor",
    "aotc.contrib.external",
    "aotc.contrib.graph_executor",
    "aotc.contrib.utils",
    "aotc.error",
    "aotc.instrument",
    "aotc.ir",
    "aotc.ir.supply",
    "aotc.nd",
    "aotc.onnx_backend",
    "aotc.relay",
    "aotc.relay.annotation",
    "aotc.relay.build_module",
    "aotc.relay.dataflow_pattern",
    "aotc.relay.frontend",
    "aotc.relay.image",
    "aotc.relay.ml",
    "aotc.relay.nn",
    "aotc.relay.prelude",
    "aotc.relay.qnn",
    "aotc.relay.qnn.op",
    "aotc.relay.qnn.op.canonicalizations",
    "aotc.relay.qnn.transform",
    "aotc.relay.ty",
    "aotc.relay.vision",
    "aotc.relay.vm",
    "aotc.runtime.name_transforms",
    "aotc.target",
    "aotc.target.target",
    "aotc.te",
    "aotc.testing",
    "aotc.transform",
}
"""Modules of public names: they may import the driver and below, and nobody inside imports them."""
THIRD_PARTY = {
    "aotc.ir": {"ml_dtypes"},
    "aotc.runtime": {"_cffi_backend", "cffi", "ml_dtypes"},
    "aotc.relay.op": {"ml_dtypes"},
    "aotc.relay": {"ml_dtypes"},
    "aotc.tir": {"ml_dtypes"},
    "aotc.relay.frontend.onnx": {"onnx", "google"},
    "aotc.relay.frontend.pytorch": {"torch"},
    "aotc.relay.frontend.tflite": {"flatbuffers", "tflite"},
    "aotc_codegen": {"jinja2"},
    "aotc.driver": {"onnx", "tflite", "tomli", "torch"},
    "aotc.checking": {"ai_edge_litert", "onnx", "onnxruntime", "ml_dtypes", "tflite", "tflite_micro", "torch"},
    "aotc.measuring": {"onnx", "jinja2", "distributed"},
    "aotc.quantizing": {"onnx", "onnxruntime"},
    "aotc.reporting": {"jinja2", "rich"},
    "aotc.relay_api": {"onnx"},
    "aotc.packaging": {"jinja2", "tomli"},
    "aotc.cli": {"click", "rich"},
    "aotc": {"onnx"},
}


def row_of(module: str) -> str | None:
    """Return the key of LAYER_IMPORTS that a module belongs to; None for facades and modules outside the project."""
    if module in FACADES:
        return None
    rows = [row for row in LAYER_IMPORTS if (module + ".").startswith(row + ".")]
    return max(rows, key=len) if rows else None


def allowed(here: str, name: str) -> bool:
    """Whether a module of row `here` may import `name`."""
    top = name.split(".")[0]
    if top not in SOURCES:
        return top in sys.stdlib_module_names or top in {"numpy", "typing_extensions", *THIRD_PARTY.get(here, ())}
    there = row_of(name)
    if there is None:  # a facade, or a name such as aotc.__version__
        return here == "aotc.cli" and name == "aotc.__version__"
    return there == here or there in LAYER_IMPORTS[here]


@pytest.mark.always
@pytest.mark.parametrize(("module", "path"), [pytest.param(*m, id=m[0]) for m in modules().items()])
def test_imports_point_down(module: str, path: Path) -> None:
    here = row_of(module)
    if here is None:
        assert module in FACADES or module.startswith("aotc."), f"{module} belongs to no row"
        return
    bad = [
        f"{path.name}:{line}: {here} may not import {name}"
        for line, name in imports(tree_of(path))
        if not allowed(here, name)
    ]
    assert not bad, "\n".join(bad)


def test_every_module_has_a_row() -> None:
    lost = [m for m in modules() if row_of(m) is None and m not in FACADES]
    assert not lost


def test_facades_are_not_imported_inside() -> None:
    def targets(path: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module in FACADES.difference(REEXPORTING_MODULES):
                yield from (f"{node.module}.{a.name}" for a in node.names)

    known = modules().keys() | {"aotc.__version__"}
    bad = [f"{m} imports {t}" for m, p in modules().items() for t in targets(p) if t not in known]
    assert not bad, "\n".join(bad)
