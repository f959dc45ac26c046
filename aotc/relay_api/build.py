# SPDX-License-Identifier: Apache-2.0
"""`relay.build`: compile a module to a library, with Relay's interface to it.

with PassContext(opt_level=3):
    lib = build(mod, "llvm", params=params)
lib["default"](cpu())                                # an executor
lib.export_library("deploy_lib.tar")                 # for load_module, in any process
"""

import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from aotc_codegen.c.c_identifiers import c_model_identifier

from aotc.driver.cuda_emulation import is_gpu_emulated
from aotc.driver.import_model import bind_params_as_constants
from aotc.driver.pipeline import Compilation, CompiledModel
from aotc.driver.temporary_folders import open_output_file
from aotc.ir import AotcError, AotcTypeError, NDArray, PassContext, rename_options_in_errors
from aotc.relay.backend import Executor, Runtime
from aotc.relay.graph_api import Function, IRModule
from aotc.relay.text.printer import astext
from aotc.relay_api.kernel_call_graph import compile_graph_interpreter, constant_names_in_graph, tvm_graph_json
from aotc.relay_api.target import Target, check_target_host
from aotc.runtime.graph_executor import BuiltInConstant
from aotc.runtime.module import MODEL_NAME_PREFIX, CompiledLibrary
from aotc.runtime.params import save_param_dict
from aotc.tir.target import Target as MachineTarget


