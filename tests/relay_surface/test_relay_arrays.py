# SPDX-License-Identifier: Apache-2.0
"""NDArray, devices, targets, temporary directories, and parameters as a blob."""

from __future__ import annotations

import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import aotc
from aotc import relay
from aotc.contrib import utils
from aotc.ir.diagnostics import AotcError


def test_ndarray_owns_its_value() -> None:
    source = np.arange(6, dtype="int32").reshape(2, 3)
    x = aotc.nd.array(source)
    seen = np.asarray(x)
    source[0, 0] = 9
    x.numpy()[0, 1] = 9
    assert (x.shape, x.dtype, x.ndim, x.size) == ((2, 3), "int32", 2, 6)
    np.testing.assert_array_equal(x.numpy(), np.arange(6).reshape(2, 3))
    x.copyfrom(np.zeros((2, 3), "int32"))
    np.testing.assert_array_equal(x.asnumpy(), 0)
    np.testing.assert_array_equal(seen, np.arange(6).reshape(2, 3))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x)[0, 0] = 1


def test_ndarray_text() -> None:
    assert repr(aotc.nd.array(np.array([3.0], "float32"))) == (
        "<aotc.nd.NDArray shape=(1,), cpu(0)>\narray([3.], dtype=float32)"
    )


def test_ndarray_conversions() -> None:
    x = aotc.nd.array([1.5, 2.5])
    assert np.asarray(x, "float32").dtype == np.float32
    assert np.array(x, copy=True).flags.writeable
    assert aotc.nd.array(np.array([1, 2], ">i2")).dtype == "int16"
    assert aotc.nd.empty(3, "bfloat16").numpy().dtype == ml_dtypes.bfloat16
    y = aotc.nd.empty((2,), "float64")
    assert x.copyto(y) is y
    np.testing.assert_array_equal(y, [1.5, 2.5])
    np.testing.assert_array_equal(x.copyto(aotc.cpu()), x)


@pytest.mark.parametrize("other", [np.zeros(3), np.zeros(2, "float32"), aotc.nd.empty((2, 1), "float64")])
def test_ndarray_copies_only_its_own_type(other: object) -> None:
    with pytest.raises(AotcError, match="cannot copy"):
        aotc.nd.empty((2,), "float64").copyfrom(other)


