# SPDX-License-Identifier: Apache-2.0
"""MobileNet: depthwise separable convolutions (Howard et al., "MobileNets", 2017).

mod, params = get_workload()                     # width multiplier 1, 224 x 224
"""

from typing import Any

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import batch_flatten, global_avg_pool2d, relu, softmax
from aotc.relay.testing.init import workloads_of
from aotc.relay.testing.layers import batch_norm_infer, conv2d, dense_add_bias, network

#: Output channels and stride of each separable block.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((1024, 2), (1024, 1)),
)


def _layer(data: Expr, name: str, norm: str, channels: int, size: int, layout: str, **attributes: Any) -> Expr:
    """Build a convolution called `name`, followed by batch normalization called `norm` and relu."""
    body = conv2d(data, name, channels, size, data_layout=layout, **attributes)
    return relu(batch_norm_infer(body, norm, axis=layout.index("C")))


def _separable(data: Expr, name: str, inputs: int, outputs: int, stride: int, layout: str) -> Expr:
    """Build a depthwise separable convolution: a 3 x 3 depthwise convolution, then a 1 x 1
    convolution.
    """
    body = _layer(data, name, f"{name}_bn1", inputs, 3, layout, stride=stride, padding=1, groups=inputs)
    return _layer(body, f"{name}_conv2", f"{name}_bn2", outputs, 1, layout)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape, in the order of
    `layout`) and its parameters; the result is (batch_size, num_classes).
    """
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    body = _layer(body, "conv_block_1_conv", "conv_block_1_bn", 32, 3, layout, stride=2, padding=1)
    channels = 32
    for number, (outputs, stride) in enumerate(_BLOCKS, 1):
        body = _separable(body, f"separable_conv_block_{number}", channels, outputs, stride, layout)
        channels = outputs
    flat = batch_flatten(global_avg_pool2d(body, layout=layout))
    return network(softmax(dense_add_bias(flat, "fc", num_classes, axis=1)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = workloads_of(get_net)
