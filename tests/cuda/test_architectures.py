# SPDX-License-Identifier: Apache-2.0
"""NVRTC compiles the kernels of every operator and of whole networks without warnings, for every device."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aotc_codegen.cuda.cuda_project import print_cuda_kernels_and_source
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin, resident_blocks_per_multiprocessor

from aotc.driver.compile import CompileOptions, target_for_cuda_architectures
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import launch_of
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from tests.codegen.batch import finished
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA
from tests.cuda.test_operators import FAMILIES, cases
from tests.ops.harness import kernel_job
from tests.tir.test_attention_strips import MASKS, Attention

#: Devices that are compiled for alike: those of 7.5 lack matrix instructions and asynchronous copies of the others.
GENERATIONS = {"old": (75,), "new": (80, 86, 87, 89, 90, 100, 101, 103, 120, 121)}
SOME = 60
EACH_GENERATION = pytest.mark.parametrize("archs", GENERATIONS.values(), ids=GENERATIONS)


def images(text: str, archs: Sequence[int]) -> Mapping[str, bytes]:
    """Code for the architectures, of those that NVRTC knows."""
    try:
        nvrtc = find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    return nvrtc.images(text, [arch for arch in archs if arch in nvrtc.architectures])


def source_of(launches: Sequence[Kernel], target: Target) -> str:
    assert target.gpu is not None
    return render_cuda_source_file(print_cuda_kernels(launches, "net", target.gpu), name="net", banner="made by a test")


def text_of(kernels: Iterable[Kernel], target: Target) -> str:
    """Scheduled kernels, mapped to launches and printed."""
    return source_of(
        [finished(one, target) for kernel in kernels for one in lower_kernel_to_gpu_kernels(kernel, target)], target
    )


@pytest.mark.parametrize(
    ("given", "made", "value"), [("float32", "int32", "bitcast_int32"), ("int64", "float64", "bitcast_float64")]
)
def test_helpers_may_be_left_unused(given: str, made: str, value: str) -> None:
    """Unused helper functions cause no compiler warning: a kernel needs one of two that are defined together."""
    kernel = parse_kernel(f"""kernel "bits" {{
  input x: {given}[64]
  output y: {made}[64]
  for b in 0..1 block {{
    for t in 0..64 thread {{ y[t] = {value}(x[t]) }}
  }}
}}
""")
    assert images(source_of([kernel], CUDA), (80,))


def test_kernels_keep_to_the_registers_that_there_are() -> None:
    """What the threads of a block cannot keep in registers together spills: else a device refuses the launch."""
    loaded = "\n".join(f"      let v{k}: float32 = x[t + {1024 * k}]" for k in range(96))
    sums = " + ".join(f"v{k} * v{95 - k}" for k in range(96))
    kernel = parse_kernel(f"""kernel "wide" {{
  input x: float32[{1024 * 96}]
  output y: float32[1024]
  for b in 0..1 block {{
    for t in 0..1024 thread {{
{loaded}
      y[t] = sqrt({sums}) + {" + ".join(f"sqrt(v{k})" for k in range(96))}
    }}
  }}
}}
""")
    found = read_kernel_resources_from_cubin(images(source_of([kernel], CUDA), (80,))["sm_80"])
    assert found["net_wide"].registers <= 64 and resident_blocks_per_multiprocessor(found["net_wide"], 1024, 80)


@pytest.mark.parametrize(
    ("archs", "said"),
    [
        ((80, 70), "GPUs of compute capability 70 lack instructions"),
        ((80.0,), "80.0 is not a GPU architecture"),
        (12, r"GPUs of compute capability 12 lack[^$]*did you mean 120\? 75 is"),
        (7, r"kernels have\n +hint: 75 is"),
        (17, r"kernels have\n +hint: 75 is"),
        (0, "GPUs of compute capability 0 lack instructions"),
        (False, "cuda_arch must be an integer, a list or None, not False"),
        ((), "the list of GPU architectures is empty"),
        ("", "cuda_arch must be an integer, a list or None, not ''"),
        ("80", "cuda_arch must be an integer, a list or None, not '80'"),
        (["sm_80"], "'sm_80' is not a GPU architecture"),
    ],
)
def test_architectures_that_are_refused(archs: Any, said: str) -> None:
    with pytest.raises(AotcError, match=said):
        CompileOptions(target="cuda", cuda_arch=archs)


def test_no_gpu_is_asked_for_of_processors() -> None:
    with pytest.raises(AotcError, match="it has no CUDA architectures"):
        CompileOptions(target="c", cuda_arch=0)


def test_architectures_of_the_target() -> None:
    assert CompileOptions(target="cuda").machine.gpu == CUDA.gpu


def test_one_architecture() -> None:
    gpu = CompileOptions(target="cuda", cuda_arch=90).machine.gpu
    assert gpu is not None and gpu.architectures == (90,)


@EACH_GENERATION
def test_attention(archs: Sequence[int]) -> None:
    """In strips, whatever the mask: nothing is kept in the memory of a thread."""
    target = target_for_cuda_architectures(CUDA, archs)
    made = [Attention(rows=40, columns=70, mask=mask, moved=k == 1) for k, mask in enumerate(MASKS)]
    kernels = [replace(one.kernel(target), name=f"attention{k}") for k, one in enumerate(made)]
    found = read_kernel_resources_from_cubin(images(text_of(kernels, target), archs[:1])[f"sm_{archs[0]}"])
    assert [one.local_bytes for one in found.values()] == [0] * len(MASKS)


def test_some_samples() -> None:
    """A share of all, drawn by $AOTC_TEST_SEED; none takes more shared memory than was planned."""
    every = [case for ops in FAMILIES.values() for case in cases(ops)]
    drawn = random.Random(int(os.environ.get("AOTC_TEST_SEED", "0"))).sample(every, SOME)
    jobs = [kernel_job(op, sample, CUDA, printed=False) for op, sample in drawn]
    launches = [finished(one, CUDA) for job in jobs for one in lower_kernel_to_gpu_kernels(job.kernel, CUDA)]
    assert CUDA.gpu is not None
    printed = print_cuda_kernels(launches, "net", CUDA.gpu)
    found = images(render_cuda_source_file(printed, name="net", banner="made by a test"), (80, 90))
    for kernels in (read_kernel_resources_from_cubin(found[arch]) for arch in ("sm_80", "sm_90")):
        for one in launches:
            planned = launch_of(one)
            assert planned is not None and kernels[printed.names[one]].shared_bytes <= planned.shared_bytes


@pytest.mark.slow
@pytest.mark.timeout(7200)
@EACH_GENERATION
@pytest.mark.parametrize("family", sorted(name for name, ops in FAMILIES.items() if cases(ops)))
def test_all_samples(family: str, archs: Sequence[int]) -> None:
    target = target_for_cuda_architectures(CUDA, archs)
    jobs = [kernel_job(op, sample, target, printed=False) for op, sample in cases(FAMILIES[family])]
    assert images(text_of((job.kernel for job in jobs), target), archs)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@EACH_GENERATION
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "minilm", "lstm", "unet"])
def test_networks(name: str, archs: Sequence[int]) -> None:
    options = CompileOptions(target=target_for_cuda_architectures(CUDA, archs))
    (program,) = options.start_compilation(
        options.import_as_graph_module(NETWORK_BUILD_FUNCTIONS[name]())
    ).scheduled_programs
    printed, text = print_cuda_kernels_and_source(program, options.machine)
    for name, code in images(text, archs).items():
        assert name.startswith("compute") or read_kernel_resources_from_cubin(code).keys() == set(
            printed.names.values()
        )
