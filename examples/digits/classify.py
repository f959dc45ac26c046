# SPDX-License-Identifier: Apache-2.0
"""Classify the held-out digits with the compiled network and print the accuracy.

In: a library (or the project that holds one) and digits_test.bin, 65 bytes an image: 64 gray values from 0 to
16, then the label.  Needs numpy and cffi; neither onnx nor a compiler.

    python classify.py ../../build/examples/digits digits_test.bin
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import aotc

PIXELS = 64


def main(library: Path, images: Path) -> None:
    rows = np.frombuffer(images.read_bytes(), np.uint8).reshape(-1, PIXELS + 1)
    session = aotc.load(library)
    info = session.get_inputs()[0]
    binding = session.bind({"image": np.zeros(info.shape, info.dtype.numpy)})
    image, scores = binding.inputs["image"], binding.outputs["scores"]
    correct = 0
    for row in rows:
        gray = row[:PIXELS].reshape(image.shape) / 16
        # integers for the quantized network
        image[...] = info.quantization.quantize(gray) if info.quantization else gray
        binding.run()
        correct += int(scores.argmax() == row[PIXELS])
    name = "Python, int8" if info.quantization else "Python"
    print(f"{name}: {correct} of {len(rows)} digits right ({100 * correct / len(rows):.2f} %)")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: classify.py LIBRARY digits_test.bin")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