class ExecutorFactory:
    """The result of `build`: the compiled library, its graph and its parameters.

    `factory[name](device)` creates an executor, `factory["debug_create"](name, device)` one that
    retains every intermediate tensor (for `GraphModuleDebug`). The result can also be unpacked:
    `graph, lib, params = factory`.

    ir_mod        the module, with parameters bound
    lib           the compiled library, loaded
    libmod_name   name under which the model was built
    target        target for which it was compiled
    """

    def __init__(self, work: Compilation, library: CompiledLibrary, project: Path) -> None:
        self.ir_mod, self.target, self.libmod_name = work.module, work.target, library.name
        self._program, self.lib, self._project = work.scheduled_programs[0], library, project

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the function that creates executors of the model `name`. Raises AotcError for
        another name.
        """
        return self.lib[name]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.get_graph_json(), self.get_lib(), self.get_params()))

    def __repr__(self) -> str:
        return f"<ExecutorFactory {self.libmod_name!r} for {self.target.name}>"

    def get_graph_json(self) -> str:
        """Return the kernel calls as JSON text in the format of TVM's graph executor; see
        `aotc.relay_api.kernel_call_graph`.
        """
        return tvm_graph_json(self._program)

    @property
    def graph_json(self) -> str:
        """The kernel calls as JSON text in the format of TVM's graph executor, as from
        `get_graph_json`.
        """
        return self.get_graph_json()

    def get_lib(self) -> CompiledLibrary:
        """Return the compiled library, loaded."""
        return self.lib

    def get_params(self) -> dict[str, NDArray]:
        """Return the constants of the compiled model, in the layout of the kernels, by their names
        in the graph (p0, p1, ...).
        """
        return {name: BuiltInConstant(storage.data) for storage, name in constant_names_in_graph(self._program).items()}

    @property
    def params(self) -> dict[str, NDArray]:
        """The constants of the compiled model by their names in the graph, as from `get_params`."""
        return self.get_params()

    def export_library(self, file_name: str | Path) -> None:
        """Write the model to a file for `load_module`.

        .so    the shared library
        .tar   the C project with the library, the graph, the parameters and the module's text;
               `make` in the unpacked archive rebuilds it. Equal models give equal bytes

        Raises AotcError (code "export") for another suffix and if the file cannot be written.
        """
        file = Path(file_name)
        if file.suffix not in (".so", ".tar"):
            raise AotcError("export", f"cannot export to {file.name!r}", hint="the name ends in .so or .tar")
        with open_output_file(file, "export") as out:
            if file.suffix == ".tar":
                self._write_archive(out)
            else:
                out.write(self.lib.path.read_bytes())

    def _write_archive(self, file: IO[bytes]) -> None:
        name = self.libmod_name
        extra = {
            f"executor-config/graph/{name}.graph": self.get_graph_json().encode(),
            f"parameters/{name}.params": bytes(save_param_dict(self.get_params())),
            f"src/{name}.relay": astext(self.ir_mod, show_meta_data=False).encode(),
        }
        sources = {str(p.relative_to(self._project)): p for p in self._project.rglob("*") if p.is_file()}
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted([*sources, *extra]):
                data = extra[path] if path in extra else sources[path].read_bytes()
                # omit time and owner, so that equal models give equal archives
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(data), 0o755 if path.endswith(".so") else 0o644
                tar.addfile(entry, io.BytesIO(data))


def require_ir_module(value: object, error_code: str) -> None:
    """Raise AotcTypeError (code `error_code`) unless a value is an IRModule."""
    if not isinstance(value, IRModule):
        hint = "IRModule.from_expr makes one of a function"
        raise AotcTypeError(error_code, f"expected an IRModule, not {type(value).__name__}", hint=hint)


def _require_distinct_input_names(module: IRModule) -> None:
    """Raise AotcError (code "build") if two inputs of @main have equal names, since callers pass
    inputs by name.
    """
    counts = Counter(p.name for p in module["main"].params)
    if twice := [repr(name) for name, count in counts.items() if count > 1]:
        raise AotcError("build", f"several inputs of @main have the name {', '.join(twice)}")


def compile_static_module(
    module: IRModule, target: MachineTarget, c_identifier: str
) -> tuple[Compilation, CompiledModel]:
    """Compile a module under the current pass context and return the compilation and the compiled
    model. Raises AotcError (code "build") if the result holds no tensor.
    """
    emulated = target.gpu is not None and is_gpu_emulated()
    work = Compilation(module, target, c_identifier, PassContext.current(), emulated=emulated)
    # front ends name the shapes of inputs in this way
    with rename_options_in_errors(input_shapes="shape"), work.activate_cache_tilings_and_reports():
        if not work.lowered_programs[0].outputs:
            raise AotcError("build", "the result of @main holds no tensor: there is nothing to compute")
        return work, work.emit_project_and_build_library()


def require_single_target(target: Any) -> MachineTarget:
    """Return the target that is given, alone or in a list or mapping of equal ones; for None return
    the target of the enclosing `with target:`.

    Raises AotcError (code "target") if there is no target, or if several differ.
    """
    given = target if target is not None else MachineTarget.current()
    if given is None:
        raise AotcError("target", "no target is given", hint='"llvm" compiles for the processor of this machine')
    if not isinstance(given, (Sequence, Mapping)) or isinstance(given, str):
        return Target(given)
    several = list(map(Target, given.values() if isinstance(given, Mapping) else given))
    if not several or any(t != several[0] for t in several):
        names = ", ".join(t.name for t in several) or "none"
        raise AotcError("target", f"a model is compiled for one target, not for {names}")
    return several[0]


def configured_executor_threads(context: PassContext) -> int:
    """Return the number of threads of executors that the pass context sets (`compile.threads`)."""
    return int(context.get_config("compile.threads", 1)) or 1


def optimize(
    mod: IRModule | Function,
    target: str | MachineTarget | Sequence[Any] | Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> tuple[IRModule, dict[str, NDArray]]:
    """Return the module after the passes of the current context, as `build` compiles it. The
    returned parameters are empty: they are constants in the module.

    Raises AotcError as `build` does.
    """
    module = IRModule.from_expr(mod) if isinstance(mod, Function) else mod
    require_ir_module(module, "build")
    work = Compilation(
        bind_params_as_constants(module, params),
        require_single_target(target),
        f"{MODEL_NAME_PREFIX}default",
        PassContext.current(),
    )
    with work.activate_cache_tilings_and_reports():
        return work.optimized_graph, {}


def build(
    ir_mod: IRModule | Function,
    target: str | MachineTarget | Sequence[Any] | Mapping[str, Any] | None = None,
    target_host: str | MachineTarget | None = None,
    *,
    executor: Executor | None = None,
    runtime: Runtime | None = None,
    params: Mapping[str, Any] | None = None,
    mod_name: str = "default",
) -> ExecutorFactory:
    """Compile a module, or a function as its @main, under the current pass context.

    target     see `aotc.relay_api.target.Target`; may be a list or mapping of equal targets; the
               default is that of `with target:`
    target_host   target of the code that calls kernels, which every target includes: a target for the
               same machine
    executor, runtime   the library supports all of them; of their options only the defaults, and
               `link-params`
    params     values of parameters of @main by name; they become constants, the other parameters
               are inputs
    mod_name   name by which the result provides its executor

    Raises AotcError for a missing or unknown target, a host of another machine, options of the
    executor or runtime that are not supported, unknown parameters and wrong values of them,
    inputs of equal names, programs that have no static form, and a name that cannot be part of C
    identifiers.
    """
    if isinstance(ir_mod, Function):
        ir_mod = IRModule.from_expr(ir_mod)
    require_ir_module(ir_mod, "build")
    if params is not None and not isinstance(params, Mapping):
        raise AotcTypeError("build", f"params must be a mapping from names to arrays, not {type(params).__name__}")
    for choice, kind in ((executor, Executor), (runtime, Runtime)):
        if choice is not None and not isinstance(choice, kind):
            text = f"expected a {kind.__name__}, not {type(choice).__name__}"
            raise AotcTypeError("build", text, hint=f"relay.backend.{kind.__name__}(name)")
        if choice is not None:
            choice.check_options_are_supported()
    machine = require_single_target(target)
    check_target_host(machine, target_host)
    if machine.versions:
        hint = f"aotc.compile makes libraries of several; here: {', '.join(v.name for v in machine.versions)}"
        raise AotcError("target", f"relay.build compiles for one instruction set, not for {machine.name}", hint=hint)
    c_name = f"{MODEL_NAME_PREFIX}{mod_name}"
    if not isinstance(mod_name, str) or not mod_name or c_model_identifier(c_name) != c_name:
        raise AotcError("name", f"a module cannot be called {mod_name!r}", hint="letters, digits and underscores")
    module = bind_params_as_constants(ir_mod, params)
    _require_distinct_input_names(module)
    work, compiled_model = compile_static_module(module, machine, c_name)
    threads = configured_executor_threads(work.context)
    debug = None if machine.gpu is not None else cache(lambda: compile_graph_interpreter(work))
    library = CompiledLibrary(compiled_model.built, compiled_model.temporary, threads=threads, debug=debug)
    return ExecutorFactory(work, library, compiled_model.path)
