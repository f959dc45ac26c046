# SPDX-License-Identifier: Apache-2.0
"""The whole road in one call: a model to an emitted project and a library.

model = compile("net.onnx", output="build/net", dims={"batch": 1})
model.session().run(None, {"input": array})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from aotc_codegen.c.names import model_identifier
from aotc_codegen.c.project import emit

from aotc.driver.build import build_library, record_checksum
from aotc.driver.cache import code_digest, default_cache, digest
from aotc.driver.importing import import_exported, is_exported_program, is_relay_text, read_relay_text
from aotc.driver.observe import PassList, require_passes
from aotc.driver.place import check_destination, staged
from aotc.driver.replay import keeping_failures
from aotc.driver.toolchain import Toolchain, find_toolchain, resolve_target
from aotc.driver.tuning_store import Recorded
from aotc.driver.wiring import install
from aotc.ir.budget import spending
from aotc.ir.diagnostics import AotcError, AotcTypeError, nearest
from aotc.ir.memo import remembering
from aotc.ir.transform import PassContext
from aotc.relay.backend.lower import lower_calls
from aotc.relay.binding import bind_params_by_name
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.module import IRModule
from aotc.relay.transform.pipeline import optimize, require_lowering
from aotc.runtime.forks import ScratchDirectory
from aotc.runtime.session import Session, load
from aotc.tir.passes import scheduled
from aotc.tir.plan.program import Program
from aotc.tir.schedule.contraction.choice import choosing
from aotc.tir.target import Target

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

ACCURACIES = ("fast", "strict")
IMPORTING, OPTIMISING, LOWERING = "importing the model", "optimising the graph", "making kernels"
PLANNING, WRITING, BUILDING = "planning memory", "writing the C project", "compiling the C project"
"""The stages of a compilation."""
Progress = Callable[[str], None]
"""Told the name of each stage as it begins."""


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """An emitted project.  `library` is the shared library, None where only sources were asked for."""

    path: Path
    library: Path | None
    metadata: Mapping[str, Any]
    _temporary: ScratchDirectory | None = field(default=None, repr=False)

    def session(self) -> Session:
        """The library, loaded."""
        if self.library is None:
            raise AotcError("no-library", f"{self.path} holds sources only", hint="compile without --no-build")
        session = load(self.library)
        session.keep_alive = self._temporary
        return session


def import_model(
    model: str | Path | ModelProto | ExportedProgram | IRModule,
    *,
    params: Mapping[str, np.ndarray[Any, Any]] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
) -> IRModule:
    """A model in any accepted form as a graph module; see `compile` for the arguments."""
    install()
    if not isinstance(model, (str, Path, IRModule)) and not hasattr(model, "graph"):
        kinds = "a path, a ModelProto, an ExportedProgram or an IRModule"
        raise AotcTypeError("model", f"a model is {kinds}, not {type(model).__name__}")
    with spending(config):
        module = _imported(model, input_shapes, dims)
    return module.with_function("main", bind_params_by_name(module.main, params)) if params else module


def _imported(
    model: str | Path | ModelProto | ExportedProgram | IRModule,
    input_shapes: Mapping[str, Sequence[int]] | None,
    dims: Mapping[str, int] | None,
) -> IRModule:
    if isinstance(model, IRModule) or is_relay_text(model):
        if input_shapes or dims:
            raise AotcError("pin-module", "input_shapes and dims pin ONNX models; a module states its own types")
        return model if isinstance(model, IRModule) else read_relay_text(model)
    if is_exported_program(model):
        if input_shapes:
            raise AotcError("pin-exported", "an exported program states its own shapes", hint="pin symbols with dims")
        return import_exported(model, dict(dims or {}))
    return from_onnx(model, shape=dict(input_shapes or {}), dims=dict(dims or {}))


def model_name(model: object, name: str | None) -> str:
    """The C name of a model: the one given, else made from the file name."""
    if name is not None:
        made = model_identifier(name)
        if made != name:
            raise AotcError("name", f"{name!r} will not do as the name of a model in C", hint=f"for example: {made}")
        return name
    return model_identifier(Path(model).stem) if isinstance(model, (str, Path)) else "model"


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How graphs are optimised; the fields are arguments of `compile`.

    Raises AotcError for a level, an accuracy, a pass or a configuration key that does not exist.
    """

    opt_level: int = 3
    accuracy: str = "fast"
    disabled_pass: tuple[str, ...] = ()
    threads: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.opt_level not in range(4):
            raise AotcError("opt-level", f"opt_level must be 0, 1, 2 or 3, not {self.opt_level}")
        if self.accuracy not in ACCURACIES:
            hint = nearest(self.accuracy, ACCURACIES) or f"known: {', '.join(ACCURACIES)}"
            raise AotcError("accuracy", f"unknown accuracy {self.accuracy!r}", hint=hint)
        require_passes(self.disabled_pass)
        self.context(())  # looks at the configuration

    def context(self, instruments: Iterable[Any]) -> PassContext:
        """The pass context that they mean."""
        config = dict(self.config)
        if self.accuracy == "strict":
            config["relay.AlterOpLayout.winograd"] = False
        return PassContext(
            self.opt_level, disabled_pass=self.disabled_pass, instruments=list(instruments), config=config
        )


