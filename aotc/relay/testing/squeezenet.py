# SPDX-License-Identifier: Apache-2.0
"""SqueezeNet: fire modules, which reduce the number of channels by a 1 x 1 convolution and then
expand it again (Iandola et al., 2016).

mod, params = get_workload(version="1.0")        # or "1.1"
"""

from aotc.ir import AotcError, TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op import builders
from aotc.relay.op.builders import relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import conv2d, function_of_free_variables, parameter_variable

_POOL_MARKER = 0
#: By version, the first convolution (channels, size, padding), then the sequence of pools and fire
#: modules; a number is the reduced number of channels of a fire module.
_STRUCTURE_BY_VERSION = {
    "1.0": ((96, 7, 3), (_POOL_MARKER, 16, 16, 32, _POOL_MARKER, 32, 48, 48, 64, _POOL_MARKER, 64)),
    "1.1": ((64, 3, 1), (_POOL_MARKER, 16, 16, _POOL_MARKER, 32, 32, _POOL_MARKER, 48, 48, 64, 64)),
}


def _conv_bias_relu(data: Expr, name: str, channels: int, kernel_size: int, padding: int = 0, stride: int = 1) -> Expr:
    """Build a convolution with bias and relu."""
    result = conv2d(data, name, channels, kernel_size, stride, padding)
    return relu(builders.bias_add(result, parameter_variable(f"{name}_bias", (channels,), data)))


def _fire_module(data: Expr, name: str, squeezed_channels: int) -> Expr:
    inner = _conv_bias_relu(data, f"{name}_input_conv", squeezed_channels, 1)
    left = _conv_bias_relu(inner, f"{name}_left_conv", 4 * squeezed_channels, 1)
    right = _conv_bias_relu(inner, f"{name}_right_conv", 4 * squeezed_channels, 3, padding=1)
    return builders.concatenate((left, right), axis=1)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    version: str = "1.0",
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape) and its parameters; the
    result is (batch_size, num_classes).

    Raises AotcError for an unknown version.
    """
    if version not in _STRUCTURE_BY_VERSION:
        raise AotcError(
            "squeezenet", f"SqueezeNet has no version {version!r}", hint=f"known: {', '.join(_STRUCTURE_BY_VERSION)}"
        )
    (channels, size, padding), body_plan = _STRUCTURE_BY_VERSION[version]
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    body = _conv_bias_relu(body, "conv1", channels, size, padding, stride=2)
    number = 0
    for squeezed in body_plan:
        if squeezed == _POOL_MARKER:
            body = builders.max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
        else:
            number += 1
            body = _fire_module(body, f"fire{number}", squeezed)
    body = _conv_bias_relu(builders.dropout(body, rate=0.5), "conv_final", num_classes, 1)
    return function_of_free_variables(softmax(builders.batch_flatten(builders.global_avg_pool2d(body))))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
