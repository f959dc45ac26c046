# SPDX-License-Identifier: Apache-2.0
"""Adapters that run one model with aotc or with another installed inference implementation
("rival").

Input: a model with static input shapes.  Output: a `Contestant` for each implementation, ready to
run repeatedly on fixed buffers.

entrant = BenchmarkModel(Path("net.onnx"), {"x": array}, Path(scratch))
contestant = load_rival("openvino", entrant, threads=2)
contestant.run()
contestant.outputs()

All rivals compute in float32: options that would choose a narrower type are switched off.
"""

import importlib
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.checking.input_generation import Arrays
from aotc.driver.import_model import load_exported_program
from aotc.driver.subprocesses import run_program
from aotc.ir import AotcError, Array, frozen, require_known_name
from aotc.runtime.session import load

#: Time limit of a conversion by pnnx, in seconds.
MAX_CONVERSION_SECONDS: Final = 180
#: Largest number of characters quoted of an implementation's error message.
MAX_ERROR_CHARACTERS: Final = 300


@frozen
class Contestant:
    """An implementation with bound inputs.

    name       "aotc", or a key of RIVAL_LOADERS
    threads    number of threads that it uses
    version    version of the implementation, and of the converter that it needed
    run        runs the model once on the bound inputs
    outputs    returns the outputs of the last run in the model's order; dimensions of extent 1 may be missing
    load       milliseconds to load the model, without earlier conversions of files
    first      milliseconds of the first run
    memory     growth of the process in bytes during both, an upper bound; None if the system does not report it
    """

    name: str
    threads: int
    version: str
    run: Callable[[], object]
    outputs: Callable[[], list[Array]]
    load: float = 0.0
    first: float = 0.0
    memory: int | None = None


#: Version of an implementation, function that runs it, and function that returns its outputs.
LoadedImplementation: TypeAlias = tuple[str, Callable[[], object], Callable[[], list[Array]]]


def load_and_time_first_run(
    name: str, threads: int, load_implementation: Callable[[], LoadedImplementation]
) -> Contestant:
    """Load a model in one implementation and run it once; record the times and the growth of
    memory.
    """
    before = _resident_memory_bytes("VmRSS", forget_peak=True)
    begin = time.perf_counter()
    contestant = Contestant(name, threads, *load_implementation())
    ready = time.perf_counter()
    contestant.run()
    end = time.perf_counter()
    peak = _resident_memory_bytes("VmHWM")
    memory = None if before is None or peak is None else max(0, peak - before)
    return replace(contestant, load=1e3 * (ready - begin), first=1e3 * (end - ready), memory=memory)


