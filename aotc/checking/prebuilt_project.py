# SPDX-License-Identifier: Apache-2.0
"""A project that was compiled and built earlier, loaded as a compiled model after a check that it
belongs to the given model.

In: the directory of an emitted project (or a library file) and the module of the model.  Out: a
`CompiledModel`.

    load_prebuilt_project(Path("build/net"), interface_of_compilation(work), target).session()
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from aotc_codegen.c.project_metadata import APPROXIMATE_BOUND, BOUND

from aotc.driver.pipeline import Compilation, CompiledModel
from aotc.driver.toolchain import resolve_target
from aotc.ir import AotcError, frozen, is_static, option_text, tensor_types
from aotc.ir.option_description import FULL_PRECISION
from aotc.relay.graph_api import infer_module, type_of
from aotc.relay.module import output_names_or_default
from aotc.runtime.library import METADATA_FILE_NAME, Library, all_libraries_in_project, read_project_metadata
from aotc.runtime.run_sizes import RunSizes
from aotc.runtime.tensor_info import TensorInfo
from aotc.tir import Target


@frozen
class ModelInterface:
    """What callers of a model see: each input and output by name, data type and extents, which are numbers or formulas
    over the sizes of a run; and the sizes by name, with the text of their ranges.
    """

    inputs: Sequence[tuple[str, str, Sequence[int | str]]]
    outputs: Sequence[tuple[str, str, Sequence[int | str]]]
    sizes: Mapping[str, str] = field(default_factory=dict)


def interface_of_compilation(work: Compilation) -> ModelInterface:
    """Return the interface that a project of a compilation has."""
    main = infer_module(work.module).main
    types = [*(type_of(p) for p in main.params), type_of(main.body)]
    if work.tiers is not None or not all(is_static(t.shape) for ty in types for t in tensor_types(ty)):
        program = work.scheduled_programs[0]
        inputs, outputs = (
            [(s.name, str(s.dtype), program.extents_or_formulas(s)) for s in side]
            for side in (program.inputs, program.outputs)
        )
        return ModelInterface(inputs, outputs, {name: r.description for name, r in program.sizes.items()})
    kept = {name for pair in work.state for name in (pair.past, pair.present)}
    results = tensor_types(type_of(main.body))
    named_results = zip(output_names_or_default(work.module, len(results)), results, strict=True)
    named_params = ((p.name, ty) for p in main.params for ty in tensor_types(type_of(p)))
    of_params, of_results = (
        [(name, str(ty.dtype), ty.static_shape) for name, ty in named if name not in kept]
        for named in (named_params, named_results)
    )
    return ModelInterface(of_params, of_results)


def load_prebuilt_project(
    path: Path, interface: ModelInterface, target: Target, precision: str = FULL_PRECISION
) -> CompiledModel:
    """Return the most recently built library of a project, by `aotc compile` or by `make`, as a
    CompiledModel.

    path      directory of the project, or a library file
    interface inputs, outputs and sizes of the model that the project must have been compiled from
    target    target of the returned CompiledModel
    precision data type of the operands of products by weights, which must be that of the project

    The result has the error bound of float32 products, whatever the precision of the project.

    Raise AotcError: code "load" if `path` is no project, is not built, or is for another machine;
    code "project" for a library outside of its project, and if the project's inputs, outputs or
    precision differ from the model's.
    """
    metadata = _read_project_metadata(path)
    if path.is_file() and not metadata:
        text = f"{path} is not in the folder of its project, whose {METADATA_FILE_NAME} states what it was compiled for"
        advice = "give the folder of the project, or a library in it, with " + option_text("project")
        raise AotcError("project", text, hint=advice)
    _require_precision_of_project(path, metadata, precision)
    library = _newest_project_library(path, metadata)
    loaded_library = Library(library)
    problems = [
        *_input_or_output_type_mismatches("input", loaded_library.inputs, interface.inputs),
        *_input_or_output_type_mismatches("output", loaded_library.outputs, interface.outputs),
        *_size_mismatches(loaded_library.sizes, interface.sizes),
    ]
    if problems:
        hint = "compile the model anew, or state the shapes that the project was compiled for ("
        hint += option_text("dims") + ", " + option_text("input_shapes") + ")"
        raise AotcError(
            "project", f"{path} is not a project of this model: {problems[0]}", notes=problems[1:], hint=hint
        )
    bound = APPROXIMATE_BOUND if metadata.get("error_bound") == APPROXIMATE_BOUND else BOUND
    return CompiledModel(path, library, metadata | {"error_bound": bound}, target)


def _require_precision_of_project(path: Path, metadata: Mapping[str, Any], precision: str) -> None:
    """Raise AotcError (code "project") if a project was compiled for another precision, by whose errors
    its results are judged.
    """
    actual = metadata.get("precision", FULL_PRECISION)
    if metadata and actual != precision:
        text = f"{path} was compiled with the precision {actual}, not {precision}"
        raise AotcError("project", text, hint="compare with " + option_text("precision", actual))


def _read_project_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a project directory, or of the project that contains a library file;
    empty if there is none.
    """
    folders = [path] if path.is_dir() else path.absolute().parents[:2]
    return next((metadata for folder in folders if (metadata := read_project_metadata(folder))), {})


