# SPDX-License-Identifier: Apache-2.0
"""Tensors in GPU memory are exchanged with other libraries without copies, and describe their memory correctly."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aotc.driver.compile_sources import build_project_library
from aotc.driver.cuda_emulation import build_fake_cuda_driver, run_models_on_fake_gpu
from aotc.driver.toolchain import find_toolchain
from aotc.ir.diagnostics import AotcError
from aotc.runtime import dlpack
from aotc.runtime.dlpack import DeviceArray, export_dlpack_capsule, view_gpu_tensor
from aotc.runtime.gpu_session import CudaDriver
from aotc.runtime.session import Session, load
from aotc.tir.target import get_target
from tests.cuda.programs import SIZE, diamond_results
from tests.cuda.test_project import written

X = np.linspace(-3, 3, SIZE, dtype=np.float32)


class Interface:
    """A producer with __cuda_array_interface__ only."""

    def __init__(self, array: DeviceArray, **more: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **more}


class Capsule:
    """A producer with __dlpack__ only, which remembers in which stream its tensor was to be used."""

    def __init__(self, array: Any, device: tuple[int, int] = (2, 0)) -> None:
        self.array, self.device, self.streams = array, device, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any = None) -> Any:
        self.streams.append(stream)
        return export_dlpack_capsule(self.array, self.device)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("device")
    build_project_library(folder, written(folder), find_toolchain(), get_target("cuda"))
    with run_models_on_fake_gpu():
        return load(folder)


@pytest.fixture
def driver(session: Session) -> Iterator[CudaDriver]:
    assert session.device is not None
    yield session.device.cuda_driver
    gc.collect()
    assert not dlpack._EXPORTED_TENSORS


def to_gpu(driver: CudaDriver, array: np.ndarray) -> DeviceArray:
    made = driver.allocate_tensor(array.shape, array.dtype)
    driver("cuMemcpy", *map(ctypes.c_uint64, (made.pointer, array.ctypes.data)), ctypes.c_size_t(array.nbytes))
    return made


def test_tensors_of_others_are_read_in_place(session: Session, driver: CudaDriver) -> None:
    there = to_gpu(driver, X)
    capsule = Capsule(there)
    for producer in (Interface(there), Interface(there, strides=(4,), stream=2), capsule, there):
        for result, expected in zip(session.run(None, {"x": producer}), diamond_results(X), strict=True):
            np.testing.assert_array_equal(result, expected)
    assert capsule.streams == [1]


@pytest.mark.parametrize(("first", "second"), [(4, 8), (1, 2)])
def test_tensors_begin_at_any_byte(session: Session, driver: CudaDriver, first: int, second: int) -> None:
    """Inputs and outputs that kernels cannot use where they lie are copied on the GPU; what is around them stays."""
    bytes_of_x = np.concatenate([np.full(first, 7, np.uint8), X.view(np.uint8)])
    x, y = to_gpu(driver, bytes_of_x), to_gpu(driver, np.full(X.nbytes + 16, 7, np.uint8))
    inside = [
        DeviceArray(whole.pointer + at, X.shape, X.dtype, 0, owner=whole) for whole, at in ((x, first), (y, second))
    ]
    session.run(["y"], {"x": inside[0]}, outputs={"y": inside[1]})
    before, middle, after = np.split(y.numpy(), [second, second + X.nbytes])
    np.testing.assert_array_equal(middle.copy().view(np.float32), diamond_results(X)[0])
    assert {*before, *after} == {7}


def test_outputs_stay_on_the_gpu(session: Session, driver: CudaDriver) -> None:
    """New ones, which go back in as they are; and those that were given, of either kind."""
    y, z = session.run(["y", "z"], {"x": X}, outputs="device", stream=SimpleNamespace(cuda_stream=0))
    np.testing.assert_array_equal(y.numpy(), diamond_results(X)[0])
    (again,) = session.run(["z"], {"x": z})
    np.testing.assert_array_equal(again, diamond_results(diamond_results(X)[1])[1])
    here = np.zeros(SIZE, np.float32)
    found = session.run(None, {"x": X}, outputs={"y": Interface(y), "z": here}, stream=2)
    assert found[1] is here and isinstance(found[0], Interface)
    np.testing.assert_array_equal(here, diamond_results(X)[1])


def test_capsules_hold_what_was_put_in() -> None:
    """numpy takes one of the host's memory, and lets it go; one that nobody takes goes by itself."""
    for dtype in ("float32", "bool", "int64", "uint8", "float16"):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        view = SimpleNamespace(pointer=array.ctypes.data, shape=array.shape, dtype=array.dtype)
        taken = np.from_dlpack(Capsule(view, (1, 0)))
        assert taken.dtype == array.dtype and taken.ctypes.data == array.ctypes.data
        np.testing.assert_array_equal(taken, array)
        assert len(dlpack._EXPORTED_TENSORS) == 1
        del taken
        back = view_gpu_tensor(Capsule(view), 1)
        assert back is not None and (back.pointer, back.shape, back.dtype) == (view.pointer, (2, 3), array.dtype)
        del back
        assert not dlpack._EXPORTED_TENSORS
    with pytest.raises(BufferError, match="float8"):
        export_dlpack_capsule(SimpleNamespace(pointer=0, shape=(), dtype=dlpack.DType("float8_e5m2").numpy), (2, 0))


