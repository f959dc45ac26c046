# SPDX-License-Identifier: Apache-2.0
"""Pipelines of scikit-learn, XGBoost and LightGBM, as exported to ONNX, in compiled C against ONNX Runtime.

`tests/zoo/classical_pipelines.py` makes the archive of models and of rows to try them on.
"""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, load_model_from_string, numpy_helper

import aotc
from tests.share import share

ARCHIVE = Path(__file__).with_name("classical_pipelines.zip")
LONGEST_TEXT = 80
#: At least so many pipelines compile, and give the labels of ONNX Runtime.
LEAST_PIPELINES = 60


@cache
def names() -> list[str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return sorted({name.partition("/")[0] for name in archive.namelist()})


def read(name: str) -> tuple[ModelProto, dict[str, Any]]:
    """Return the model of a pipeline, and values of its inputs by name."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        files = {file: archive.read(file) for file in archive.namelist() if file.startswith(f"{name}/")}
    model = load_model_from_string(files.pop(f"{name}/model.onnx"))
    tensors = [TensorProto.FromString(data) for data in files.values()]
    return model, {tensor.name: as_text(numpy_helper.to_array(tensor)) for tensor in tensors}


def as_text(array: Any) -> Any:
    """Return strings as str objects, and other arrays unchanged."""
    if array.dtype != object:
        return array
    return np.array([t.decode() if isinstance(t, bytes) else t for t in array.reshape(-1)], object).reshape(array.shape)


def rows_of_maps(output: Any) -> Any:
    """Return what ZipMap makes, a list of maps from class labels to scores, as rows of scores; others unchanged."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        return np.array([list(scores.values()) for scores in output], np.float32)
    return np.asarray(output)


def compare(name: str) -> None:
    model, feed = read(name)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feed)
    dims = {key: LONGEST_TEXT for key, x in feed.items() if x.dtype == object}
    shapes = {key: x.shape for key, x in feed.items()}
    found = aotc.compile(model, input_shapes=shapes, dims=dims, cflags=("-O0",)).session().run(None, feed)
    for info, a, b in zip(model.graph.output, expected, found, strict=True):
        a = rows_of_maps(a)
        assert a.shape == b.shape and a.dtype == b.dtype, info.name
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-6, err_msg=info.name)
        else:
            assert a.tolist() == b.tolist(), info.name


@pytest.mark.parametrize("name", share(names(), 4))
def test_labels_are_those_of_onnx_runtime(name: str) -> None:
    compare(name)


@pytest.mark.always
def test_kinds_of_pipelines() -> None:
    assert len(names()) >= LEAST_PIPELINES
    operators = {node.op_type for name in names() for node in read(name)[0].graph.node}
    assert operators >= {"TreeEnsembleClassifier", "SVMClassifier", "Imputer", "OneHotEncoder", "TfIdfVectorizer"}
