# SPDX-License-Identifier: Apache-2.0
"""Implementations of one model that can be measured beside each other: ours, and the rivals that are installed.

In: a model with pinned inputs.  Out: a `Contestant` for each implementation, ready to run again and again on
the same buffers.

entrant = Entrant(Path("net.onnx"), {"x": array}, Path(scratch))
contestant = prepare("openvino", entrant, threads=2)
contestant.run(); contestant.outputs()

Rivals compute in float32 too: where one would choose a narrower type, it is told not to.
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
from aotc.driver.import_model import load_exported
from aotc.driver.subprocesses import run
from aotc.ir import AotcError, Array, frozen, require_known
from aotc.runtime.session import load

#: How long pnnx may take.
CONVERSION_SECONDS: Final = 180
#: How much of a rival's message is shown.
COMPLAINT_CHARACTERS: Final = 300


@frozen
class Contestant:
    """One implementation with bound inputs.

    name       "aotc", or a key of RIVALS
    threads    that it uses
    version    of the implementation, and of what it needed to read the model
    run        once, on the bound inputs
    outputs    of the last run, in the model's order; shapes may lack dimensions of extent 1
    load, first    milliseconds until it was ready, files on disk converted before, and of its first run
    memory     bytes by which the process grew in the meantime, at most; None where the system does not tell
    """

    name: str
    threads: int
    version: str
    run: Callable[[], object]
    outputs: Callable[[], list[Array]]
    load: float = 0.0
    first: float = 0.0
    memory: int | None = None


#: The version of a contestant, what runs it, and what gives its outputs.
Made: TypeAlias = tuple[str, Callable[[], object], Callable[[], list[Array]]]


def started(name: str, threads: int, make: Callable[[], Made]) -> Contestant:
    """A contestant that has run once, with the times and the memory that took."""
    before = _resident("VmRSS", forget_peak=True)
    begin = time.perf_counter()
    contestant = Contestant(name, threads, *make())
    ready = time.perf_counter()
    contestant.run()
    end = time.perf_counter()
    peak = _resident("VmHWM")
    memory = None if before is None or peak is None else max(0, peak - before)
    return replace(contestant, load=1e3 * (ready - begin), first=1e3 * (end - ready), memory=memory)


def _resident(which: str, *, forget_peak: bool = False) -> int | None:
    """Bytes that this process has ("VmRSS"), or had since its peak was forgotten ("VmHWM"), on Linux."""
    try:
        if forget_peak:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:")), None)


@dataclass(frozen=True)
class Entrant:
    """The model that contestants are given.

    path      of an ONNX model whose inputs have static shapes, or a .pt2 or .tflite file
    inputs    by name, in the model's order
    scratch   a directory for conversions
    """

    path: Path
    inputs: Arrays
    scratch: Path

    @property
    def is_onnx(self) -> bool:
        return self.path.suffix not in (".pt2", ".tflite")

    @property
    def pnnx(self) -> Path:
        """The folder with the model as pnnx translates it: m.ncnn.param, m.ncnn.bin, m_ncnn.py, m_pnnx.py.

        Raises AotcError (code "rival") where it cannot.
        """
        if self._pnnx_complaint:
            raise AotcError("rival", self._pnnx_complaint)
        return self.scratch / "pnnx"

    @cached_property
    def _pnnx_complaint(self) -> str:
        """Translates the model, once; why that failed, "" if it did not."""
        if importlib.util.find_spec("pnnx") is None:
            return "it reads ONNX models through pnnx, which is not installed (pip install pnnx)"
        folder = self.scratch / "pnnx"
        folder.mkdir()
        (folder / "m.onnx").write_bytes(self.path.read_bytes())
        command = (sys.executable, "-c", "import pnnx; pnnx.pnnx()", "m.onnx", "fp16=0")
        try:
            done = run(command, cwd=folder, seconds=CONVERSION_SECONDS)
        except TimeoutError:
            return f"pnnx took longer than {CONVERSION_SECONDS} s"
        if done.code == 0 and (folder / "m_pnnx.py").exists():
            return ""
        lines = (done.errors + done.output).decode("utf-8", "replace").splitlines()
        said = [line for line in lines if line.strip() and line[0] not in "#│┏┡├└"]
        return f"pnnx cannot convert the model (exit code {done.code}){': ' + said[-1] if said else ''}"


def ours(library: Path, inputs: Arrays, threads: int) -> Made:
    """The compiled model."""
    session = load(library, threads=threads)
    binding = session.bind(inputs)
    return session.version, binding.run, lambda: list(binding.outputs.values())


def _onnxruntime(ort: Any, entrant: Entrant, threads: int) -> Made:
    """Bound inputs and outputs; workers stop spinning after each run, as they would be in the others' way."""
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


