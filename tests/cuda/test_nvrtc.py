# SPDX-License-Identifier: Apache-2.0
"""NVRTC: device code and PTX of printed kernels, equal bytes in every compilation, and sources that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from aotc_codegen.cuda.cuda_project import print_cuda_kernels_and_source

from aotc.driver.nvrtc import DeviceCompiler, find_nvrtc_compiler
from aotc.driver.object_cache import ObjectCache
from aotc.ir.diagnostics import AotcError
from aotc.tir.target import get_target
from tests.conftest import skip_or_fail_without
from tests.cuda.programs import diamond

EMPTY = 'extern "C" __global__ void empty(float *y) {{ {} }}\n'


@pytest.fixture(scope="module")
def nvrtc() -> DeviceCompiler:
    try:
        return find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")


def test_kernels_become_code_and_ptx(nvrtc: DeviceCompiler, tmp_path: Path) -> None:
    """The machine code is an ELF file of NVIDIA's; old drivers take the PTX; the cache gives both again."""
    _, text = print_cuda_kernels_and_source(diamond(), get_target("cuda"))
    images = nvrtc.images(text, (80, 90))
    assert list(images) == ["sm_80", "sm_90", "compute_80"]
    for name in ("sm_80", "sm_90"):
        assert images[name][:4] == b"\x7fELF"
        assert all(kernel in images[name] for kernel in (b"net_twice", b"net_add", b"net_square"))
    assert b"\n.version 8.0\n.target sm_80\n" in images["compute_80"]
    assert nvrtc.least_driver in (12000, 13000)
    store = ObjectCache(tmp_path / "cache" / "objects", 10**8)
    for hits in (0, 2):
        assert find_nvrtc_compiler(store).images(text, (80, 90)) == images
        assert store.hits == hits


def test_arithmetic_is_what_the_text_says(nvrtc: DeviceCompiler) -> None:
    """Products and sums stay apart, quotients and roots are rounded correctly, small numbers are kept."""
    text = EMPTY.format("y[0] = y[1] * y[2] + y[3]; y[4] = sqrtf(y[5] / y[6]);")
    ptx = nvrtc.images(text, (80,))["compute_80"]
    for instruction in (b"mul.rn.f32", b"add.rn.f32", b"div.rn.f32", b"sqrt.rn.f32"):
        assert instruction in ptx
    assert b"fma" not in ptx and b"ftz" not in ptx


@pytest.mark.parametrize(
    ("body", "archs", "code", "said"),
    [
        ("y[0] = nothing;", (80,), "compiler-failed", 'identifier "nothing" is undefined'),
        ("int unused = 1;", (80,), "compiler-failed", "warning"),
        ("", (80, 17), "cuda-arch", "17"),
        ("", (), "cuda-arch", "nothing"),
    ],
)
def test_what_is_refused(nvrtc: DeviceCompiler, body: str, archs: tuple[int, ...], code: str, said: str) -> None:
    with pytest.raises(AotcError) as caught:
        nvrtc.images(EMPTY.format(body), archs)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert said in str(diagnostic)


def test_warnings_keep_nobody_from_code(nvrtc: DeviceCompiler) -> None:
    """Tests alone are strict; what programs may say is no warning at all."""
    text = EMPTY.format("int unused = 1; y[0] /= 0.0f;")
    assert find_nvrtc_compiler(strict=False).images(text, (80,))["sm_80"][:4] == b"\x7fELF"
    assert nvrtc.images(EMPTY.format("y[0] /= 0.0f;"), (80,))


def test_without_nvrtc(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match=r"not installed[^$]*pip install nvidia-cuda-nvrtc-cu12"):
        find_nvrtc_compiler(package_folders=[str(tmp_path)])
    (tmp_path / "cuda_nvrtc/lib").mkdir(parents=True)
    (tmp_path / "cuda_nvrtc/lib/libnvrtc.so.12").write_text("no library")
    with pytest.raises(AotcError, match="cannot be loaded"):
        find_nvrtc_compiler(package_folders=[str(tmp_path), ""])
