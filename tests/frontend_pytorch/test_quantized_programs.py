# SPDX-License-Identifier: Apache-2.0
"""Networks quantized by PyTorch's quantizer (pt2e, in torchao), compiled to C, against torch."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import aotc
from aotc import relay
from aotc.checking.output_comparison import MAX_SNR_LOSS_DB, signal_to_noise_decibels
from aotc.reporting.model_inspection import inspect_model
from tests.frontend_pytorch.frontend_comparison import leaves
from tests.frontend_pytorch.small_networks import NETS, spread_statistics

pytest.importorskip("torchao")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e.observer import MinMaxObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86


class Powers:
    """An observer of scales that are powers of two: in torch's float32, too, no sum of products is rounded."""

    def calculate_qparams(self) -> tuple[Any, Any]:
        scale, zero = super().calculate_qparams()  # type: ignore[misc]
        return 2.0 ** torch.log2(scale).ceil(), zero


class OfTensor(Powers, MinMaxObserver):
    pass


class OfChannel(Powers, PerChannelMinMaxObserver):
    pass


def config(powers: bool = False, **kind: bool) -> Any:
    found = x86.get_default_x86_inductor_quantization_config(**kind)
    if not powers:
        return found
    how = {"eps": 2.0**-12}
    data = replace(found.input_activation, observer_or_fake_quant_ctr=OfTensor.with_args(**how))
    weight = replace(found.weight, observer_or_fake_quant_ctr=OfChannel.with_args(**how))
    return replace(found, input_activation=data, output_activation=data, weight=weight)


def outputs(name: str, how: Any) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    """What is left on real numbers; what aotc, torch, and the float network give."""
    torch.manual_seed(0)
    make, example = NETS[name]
    net, inputs = spread_statistics(make()).eval(), example()
    quantizer = x86.X86InductorQuantizer().set_global(how)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(net, inputs).module(), quantizer)
        for _ in range(2):
            prepared(*example())
        quantized = convert_pt2e(prepared)
        for key, value in quantized.named_parameters():
            if key.endswith("bias"):
                value.copy_((value * 2**10).round() / 2**10)
        program = torch.export.export(quantized, inputs)
        theirs, exact = (leaves(f(*inputs))[0] for f in (quantized, net))
    module, _ = relay.frontend.from_exported_program(program)
    left = [row["operator"] for row in inspect_model(module)["left_real"]]
    session = aotc.compile(module, cflags=("-O1",)).session()
    given = dict(zip([v.name for v in session.get_inputs()], (x.numpy() for x in inputs), strict=True))
    return left, [session.run(None, given)[0], theirs, exact]


def test_integers_of_a_residual_network() -> None:
    left, (ours, theirs, exact) = outputs("resnet", config(powers=True))
    np.testing.assert_array_equal(ours, theirs)
    assert 5 < signal_to_noise_decibels(ours, exact) < 60
    # its quantizer leaves biases and sums beside convolutions in float32
    assert set(left) == {"nn.bias_add", "add"}


@pytest.mark.parametrize(("name", "how"), [("inverted", {}), ("encoder", {"is_dynamic": True})])
def test_noise_is_that_of_torch(name: str, how: dict[str, bool]) -> None:
    left, (ours, theirs, exact) = outputs(name, config(**how))
    assert signal_to_noise_decibels(ours, exact) >= signal_to_noise_decibels(theirs, exact) - MAX_SNR_LOSS_DB
    assert signal_to_noise_decibels(ours, theirs) > signal_to_noise_decibels(theirs, exact)
    # products with scales that are found at run time are left, too
    assert ("nn.dense" in left) == bool(how) and "nn.conv2d" not in left