def _resident_memory_bytes(status_field: str, *, forget_peak: bool = False) -> int | None:
    """Return this process's resident memory ("VmRSS") or its peak since the last reset ("VmHWM") in
    bytes; None off Linux.

    forget_peak    reset the peak first
    """
    try:
        if forget_peak:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{status_field}:")), None)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model with inputs, for all implementations to run.

    path      path of an ONNX model with static input shapes, or of a .pt2 or .tflite file
    inputs    arrays by name, in the model's order
    scratch   directory for converted models
    """

    path: Path
    inputs: Arrays
    scratch: Path

    @property
    def is_onnx_model(self) -> bool:
        return self.path.suffix not in (".pt2", ".tflite")

    @property
    def folder_with_pnnx_conversion(self) -> Path:
        """The folder of the model converted by pnnx: m.ncnn.param, m.ncnn.bin, m_ncnn.py,
        m_pnnx.py.

        Raises AotcError (code "rival") if the conversion fails.
        """
        if self._pnnx_conversion_error:
            raise AotcError("rival", self._pnnx_conversion_error)
        return self.scratch / "pnnx"

    @cached_property
    def _pnnx_conversion_error(self) -> str:
        """Convert the model with pnnx, once; return the reason of a failure, "" on success."""
        if importlib.util.find_spec("pnnx") is None:
            return "it reads ONNX models through pnnx, which is not installed (pip install pnnx)"
        folder = self.scratch / "pnnx"
        folder.mkdir()
        (folder / "m.onnx").write_bytes(self.path.read_bytes())
        command = (sys.executable, "-c", "import pnnx; pnnx.pnnx()", "m.onnx", "fp16=0")
        try:
            done = run_program(command, cwd=folder, seconds=MAX_CONVERSION_SECONDS)
        except TimeoutError:
            return f"pnnx took longer than {MAX_CONVERSION_SECONDS} s"
        if done.code == 0 and (folder / "m_pnnx.py").exists():
            return ""
        lines = (done.errors + done.output).decode("utf-8", "replace").splitlines()
        message_lines = [line for line in lines if line.strip() and line[0] not in "#│┏┡├└"]
        return (
            f"pnnx cannot convert the model (exit code {done.code}){': ' + message_lines[-1] if message_lines else ''}"
        )


def load_aotc_library(library: Path, inputs: Arrays, threads: int) -> LoadedImplementation:
    """Load the library that aotc compiled, for a benchmark, and bind the inputs; contents of state
    are left out.
    """
    session = load(library, threads=threads)
    given = {info.name: inputs[info.name] for info in session.get_inputs()}
    state = session.new_state_or_none(measured=True)
    binding = session.bind(given, state=state)

    def outputs_of_first_run() -> list[Array]:
        if state is not None:
            state.reset()
            binding.run()
        return list(binding.outputs.values())

    return session.version, binding.run, outputs_of_first_run


def _load_in_onnxruntime(ort: Any, entrant: BenchmarkModel, threads: int) -> LoadedImplementation:
    """Create an ONNX Runtime session with bound inputs and outputs.

    Its workers stop spinning after each run, because they would slow down other implementations.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(str(entrant.path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in entrant.inputs.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    run = lambda: session.run_with_iobinding(binding)  # noqa: E731
    return ort.__version__, run, binding.copy_outputs_to_cpu


def _load_in_openvino(openvino: Any, entrant: BenchmarkModel, threads: int) -> LoadedImplementation:
    """Create an OpenVINO request in float32, tuned for latency, that shares the memory of the
    inputs.
    """
    core, path = openvino.Core(), entrant.path
    model = core.read_model(path) if entrant.is_onnx_model else openvino.convert_model(load_exported_program(path))
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    config |= {"PERFORMANCE_HINT": "LATENCY", "ENABLE_HYPER_THREADING": True}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    for k, array in enumerate(entrant.inputs.values()):
        request.set_input_tensor(k, openvino.Tensor(array, shared_memory=True))

    def copy_openvino_outputs_to_numpy() -> list[Array]:
        return [np.array(request.get_output_tensor(k).data) for k in range(len(model.outputs))]

    return version("openvino"), request.infer, copy_openvino_outputs_to_numpy


def _batch_axes_in_pnnx_script(script: str, call_text: str) -> list[int]:
    """Return the batch axis in each line of pnnx's example script that contains `call_text`; 233,
    which means none, if absent.
    """
    matches = [re.search(r"batch_index=(\d+)", line) for line in script.splitlines() if call_text in line]
    return [int(axis[1]) if axis else 233 for axis in matches]


def _load_in_ncnn(ncnn: Any, entrant: BenchmarkModel, threads: int) -> LoadedImplementation:
    """Create an ncnn network in float32 (with its Winograd algorithm); each run uses a new
    extractor, as ncnn expects.
    """
    folder = entrant.folder_with_pnnx_conversion
    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage", "vulkan_compute"):
        setattr(net.opt, f"use_{option}", False)
    if net.load_param(str(folder / "m.ncnn.param")) != 0 or net.load_model(str(folder / "m.ncnn.bin")) != 0:
        raise AotcError("rival", "ncnn cannot load the model converted by pnnx")
    script = (folder / "m_ncnn.py").read_text(encoding="utf-8")
    axes_in, axes_out = (_batch_axes_in_pnnx_script(script, call) for call in ("ex.input(", "torch.from_numpy(out"))
    arrays = entrant.inputs.values()
    if len(axes_in) != len(arrays) or any(a.dtype != np.float32 for a in arrays):
        raise AotcError("rival", "ncnn takes float32 inputs only")
    mats = [ncnn.Mat(a, batch_index=k).clone() for a, k in zip(arrays, axes_in, strict=True)]
    out_mats: list[Any] = [None] * len(axes_out)

    def run_ncnn_and_store_outputs() -> None:
        extractor = net.create_extractor()
        for k, mat in enumerate(mats):
            extractor.input(f"in{k}", mat)
        for k in range(len(out_mats)):
            status, out_mats[k] = extractor.extract(f"out{k}")
            if status != 0:
                raise AotcError("rival", f"ncnn fails with status {status}")

    def copy_ncnn_outputs_to_numpy() -> list[Array]:
        return [np.array(mat.numpy(batch_index=k)) for mat, k in zip(out_mats, axes_out, strict=True)]

    return f"{version('ncnn')} through pnnx", run_ncnn_and_store_outputs, copy_ncnn_outputs_to_numpy


def _torch_module_and_version_suffix(entrant: BenchmarkModel) -> tuple[Callable[..., Any], str]:
    """Return the model as a torch module, and " through pnnx" if pnnx converted it, else ""."""
    if not entrant.is_onnx_model:
        return load_exported_program(entrant.path).module(), ""
    # the script reads the weights by a relative path: make it absolute
    path = entrant.folder_with_pnnx_conversion / "m_pnnx.py"
    text = path.read_text(encoding="utf-8").replace(
        "'m.pnnx.bin'", repr(str(entrant.folder_with_pnnx_conversion / "m.pnnx.bin"))
    )
    namespace: dict[str, Any] = {"__name__": "m_pnnx"}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["Model"]().float().eval(), " through pnnx"


def _load_in_torch(torch: Any, entrant: BenchmarkModel, threads: int) -> LoadedImplementation:
    """Set up a model in eager PyTorch for a benchmark, in inference mode."""
    module, through = _torch_module_and_version_suffix(entrant)
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(a) for a in entrant.inputs.values()]
    results: list[Any] = []

    def run_torch_module_and_store_outputs() -> None:
        with torch.inference_mode():
            results[:] = [module(*tensors)]

    def stored_torch_outputs_as_numpy() -> list[Array]:
        leaves = results[0] if isinstance(results[0], (tuple, list)) else results
        return [leaf.numpy() for leaf in leaves]

    return torch.__version__ + through, run_torch_module_and_store_outputs, stored_torch_outputs_as_numpy


#: Adapters by package name: functions of the imported package, the model and the number of threads.
RIVAL_LOADERS: Final[Mapping[str, Callable[[Any, BenchmarkModel, int], LoadedImplementation]]] = {
    "onnxruntime": _load_in_onnxruntime,
    "openvino": _load_in_openvino,
    "ncnn": _load_in_ncnn,
    "torch": _load_in_torch,
}
_RIVALS_THROUGH_PNNX: Final = ("ncnn", "torch")
_ONNX_ONLY_RIVALS: Final = ("onnxruntime", "ncnn")


def require_known_rivals(names: Sequence[str]) -> None:
    """Raise AotcError (code "rival") unless all names are implementations that benchmarks support."""
    for name in names:
        require_known_name("rival", "contestant", name, RIVAL_LOADERS)


def load_rival(name: str, entrant: BenchmarkModel, threads: int) -> Contestant:
    """Create the implementation `name` and run it once; AotcError (code "rival") with the reason if
    it fails.
    """
    if importlib.util.find_spec(name) is None:
        raise AotcError("rival", f"not installed (pip install {name})")
    try:
        package = importlib.import_module(name)
        if name in _ONNX_ONLY_RIVALS and not entrant.is_onnx_model:
            raise AotcError("rival", "it reads ONNX models only")
        if name in _RIVALS_THROUGH_PNNX and entrant.is_onnx_model:
            _ = entrant.folder_with_pnnx_conversion
        return load_and_time_first_run(name, threads, lambda: RIVAL_LOADERS[name](package, entrant, threads))
    except AotcError:
        raise
    except Exception as error:
        # any exception of an implementation excludes it, with the reason
        text = " ".join(str(error).split())
        raise AotcError("rival", f"{type(error).__name__}: {text[:MAX_ERROR_CHARACTERS]}") from error