def test_wrong_tensors_are_refused(session: Session, driver: CudaDriver) -> None:
    there = to_gpu(driver, X)
    odd = to_gpu(driver, np.zeros(SIZE, np.float64))
    wide = driver.allocate_tensor((SIZE, 2), X.dtype)
    elsewhere = DeviceArray(X.ctypes.data, X.shape, X.dtype, 0)
    fixed = Interface(there, data=(there.pointer, True))
    for inputs, outputs, said in (
        ({"x": odd}, None, "input 'x' is float64, expected float32"),
        ({"x": Capsule(wide)}, None, f"input 'x' has shape [{SIZE}, 2], expected [{SIZE}]"),
        ({"x": Interface(there, strides=(8,))}, None, "input 'x' is not contiguous"),
        ({"x": Interface(there, mask=there)}, None, "input 'x' has a mask"),
        ({"x": elsewhere}, None, "input 'x' does not lie on GPU 0"),
        ({"x": there, "w": there}, None, "the model has no input 'w'"),
        ({"x": Interface(there, typestr="<c8")}, None, "complex64"),
        ({"x": X}, {"y": fixed}, "output 'y' may not be written"),
        ({"x": there}, {"y": there}, "output 'y' and input 'x' share memory"),
        ({"x": X}, "gpu", "not to 'gpu'"),
        ({"x": X}, [X, X], "not to [array("),
    ):
        with pytest.raises(AotcError) as caught:
            session.run(None, inputs, outputs=outputs)
        assert said in str(caught.value), said
    for stream in ("default", 1 << 64, -1, True):
        with pytest.raises(AotcError, match="a CUDA stream must be a number"):
            session.run(None, {"x": X}, stream=stream)


def test_outputs_need_memory(session: Session, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_FAKE_MEMORY", "1")
    with pytest.raises(AotcError, match="GPU 0: CUDA_ERROR_OUT_OF_MEMORY"):
        session.run(None, {"x": X}, outputs="device")
    monkeypatch.delenv("AOTC_FAKE_MEMORY")
    assert len(session.run(None, {"x": X}, outputs="device")) == 2


def test_processors_do_not_read_them(driver: CudaDriver) -> None:
    import aotc
    from tests.cuda.test_compile import parser

    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[2] x) => (float[2] y) { y = Neg(x) }'
    there = driver.allocate_tensor((2,), np.dtype(np.float32))
    with pytest.raises(AotcError, match="runs on the processor"):
        aotc.compile(parser.parse_model(text), target="c").session().run(None, {"x": there})


def test_the_driver_says_what_went_wrong() -> None:
    with pytest.raises(AotcError, match="GPU 3: CUDA_ERROR_INVALID_DEVICE"):
        CudaDriver(str(build_fake_cuda_driver()), 3)
