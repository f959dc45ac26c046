# SPDX-License-Identifier: Apache-2.0
"""MobileNet: depthwise separable convolutions (Howard et al., "MobileNets", 2017).

mod, params = get_workload()                     # width multiplier 1, 224 x 224
"""

from typing import Any

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import batch_flatten, global_avg_pool2d, relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, conv2d, dense_add_bias, function_of_free_variables

#: Output channels and stride of each separable block.
_CHANNELS_AND_STRIDES = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((1024, 2), (1024, 1)),
)


def _conv_batch_norm_relu(
    data: Expr, name: str, batch_norm_name: str, channels: int, kernel_size: int, layout: str, **attributes: Any
) -> Expr:
    """Build a convolution called `name`, followed by batch normalization called `batch_norm_name`
    and relu.
    """
    body = conv2d(data, name, channels, kernel_size, data_layout=layout, **attributes)
    return relu(batch_norm_infer(body, batch_norm_name, axis=layout.index("C")))


def _depthwise_separable_conv(
    data: Expr, name: str, in_channels: int, out_channels: int, stride: int, layout: str
) -> Expr:
    """Build a depthwise separable convolution: a 3 x 3 depthwise convolution, then a 1 x 1
    convolution.
    """
    body = _conv_batch_norm_relu(
        data, name, f"{name}_bn1", in_channels, 3, layout, stride=stride, padding=1, groups=in_channels
    )
    return _conv_batch_norm_relu(body, f"{name}_conv2", f"{name}_bn2", out_channels, 1, layout)


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
    body = _conv_batch_norm_relu(body, "conv_block_1_conv", "conv_block_1_bn", 32, 3, layout, stride=2, padding=1)
    channels = 32
    for number, (outputs, stride) in enumerate(_CHANNELS_AND_STRIDES, 1):
        body = _depthwise_separable_conv(body, f"separable_conv_block_{number}", channels, outputs, stride, layout)
        channels = outputs
    flat = batch_flatten(global_avg_pool2d(body, layout=layout))
    return function_of_free_variables(softmax(dense_add_bias(flat, "fc", num_classes, axis=1)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
