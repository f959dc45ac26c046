# SPDX-License-Identifier: Apache-2.0
"""Trained ONNX models, converted and evaluated by reference, give ONNX Runtime's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluation import run_model

from aotc.relay.frontend.onnx import from_onnx

NAMES = (
    "mnist8", "superres10", "squeezenet10_fp32", "ppocr_cls", "ultraface_rfb320", "yunet_n_320", "yolox_nano",
    "selfie_seg", "vittrack", "dtln_2", "kws_fp32", "magika_v3_3", "dtln_1", "gtcrn_simple",
    "tinystories260k_prefill", "tinystories260k_decode", "silero_vad_16k_op15",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_trained_model(name: str, models: Path) -> None:
    with np.load(models / f"{name}.npz") as file:
        inputs = {k[3:]: file[k] for k in file.files if k.startswith("in/")}
        expected = {k[4:]: file[k] for k in file.files if k.startswith("out/")}
    module = from_onnx(models / f"{name}.onnx", shape={k: v.shape for k, v in inputs.items()})
    names = module.attrs["output_names"]
    assert set(names) == set(expected)
    for output, actual in zip(names, run_model(module, inputs), strict=True):
        assert actual.dtype == expected[output].dtype
        # 3e-4: sigmoids of ONNX Runtime are approximations; a wrong model is off by orders of magnitude
        np.testing.assert_allclose(actual, expected[output], rtol=1e-3, atol=3e-4, err_msg=output)
