# SPDX-License-Identifier: Apache-2.0
"""Quantise the network to int8 and write it as ONNX: pip install 'aotc[quantize]'.

In: digits.onnx, and the first images of digits_test.bin, on which the ranges of activations are found.  Out:
digits_int8.onnx, and what each layer loses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import aotc

HERE = Path(__file__).parent
PIXELS = 64
IMAGES = 60


def main() -> None:
    rows = np.fromfile(HERE / "digits_test.bin", np.uint8).reshape(-1, PIXELS + 1)
    images = rows[:IMAGES, :PIXELS].reshape(-1, 1, 1, 8, 8).astype(np.float32) / 16
    report = aotc.quantize(
        HERE / "digits.onnx",
        HERE / "digits_int8.onnx",
        [{"image": image} for image in images],
        per_channel=True,
        build=False,
    )
    for layer in report["layers"]:
        print(f"{layer['node']:8} {layer['operator']:8} {layer['snr_db']:.1f} dB")


if __name__ == "__main__":
    main()