def _newest_project_library(path: Path, metadata: dict[str, Any]) -> Path:
    """Return the newest library file of a project directory; a path that is a file is returned
    unchanged.

    Raise AotcError (code "load") if there is no project or no library, or if the project is for a
    bare-metal target.
    """
    if not path.is_dir():
        return path
    if not metadata:
        hint = option_text("project") + " takes the directory of a compiled project, or the library in it"
        raise AotcError(
            "load", f"{path} is not the project of a compiled model: it has no {METADATA_FILE_NAME}", hint=hint
        )
    libraries = all_libraries_in_project(path)
    if libraries:
        return max(libraries, key=lambda file: file.stat().st_mtime_ns)
    stated = metadata.get("target")
    if isinstance(stated, str) and resolve_target(stated).bare:
        text = f"{path} is a project of firmware for {stated}: no library of it runs on this machine"
        hint = "compile with " + option_text("selftest", True) + " to compare on the board, or with "
        hint += option_text("target", "c") + " to compare the same model here"
        raise AotcError("load", text, hint=hint)
    command = f"make -C {shlex.quote(str(path))}"
    raise AotcError("load", f"{path} holds no library: build the project first", hint=f"run `{command}`")


def _input_or_output_type_mismatches(
    input_or_output: str, infos: Sequence[TensorInfo], expected: Sequence[tuple[str, str, Sequence[int | str]]]
) -> list[str]:
    """Return messages about inputs or outputs (`input_or_output`) whose name, shape or dtype in a
    library differs from the model's.
    """
    have, want = [i.name for i in infos], [name for name, *_ in expected]
    if have != want:
        return [
            f"its {input_or_output}s are {', '.join(map(repr, have))}, those of the model {', '.join(map(repr, want))}"
        ]
    mismatches = []
    for info, (name, dtype, shape) in zip(infos, expected, strict=True):
        # quantized integers may replace the model's real numbers
        alike = dtype == str(info.dtype) or info.quantization is not None
        if not alike or list(shape) != list(info.shape):
            found, wanted = (f"{d}[{', '.join(map(str, s))}]" for d, s in ((info.dtype, info.shape), (dtype, shape)))
            mismatches.append(f"{input_or_output} {name!r} is {found}, in the model {wanted}")
    return mismatches


def _size_mismatches(sizes: RunSizes | None, expected: Mapping[str, str]) -> list[str]:
    """Return messages about sizes of a run whose range in a library differs from that in the model."""
    ranges = {} if sizes is None else sizes.ranges
    have = {name: r.description for name, r in ranges.items()}
    return [
        f"the size {name} is {have.get(name, 'not known')}, in the model {text}"
        for name, text in expected.items()
        if have.get(name) != text
    ]
