# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of converting torch.export programs: ResNet-50, a transformer, and an
unsupported program.

python -m benchmarks.torch_export_import_time
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import aotc
from aotc.relay.frontend.pytorch import from_exported


class Block(nn.Module):
    """Bottleneck residual block of ResNet-50 as a PyTorch module."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if same else skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.skip(x))


class Residual(nn.Module):
    """ResNet-50 with channels divided by 8; with `unsupported`, it ends with an operator that aotc
    rejects.
    """

    def __init__(self, unsupported: bool) -> None:
        super().__init__()
        self.unsupported = unsupported
        blocks, inputs = list[nn.Module](), 8
        for width, count, stride in ((8, 3, 1), (16, 4, 2), (32, 6, 2), (64, 3, 2)):
            for k in range(count):
                blocks.append(Block(inputs, width, stride if k == 0 else 1))
                inputs = width * 4
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)
        )
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return torch.linalg.svdvals(y) if self.unsupported else y


def build_transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


def cpu_seconds_and_outcome_of_call(function: Callable[[], Any]) -> tuple[float, str]:
    """Return the CPU time of a call in seconds, and "converted" or the message of the AotcError
    that it raised.
    """
    start = time.process_time()
    try:
        function()
        end = "converted"
    except aotc.AotcError as error:
        end = error.diagnostics[0].message
    return time.process_time() - start, end


def print_conversion_times() -> None:
    image, tokens = torch.randn(1, 3, 64, 64), torch.randn(1, 16, 64)
    cases = {
        "ResNet-50": (Residual(False), image),
        "ResNet-50 with svdvals": (Residual(True), image),
        "transformer": (build_transformer_encoder(), tokens),
    }
    warnings.simplefilter("ignore")
    for name, (net, data) in cases.items():
        program = torch.export.export(net.eval(), (data,))
        runs = [cpu_seconds_and_outcome_of_call(lambda p=program: from_exported(p)) for _ in range(5)]  # type: ignore[misc]
        print(f"{name}: {min(seconds for seconds, _ in runs):.2f} s, {runs[0][1]}")


if __name__ == "__main__":
    print_conversion_times()
