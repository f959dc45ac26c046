# SPDX-License-Identifier: Apache-2.0
"""SqueezeNet: fire modules, which reduce the number of channels by a 1 x 1 convolution and then
expand it again (Iandola et al., 2016).

mod, params = get_workload(version="1.0")        # or "1.1"
"""

from aotc.ir import AotcError, TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op import builders
from aotc.relay.op.builders import relu, softmax
from aotc.relay.testing.init import workloads_of
from aotc.relay.testing.layers import conv2d, network, parameter

_POOL = 0
#: By version, the first convolution (channels, size, padding), then the sequence of pools and fire
#: modules; a number is the reduced number of channels of a fire module.
_VERSIONS = {
    "1.0": ((96, 7, 3), (_POOL, 16, 16, 32, _POOL, 32, 48, 48, 64, _POOL, 64)),
    "1.1": ((64, 3, 1), (_POOL, 16, 16, _POOL, 32, 32, _POOL, 48, 48, 64, 64)),
}


def _conv(data: Expr, name: str, channels: int, size: int, padding: int = 0, stride: int = 1) -> Expr:
    """Build a convolution with bias and relu."""
    result = conv2d(data, name, channels, size, stride, padding)
    return relu(builders.bias_add(result, parameter(f"{name}_bias", (channels,), data)))


def _fire(data: Expr, name: str, squeezed: int) -> Expr:
    inner = _conv(data, f"{name}_input_conv", squeezed, 1)
    left = _conv(inner, f"{name}_left_conv", 4 * squeezed, 1)
    right = _conv(inner, f"{name}_right_conv", 4 * squeezed, 3, padding=1)
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
    if version not in _VERSIONS:
        raise AotcError("squeezenet", f"SqueezeNet has no version {version!r}", hint=f"known: {', '.join(_VERSIONS)}")
    (channels, size, padding), body_plan = _VERSIONS[version]
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    body = _conv(body, "conv1", channels, size, padding, stride=2)
    number = 0
    for squeezed in body_plan:
        if squeezed == _POOL:
            body = builders.max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
        else:
            number += 1
            body = _fire(body, f"fire{number}", squeezed)
    body = _conv(builders.dropout(body, rate=0.5), "conv_final", num_classes, 1)
    return network(softmax(builders.batch_flatten(builders.global_avg_pool2d(body))))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = workloads_of(get_net)
