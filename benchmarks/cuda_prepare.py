# SPDX-License-Identifier: Apache-2.0
"""Prepare the cases that `benchmarks.cuda_device` runs on a GPU machine: libraries without weights,
expected outputs.

    python -m benchmarks.cuda_prepare build/device                    # everything
    python -m benchmarks.cuda_prepare build/device ds_cnn operators_3 --emulated      # cases by their names

The folder contains all files needed on the GPU machine, in a few MB: random weights are generated
again there, and expected outputs are computed by the emulator. Cases are the samples of all
operators, many in one library; networks; and single operators on large data, which are too slow to
emulate and are compared with PyTorch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.cuda.cuda_project import emit_cuda_project, print_cuda_kernels_and_source
from onnx import TensorProto, helper, numpy_helper

from aotc.driver.compile import CompileOptions
from aotc.driver.compile_sources import build_project_library
from aotc.driver.cuda_emulation import EMULATOR_DEVICE_COMPILER, build_fake_cuda_driver, run_models_on_fake_gpu
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.driver.object_cache import user_object_cache
from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.driver.toolchain import find_toolchain
from aotc.relay.op import OPERATOR_MODULES, operators_defined_in
from aotc.tir.passes import run_tensor_passes
from aotc.tir.plan.memory_plan import plan_memory
from aotc.tir.plan.program import Program, Storage, View
from aotc.tir.plan.program_nodes import Step
from aotc.tir.target import CUDA
from benchmarks import cuda_device
from benchmarks.cuda_device import EMULATED_DRIVER_PATH, PreparedCase, run_case_and_yield_outputs
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS, gpt2_step
from tests.ops.harness import kernel_job

SAMPLES_PER_LIBRARY = 64
"""Number of operator samples per library."""
MIN_RANDOMIZED_CONSTANT_BYTES = 16 << 10
"""Size in bytes from which a constant is replaced by generated random numbers, unless it compresses
well.
"""
TIMED_NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "minilm", "gpt2_step")
IMAGE_BATCH_SIZE = 32
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class UnpreparedCase:
    """Input of a case that is to be prepared.

    samples    name, steps and outputs of each sample
    inputs     input arrays; empty if inputs are random
    model      ONNX model for PyTorch, None if it is not measured
    emulated   True if expected outputs are computed by the emulator
    """

    program: Program
    samples: Sequence[tuple[str, range, Sequence[Storage]]]
    inputs: Sequence[Array] = ()
    model: onnx.ModelProto | None = None
    emulated: bool = True


# --- operators


def operator_samples_with_kernels() -> list[tuple[str, Any, Any]]:
    """Return all samples of operators that have kernels: (name, operator, sample)."""
    ops = [op for family in OPERATOR_MODULES for op in operators_defined_in(family) if op.static is None]
    return [(f"{op.name} {k}", op, sample) for op in ops for k, sample in enumerate(op.samples())]


def operator_batch_case(batch_index: int) -> UnpreparedCase:
    """Return one batch of operator samples as a program; each is scheduled separately, so that
    launches are not fused.
    """
    arrays: list[Array] = []
    programs: list[Program] = []
    chosen = operator_samples_with_kernels()[
        batch_index * SAMPLES_PER_LIBRARY : (batch_index + 1) * SAMPLES_PER_LIBRARY
    ]
    for count, (_, op, sample) in enumerate(chosen):
        job = kernel_job(op, sample, CUDA, printed=False)
        kernel = replace(job.kernel, name=f"s{count}_{job.kernel.name}")
        inputs, outputs, scratch = (
            tuple(
                Storage(name=f"s{count}_{kind}{k}", dtype=b.dtype, shape=(b.size,), kind=kind)
                for k, b in enumerate(buffers)
            )
            for buffers, kind in ((kernel.inputs, "input"), (kernel.outputs, "output"), (kernel.workspace, "temp"))
        )
        step = Step(kernel, tuple(map(View, (*inputs, *outputs, *scratch))))
        program = Program(name=f"operators_{batch_index}", inputs=inputs, outputs=outputs, body=(step,))
        programs.append(run_tensor_passes(program, CUDA))
        arrays += job.inputs
    first, rows = 0, []
    for (name, *_), subprogram in zip(chosen, programs, strict=True):
        rows.append((name, range(first, first := first + len(subprogram.steps)), subprogram.outputs))
    whole = Program(
        name=f"operators_{batch_index}",
        inputs=tuple(s for subprogram in programs for s in subprogram.inputs),
        outputs=tuple(s for subprogram in programs for s in subprogram.outputs),
        body=tuple(s for subprogram in programs for s in subprogram.steps),
        homes={a: b for subprogram in programs for a, b in subprogram.homes.items()},
    )
    return UnpreparedCase(plan_memory(whole), rows, arrays)


# --- networks


def network_case(
    name: str, build_model: Callable[[], onnx.ModelProto], timed: bool = False, emulated: bool = True
) -> UnpreparedCase:
    model = build_model()
    (program,) = CompileOptions(target=CUDA, name=name).start_compilation(model).scheduled_programs
    rows = [(name, range(len(program.steps)), program.outputs)]
    return UnpreparedCase(program, rows, model=model if timed else None, emulated=emulated)


def build_float16_model(build_model: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    """Return a model with float32 weights, inputs and outputs changed to float16."""
    model = build_model()
    for tensor in (t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def build_batched_image_model(build_model: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    """Return an image model with the batch size `IMAGE_BATCH_SIZE`."""
    model = build_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = IMAGE_BATCH_SIZE
    return model


def single_node_model(
    op_type: str, *shapes: Sequence[int], out: Sequence[int], half: bool = False, **attributes: Any
) -> Any:
    """Return a model with a single node, all of whose operands are inputs."""
    dtype = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(f"x{k}", dtype, shape) for k, shape in enumerate(shapes)]
    outputs = [helper.make_tensor_value_info("y", dtype, out)]
    node = helper.make_node(op_type, [x.name for x in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], op_type.lower(), inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def large_single_operator_models() -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    """Yield operators on data of at least four times the cache size, and products and convolutions
    that fill the GPU.
    """
    rows, square = (16384, 4096), (4096, 4096)
    yield "one_add", partial(single_node_model, "Add", rows, rows, out=rows)
    yield "one_transpose", partial(single_node_model, "Transpose", rows, out=rows[::-1], perm=[1, 0])
    yield "one_softmax", partial(single_node_model, "Softmax", rows, out=rows, axis=-1)
    yield "one_mean", partial(single_node_model, "ReduceMean", rows, out=(16384, 1), axes=[1])
    norm = partial(single_node_model, "LayerNormalization", rows, (4096,), (4096,), out=rows, axis=-1, epsilon=1e-5)
    yield "one_layer_norm", norm
    for half in (False, True):
        end = "_half" if half else ""
        yield f"one_product{end}", partial(single_node_model, "MatMul", square, square, out=square, half=half)
        for channels, size in ((64, 56), (256, 14)):
            shape = IMAGE_BATCH_SIZE, channels, size, size
            conv = partial(single_node_model, "Conv", shape, (channels, channels, 3, 3), out=shape, half=half)
            yield f"one_conv{channels}{end}", partial(conv, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])


def case_makers_by_name() -> dict[str, Callable[[], UnpreparedCase]]:
    """Return functions that build the benchmark cases, by case name."""
    makers: dict[str, Callable[[], UnpreparedCase]] = {}
    for k in range(-(-len(operator_samples_with_kernels()) // SAMPLES_PER_LIBRARY)):
        makers[f"operators_{k}"] = partial(operator_batch_case, k)
    for name, make in {**NETWORK_BUILD_FUNCTIONS, "gpt2_step": gpt2_step}.items():
        makers[name] = partial(network_case, name, make, timed=name in TIMED_NETWORKS)
        if name in TIMED_NETWORKS:
            makers[f"{name}_half"] = partial(
                network_case, f"{name}_half", partial(build_float16_model, make), timed=True
            )
    for name in TIMED_NETWORKS[:2]:
        many = partial(build_batched_image_model, NETWORK_BUILD_FUNCTIONS[name])
        for case, make in {f"{name}_many": many, f"{name}_many_half": partial(build_float16_model, many)}.items():
            makers[case] = partial(network_case, case, make, timed=True, emulated=False)
    for name, make in large_single_operator_models():
        makers[name] = partial(network_case, name, make, timed=True, emulated=False)
    return makers


# --- cases on disk


def sample_descriptions_of_case(subject: UnpreparedCase, printed: PrintedKernels) -> Iterator[dict[str, Any]]:
    """Yield the samples with their steps and outputs; samples without steps are omitted."""
    tensor_cores = {kernel.name for kernel in printed.kernels if "aotc_mma_" in kernel.text}
    numbers = {s: k for k, s in enumerate(subject.program.outputs)}
    for name, steps, outputs in subject.samples:
        if steps:
            kernel_names = {printed.names[subject.program.steps[k].kernel] for k in steps}
            row = {"name": name, "steps": [steps.start, steps.stop], "exact": not kernel_names & tensor_cores}
            yield row | {"outputs": [numbers[s] for s in outputs]}


def weights_with_random_constants_zeroed(params: ParameterLayout) -> tuple[Array, list[list[Any]]]:
    """Return the weights with zeros for constants that are generated again, and the description of
    these constants.

    A description is [first byte, elements, dtype, mean, spread] with the statistics of the original
    values.
    """
    blob = np.frombuffer(b"".join(params.bytes_of_binary_parameter_file()), np.uint8).copy()
    descriptions = []
    for storage in (
        s
        for s in params.offsets
        if s.nbytes >= MIN_RANDOMIZED_CONSTANT_BYTES and str(s.dtype) in ("float16", "float32")
    ):
        first = params.byte_offset_in_file(storage)
        piece = blob[first : first + storage.nbytes]
        if len(zlib.compress(piece[:MIN_RANDOMIZED_CONSTANT_BYTES].tobytes(), 1)) > MIN_RANDOMIZED_CONSTANT_BYTES // 2:
            values = piece.view(storage.dtype.numpy).astype(np.float64)
            dtype, spread = str(storage.dtype), float(values.std() * np.sqrt(12))
            descriptions.append([first, storage.size, dtype, float(values.mean()), spread])
            piece[:] = 0
    return blob, descriptions


def build_library_without_weights(
    program: Program, kernels_and_source: tuple[PrintedKernels, str], emulated: bool, archs: Sequence[int]
) -> Array:
    """Build the library of a program without its weights and return its bytes; `kernels_and_source`
    is the result of `print_cuda_kernels_and_source`.
    """
    printed, text = kernels_and_source
    compiler = EMULATOR_DEVICE_COMPILER if emulated else find_nvrtc_compiler(user_object_cache(), strict=False)
    images = compiler.images(text, archs)
    images = {name: data for name, data in images.items() if name.startswith("sm_")}
    with tempfile.TemporaryDirectory() as scratch:
        folder, toolchain = Path(scratch), find_toolchain()
        metadata = emit_cuda_project(
            program, printed, text, images, folder, target=CUDA, least_driver=compiler.least_driver
        )
        (folder / f"src/{program.name}_params.bin").write_bytes(b"")
        return np.frombuffer(build_project_library(folder, metadata, toolchain, CUDA).read_bytes(), np.uint8)


def serialize_with_weights_as_inputs(model: onnx.ModelProto) -> bytes:
    """Return the serialized model with large weights turned into inputs."""
    for tensor in [t for t in model.graph.initializer if np.prod(t.dims) > 1024]:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    model_bytes: bytes = model.SerializeToString()
    return model_bytes


def compile_and_write_case(
    path: Path, subject: UnpreparedCase, case_index: int, archs: Sequence[int], emulated: bool
) -> None:
    """Compile a benchmark case for a GPU and write it to a file, with outputs computed by the
    emulator.
    """
    program = subject.program
    kernels_and_source = print_cuda_kernels_and_source(program, CUDA)
    params = ParameterLayout(program.name, program.constants, 0)
    weight_bytes, weights = weights_with_random_constants_zeroed(params)
    sides = (
        [{"name": s.name, "dtype": str(s.dtype), "shape": list(s.shape), "bytes": s.nbytes} for s in side]
        for side in (program.inputs, program.outputs)
    )
    about: dict[str, Any] = dict(zip(("inputs", "outputs"), sides, strict=True))
    about |= {
        "name": program.name,
        "weights": weights,
        "samples": list(sample_descriptions_of_case(subject, kernels_and_source[0])),
    }
    about["sanitize"] = not subject.model and subject.emulated and (case_index % 6 == 0 or len(program.steps) < 20)
    about["macs"] = sum(step.kernel.macs for step in program.steps)
    about["bytes"] = params.bytes + sum(s.nbytes for s in (*program.inputs, *program.outputs))
    data: dict[str, Array] = {"kept": weight_bytes, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    data |= {f"in{k}": np.ascontiguousarray(a).reshape(-1).view(np.uint8) for k, a in enumerate(subject.inputs)}
    if subject.model is not None:
        data["model"] = np.frombuffer(serialize_with_weights_as_inputs(subject.model), np.uint8)
    if subject.emulated:
        data["library"] = build_library_without_weights(program, kernels_and_source, True, archs)
        np.savez(path, **data)
        with run_models_on_fake_gpu():
            (outputs,) = run_case_and_yield_outputs(PreparedCase(path))
        data |= {f"out{k}": output for k, output in enumerate(outputs)}
    if not emulated:
        data["library"] = build_library_without_weights(program, kernels_and_source, False, archs)
    np.savez_compressed(path, **data)


def prepare_cases_for_gpu_machine() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", help="all for none")
    parser.add_argument("--arch", type=int, action="append", help="compute capability, 90 for 9.0")
    parser.add_argument("--emulated", action="store_true", help="for the emulator in the place of a GPU")
    chosen = parser.parse_args()
    install_operators_and_passes()
    makers = case_makers_by_name()
    for name in ("cases", "benchmarks"):
        (chosen.folder / name).mkdir(parents=True, exist_ok=True)
    for module in ("cuda_device.py", "pytorch_gpu_timing.py"):
        shutil.copy(Path(cuda_device.__file__).with_name(module), chosen.folder / "benchmarks")
    (chosen.folder / "benchmarks" / "__init__.py").touch()  # found before other packages called benchmarks
    if chosen.emulated:
        shutil.copy(build_fake_cuda_driver(), chosen.folder / EMULATED_DRIVER_PATH)
    for number, name in enumerate(makers):
        path = chosen.folder / "cases" / f"{name}.npz"
        if path.exists() or (chosen.cases and name not in chosen.cases):
            continue
        compile_and_write_case(path, makers[name](), number, chosen.arch or [90], chosen.emulated)
        print(f"{name}: {path.stat().st_size / 1e6:.2f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(prepare_cases_for_gpu_machine())