def compile_programs(
    module: IRModule,
    target: Target,
    name: str,
    *,
    options: PipelineOptions,
    instruments: Iterable[Any] = (),
    progress: Progress = lambda _: None,
) -> list[Program]:
    """A module through the pass pipeline and lowering, memory planned: everything before C text.

    The program for each version of a target, else for the target alone: one graph, with kernels for each.
    """
    progress(OPTIMISING)
    threads = options.threads and not target.is_scalar
    with options.context(instruments) as context, spending(options.config):
        require_lowering(context)
        optimized = optimize(module, target)
        progress(LOWERING)
        versions = target.versions or (target,)
        programs = [lower_calls(optimized, version, name) for version in versions]
        progress(PLANNING)
        return [scheduled(program, version, threads) for program, version in zip(programs, versions, strict=True)]


def compile(
    model: str | Path | ModelProto | ExportedProgram | IRModule,
    *,
    output: str | Path | None = None,
    target: str | Target = "host",
    name: str | None = None,
    params: Mapping[str, np.ndarray[Any, Any]] | None = None,
    opt_level: int = 3,
    accuracy: str = "fast",
    disabled_pass: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    instruments: Iterable[Any] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    cc: str | None = None,
    cflags: Sequence[str] = (),
    cc_timeout: float | None = None,
    build: bool = True,
    cache: bool = True,
    tuning: str | Path | bool | None = None,
    threads: bool = True,
    progress: Progress = lambda _: None,
) -> CompiledModel:
    """Compile a model to C and, with `build`, to a library.

    model         a path or ModelProto of ONNX, a .pt2 file or ExportedProgram of PyTorch, an IRModule or a .relay file
    output        directory of the project; a temporary one, removed with the result, for None
    target        "host", or a name of `aotc.tir.target.TARGETS`
    name          prefix of every C symbol; made from the file name for None
    params        values for some inputs, baked in
    opt_level     0 (no graph optimisation) to 3
    accuracy      "fast", or "strict": no algorithm that rounds more, or spreads infinities, than operators do
    disabled_pass passes to leave out, by name; FuseOps and ExpandOps make the kernels and cannot be left out
    config        options of passes and limits of the compiler (`aotc.ir.budget`) by key, as `PassContext` takes them
    instruments   pass instruments, see `aotc.ir.instrument`
    input_shapes, dims   shapes of inputs with dynamic dimensions, by input name; values of symbolic ones, by symbol
    cc, cflags    the C compiler (see `find_toolchain`) and flags after the default ones
    cc_timeout    seconds that one run of the C compiler may take, before it is ended; half an hour for None
    cache         take objects that were compiled before from the user's cache (see `aotc.driver.cache`)
    tuning        file of records of `aotc tune`; None for the user's, False for none
    threads       make kernels that threads can share, for targets with vectors; their number is chosen at `load`
    progress      called with the name of each stage as it begins

    Raises AotcError for what is wrong with model, arguments, machine or destination; then nothing is left behind.
    """
    resolved = resolve_target(target)
    options = PipelineOptions(opt_level, accuracy, tuple(disabled_pass), threads, config or {})
    toolchain = find_toolchain(cc, cflags, cache=cache, target=resolved, seconds=cc_timeout) if build else None
    c_name = model_name(model, name)
    if output is not None:
        check_destination(Path(output))
    progress(IMPORTING)
    module = import_model(model, params=params, input_shapes=input_shapes, dims=dims, config=options.config)
    seen = [*instruments, passes := PassList()]
    temporary = ScratchDirectory("aotc-") if output is None else None
    path = Path(temporary.name) / c_name if temporary is not None else Path(output or ".")
    with keeping_failures(), remembering_kernels(Recorded(tuning), cache):
        programs = compile_programs(module, resolved, c_name, options=options, instruments=seen, progress=progress)
        metadata, library = _write(programs, path, resolved, passes.names, toolchain, progress)
    return CompiledModel(path, library, metadata, temporary)


@contextmanager
def remembering_kernels(chooser: Recorded, cache: bool) -> Iterator[None]:
    """Kernels as the chooser has them, and those made before from the user's cache, if that is wanted."""
    kept = default_cache() if cache else None
    salt = digest(code_digest(), chooser.digest) if kept is not None else ""
    with choosing(chooser), remembering(kept, salt):
        yield
    if kept is not None and kept.misses:
        kept.trim()


def _write(
    programs: Sequence[Program],
    path: Path,
    target: Target,
    passes: Sequence[str],
    toolchain: Toolchain | None,
    progress: Progress,
) -> tuple[dict[str, Any], Path | None]:
    """The project in its place, and the library if there is a toolchain; nothing where something fails."""
    with staged(path) as work:
        progress(WRITING)
        metadata = emit(programs[0], work, target=target, version=version("aotc"), passes=passes, others=programs[1:])
        library = None
        if toolchain is not None:
            progress(BUILDING)
            library = build_library(work, metadata, toolchain, target)
            record_checksum(work, metadata, library)
    return metadata, path / library.relative_to(work) if library is not None else None