def _openvino(openvino: Any, entrant: Entrant, threads: int) -> Made:
    """Pinned to float32, tuned for latency; inputs are shared with the request."""
    core, path = openvino.Core(), entrant.path
    model = core.read_model(path) if entrant.is_onnx else openvino.convert_model(load_exported(path))
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    config |= {"PERFORMANCE_HINT": "LATENCY", "ENABLE_HYPER_THREADING": True}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    for k, array in enumerate(entrant.inputs.values()):
        request.set_input_tensor(k, openvino.Tensor(array, shared_memory=True))

    def outputs() -> list[Array]:
        return [np.array(request.get_output_tensor(k).data) for k in range(len(model.outputs))]

    return version("openvino"), request.infer, outputs


def _batch_axes(script: str, call: str) -> list[int]:
    """The batch axis that pnnx's example leaves out in each line with `call`; 233 stands for none."""
    found = [re.search(r"batch_index=(\d+)", line) for line in script.splitlines() if call in line]
    return [int(axis[1]) if axis else 233 for axis in found]


def _ncnn(ncnn: Any, entrant: Entrant, threads: int) -> Made:
    """ncnn's own float32 (with its Winograd), a new extractor for each run, as it wants to be used."""
    folder = entrant.pnnx
    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage", "vulkan_compute"):
        setattr(net.opt, f"use_{option}", False)
    if net.load_param(str(folder / "m.ncnn.param")) != 0 or net.load_model(str(folder / "m.ncnn.bin")) != 0:
        raise AotcError("rival", "ncnn cannot load the model converted by pnnx")
    script = (folder / "m_ncnn.py").read_text(encoding="utf-8")
    axes_in, axes_out = (_batch_axes(script, call) for call in ("ex.input(", "torch.from_numpy(out"))
    arrays = entrant.inputs.values()
    if len(axes_in) != len(arrays) or any(a.dtype != np.float32 for a in arrays):
        raise AotcError("rival", "ncnn takes float32 inputs only")
    mats = [ncnn.Mat(a, batch_index=k).clone() for a, k in zip(arrays, axes_in, strict=True)]
    found: list[Any] = [None] * len(axes_out)

    def run() -> None:
        extractor = net.create_extractor()
        for k, mat in enumerate(mats):
            extractor.input(f"in{k}", mat)
        for k in range(len(found)):
            status, found[k] = extractor.extract(f"out{k}")
            if status != 0:
                raise AotcError("rival", f"ncnn fails with status {status}")

    def outputs() -> list[Array]:
        return [np.array(mat.numpy(batch_index=k)) for mat, k in zip(found, axes_out, strict=True)]

    return f"{version('ncnn')} through pnnx", run, outputs


def _torch_program(entrant: Entrant) -> tuple[Callable[..., Any], str]:
    """The model as a module of torch, and what it came through."""
    if not entrant.is_onnx:
        return load_exported(entrant.path).module(), ""
    # the module reads its weights from where pnnx put them, by a relative path
    path = entrant.pnnx / "m_pnnx.py"
    text = path.read_text(encoding="utf-8").replace("'m.pnnx.bin'", repr(str(entrant.pnnx / "m.pnnx.bin")))
    namespace: dict[str, Any] = {"__name__": "m_pnnx"}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["Model"]().float().eval(), " through pnnx"


def _torch(torch: Any, entrant: Entrant, threads: int) -> Made:
    """Eager PyTorch in inference mode."""
    module, through = _torch_program(entrant)
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(a) for a in entrant.inputs.values()]
    found: list[Any] = []

    def run() -> None:
        with torch.inference_mode():
            found[:] = [module(*tensors)]

    def outputs() -> list[Array]:
        leaves = found[0] if isinstance(found[0], (tuple, list)) else found
        return [leaf.numpy() for leaf in leaves]

    return torch.__version__ + through, run, outputs


#: What makes the contestants of a package, the model and a number of threads, by the name of the package.
RIVALS: Final[Mapping[str, Callable[[Any, Entrant, int], Made]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "ncnn": _ncnn,
    "torch": _torch,
}
_THROUGH_PNNX: Final = ("ncnn", "torch")
_ONNX_ALONE: Final = ("onnxruntime", "ncnn")


def require_rivals(names: Sequence[str]) -> None:
    """Raise AotcError (code "rival") for names that are no rivals."""
    for name in names:
        require_known("rival", "contestant", name, RIVALS)


def prepare(name: str, entrant: Entrant, threads: int) -> Contestant:
    """The rival `name`, having run once; AotcError (code "rival") says why it cannot take part."""
    if importlib.util.find_spec(name) is None:
        raise AotcError("rival", f"not installed (pip install {name})")
    try:
        package = importlib.import_module(name)
        if name in _ONNX_ALONE and not entrant.is_onnx:
            raise AotcError("rival", "it reads ONNX models only")
        if name in _THROUGH_PNNX and entrant.is_onnx:
            _ = entrant.pnnx
        return started(name, threads, lambda: RIVALS[name](package, entrant, threads))
    except AotcError:
        raise
    except Exception as error:
        # whatever a rival raises: it cannot take part, and the user is told why
        text = " ".join(str(error).split())
        raise AotcError("rival", f"{type(error).__name__}: {text[:COMPLAINT_CHARACTERS]}") from error
