# SPDX-License-Identifier: Apache-2.0
"""A keyword spotter on a microcontroller: build a network, quantize it, compile it to firmware, run it on a board.

    python examples/keyword_spotter/keyword_spotter.py build/keyword_spotter

In: nothing; the network has the layers of a small DS-CNN and seeded random weights, so its answers mean nothing.  Use
your own trained ONNX model in its place.  Out: the C project and the firmware in the given folder, and the output of
the self-test on the emulated board.  Needs arm-none-eabi-gcc, qemu-system-arm and the extra `quantize`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aotc

BOARD = Path(__file__).resolve().parents[1] / "embedded"
FRAMES, COEFFICIENTS, KEYWORDS, CHANNELS = 49, 10, 12, 32
RAM_BYTES, FLASH_BYTES, STACK_BYTES = 64 << 10, 128 << 10, 4 << 10
CPU = ["-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"]
MEMORIES = ["flash_origin=0", "flash_bytes=4M", "ram_origin=0x20000000", "ram_bytes=4M"]

FIRMWARE = r"""
#include "board.h"
#include "spotter.h"

static unsigned char workspace[SPOTTER_WORKSPACE_BYTES] __attribute__((aligned(SPOTTER_WORKSPACE_ALIGNMENT)));
static int8_t scores[SPOTTER_OUTPUT_SCORES_ELEMENTS];

int main(void) {
  const spotter_outputs outputs = {scores};
  const int status = spotter_selftest(&outputs, workspace);
  print(status == AOTC_OK ? "self-test passed\n" : "self-test failed\n");
  return status;
}
"""


def network(seed: int = 0) -> onnx.ModelProto:
    """features float32[1, 1, 49, 10] (MFCC of one second of sound) -> scores float32[1, 12]."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, *shape: int) -> str:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name))
        return name

    def conv_relu(x: str, name: str, shape: tuple[int, ...], **attributes: Any) -> str:
        inputs = [x, constant(f"{name}_weight", *shape)]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}_sum"], name, kernel_shape=shape[2:], **attributes))
        nodes.append(helper.make_node("Relu", [f"{name}_sum"], [name], f"{name}_relu"))
        return name

    x = conv_relu("features", "first", (CHANNELS, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 2])
    for k in range(3):
        x = conv_relu(x, f"depthwise{k}", (CHANNELS, 1, 3, 3), group=CHANNELS, pads=[1, 1, 1, 1])
        x = conv_relu(x, f"pointwise{k}", (CHANNELS, CHANNELS, 1, 1))
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"], "pool"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"], "flatten"))
    nodes.append(
        helper.make_node("MatMul", ["flat", constant("dense_weight", CHANNELS, KEYWORDS)], ["scores"], "dense")
    )
    data = helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 1, FRAMES, COEFFICIENTS])
    result = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, KEYWORDS])
    graph = helper.make_graph(nodes, "spotter", [data], [result], weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def quantized(model: onnx.ModelProto, path: Path) -> Path:
    """The int8 model in a file; ranges of activations are found on random features."""
    rng = np.random.default_rng(1)
    samples = [{"features": rng.normal(size=(1, 1, FRAMES, COEFFICIENTS)).astype(np.float32)} for _ in range(16)]
    aotc.quantize(model, path, samples, per_channel=True, build=False)
    return path


def firmware(project: Path, folder: Path) -> Path:
    """The program for the board: the library of the project, `FIRMWARE`, and the start-up code of examples/embedded."""
    (folder / "main.c").write_text(FIRMWARE, encoding="utf-8")
    link = ["arm-none-eabi-gcc", *CPU, "-O2", "-nostartfiles", "-Wl,--gc-sections", "-T", BOARD / "board.ld"]
    link += [f"-Wl,--defsym={memory}" for memory in MEMORIES]
    link += ["-I", BOARD, "-I", project / "include", folder / "main.c", BOARD / "start.c"]
    link += [project / "lib" / "libspotter.a", "-o", folder / "firmware.elf"]
    subprocess.run([str(part) for part in link], check=True)
    return folder / "firmware.elf"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = quantized(network(), folder / "spotter.onnx")
    model = aotc.compile(
        path,
        output=folder / "project",
        name="spotter",
        target="cortex-m4",
        io_dtype="int8",
        selftest=True,
        ram=RAM_BYTES,
        flash=FLASH_BYTES,
        stack=STACK_BYTES,
    )
    needs = model.metadata["footprint"]
    print(f"arena {needs['arena']} bytes, parameters {needs['parameters']} bytes, stack at most {needs['stack']} bytes")
    qemu = ["qemu-system-arm", "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"]
    qemu += ["-semihosting-config", "enable=on,target=native", "-kernel", str(firmware(model.path, folder))]
    done = subprocess.run(qemu, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    print(done.stdout, end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