@pytest.mark.parametrize("value", ["text", [1j], [object()], np.array(["a"])])
def test_ndarray_needs_a_tensor_dtype(value: object) -> None:
    with pytest.raises(AotcError, match="no tensor data type"):
        aotc.nd.array(value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert aotc.device("llvm", 0) == aotc.cpu() == aotc.device("cpu")
    assert aotc.device("cuda", 1) == aotc.cuda(1)
    assert repr(aotc.cuda(1)) == "cuda(1)"
    assert (aotc.cpu().exist, aotc.cuda().exist, aotc.cpu(1).exist) == (True, False, False)
    assert (aotc.cpu().device_type, aotc.cuda().device_type) == (1, 2)
    for bad in (("cupa", 0), ("", 0), ("cpu", -1), ("cpu", True)):
        with pytest.raises(AotcError):
            aotc.device(*bad)
    with pytest.raises(AotcError, match=r"no device cuda\(0\)"):
        aotc.nd.array([1], aotc.cuda())
    with pytest.raises(AotcError, match=r"no device cpu\(1\)"):
        aotc.nd.empty((1,), device=aotc.cpu(1))


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert aotc.target.Target("llvm") == aotc.target.Target("host") == aotc.target.llvm()
    assert aotc.target.Target("c").name == "c"
    assert aotc.target.Target(aotc.target.Target("c")).name == "c"
    assert aotc.runtime.enabled("llvm") and aotc.runtime.enabled("c") and not aotc.runtime.enabled("cuda")
    assert aotc.target.cuda() == aotc.target.Target("cuda")
    with pytest.raises(AotcError, match="no Vulkan back end yet"):
        aotc.target.Target("vulkan")
    with pytest.raises(AotcError, match="unknown target 'x86-64-v9'"):
        aotc.target.Target("x86-64-v9")
    with pytest.raises(AotcError, match="has no option 'mattr'"):
        aotc.target.Target("llvm -mattr=+dotprod")
    with pytest.raises(ValueError, match="no target is the processor 'powerpc'"):
        aotc.target.Target("llvm -mtriple=powerpc-linux-gnu")
    assert aotc.target.Target("llvm -mcpu=skylake").name == "x86-64-v3"
    assert aotc.target.Target("llvm -mtriple=riscv64-linux-gnu -mcpu=spacemit-x60").name == "riscv64-v256"
    with pytest.raises(ValueError, match="no target is the processor 'skylake'"):
        aotc.target.Target("llvm -mcpu=skylake -mtriple=aarch64-linux-gnu")
    with aotc.target.Target("llvm --device=arm_cpu") as arm:
        assert arm.current() is arm and (arm.name, arm.kind.name) == ("aarch64", "llvm")
    assert arm.current() is None


def test_tempdir() -> None:
    temp = utils.tempdir()
    Path(temp.relpath("b")).write_text("x", encoding="utf-8")
    assert temp.listdir() == ["b"]
    temp.remove()
    assert not Path(temp.temp_dir).exists()


def test_assert_allclose() -> None:
    aotc.testing.assert_allclose(aotc.nd.array([1.0]), [1.0 + 1e-6], rtol=1e-5)
    for other in ([1.1], [[1.0]], [np.nan]):
        with pytest.raises(AssertionError):
            aotc.testing.assert_allclose([1.0], other, rtol=1e-5)


# --- parameters


def test_the_empty_parameter_file() -> None:
    assert relay.save_param_dict({}) == struct.pack("<QQQQ", 0xF7E58D4F05049CB7, 0, 0, 0)


def test_the_layout_of_a_parameter_file() -> None:
    blob = relay.save_param_dict({"w": np.array([[1, 2]], "int16")})
    assert blob == b"".join(
        (
            struct.pack("<QQQQ", 0xF7E58D4F05049CB7, 0, 1, 1),
            b"w",
            struct.pack("<Q", 1),
            struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, 2, 0, 16, 1),
            struct.pack("<qqq", 1, 2, 4),
            struct.pack("<hh", 1, 2),
        )
    )


SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
KINDS = st.sampled_from(["int8", "uint64", "float16", "float32", "float64", "bool", "int64"])


@given(st.dictionaries(st.text(max_size=5), hnp.arrays(KINDS, SHAPES), max_size=3))
def test_parameters_read_back(params: dict[str, np.ndarray]) -> None:
    back = relay.load_param_dict(relay.save_param_dict(params))
    assert list(back) == list(params)
    for name, value in params.items():
        assert back[name].dtype == value.dtype.name
        np.testing.assert_array_equal(back[name].numpy(), value)


def test_damaged_parameters() -> None:
    blob = relay.save_param_dict({"w": np.ones((2, 3), "float32"), "b": np.ones(3, "float32")})
    for cut in range(len(blob)):
        with pytest.raises(AotcError):
            relay.load_param_dict(blob[:cut])
    with pytest.raises(AotcError, match="1 bytes follow"):
        relay.load_param_dict(blob + b"\0")
    with pytest.raises(AotcError, match="not a file of saved parameters"):
        relay.load_param_dict(b"\0" * 64)


@pytest.mark.parametrize("shape", [(-2, -3), (2, -3), (-6,), (-1, 0)])
def test_parameters_of_negative_extents(shape: tuple[int, ...]) -> None:
    """The header may say so; two negative extents even have a product that is right."""
    blob = relay.save_param_dict({"w": np.ones(np.abs(shape), "float32")})
    extents, damaged = (struct.pack(f"<{len(shape)}q", *sizes) for sizes in (np.abs(shape), shape))
    assert blob.count(extents) == 1
    with pytest.raises(AotcError, match=r"parameter 'w': an array has .* bytes for shape") as caught:
        relay.load_param_dict(blob.replace(extents, damaged))
    assert caught.value.code == "params"
