# SPDX-License-Identifier: Apache-2.0
"""Inception v3: blocks of parallel branches of convolutions with kernels of several sizes (Szegedy
et al., 2016).

mod, params = get_workload(batch_size=1)         # images of 299 x 299
"""

from typing import TypeAlias

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var, tensor_type_of
from aotc.relay.op import builders
from aotc.relay.op.builders import avg_pool2d, batch_flatten, concatenate, max_pool2d, relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, dense_add_bias, function_of_free_variables, parameter_variable

#: A convolution: output channels, kernel height and width, stride, and True for padding that
#: preserves height and width (with stride 1).
_ConvSpec: TypeAlias = "tuple[int, int, int, int, bool]"


def _same_size_conv_spec(channels: int, height: int, width: int = 0) -> _ConvSpec:
    return channels, height, width or height, 1, True


def _downsampling_conv_spec(channels: int) -> _ConvSpec:
    return channels, 3, 3, 2, False


def _conv_batch_norm_relu(data: Expr, name: str, layer: _ConvSpec) -> Expr:
    """Build a convolution followed by batch normalization and relu."""
    channels, height, width, stride, same = layer
    weight = parameter_variable(f"{name}_weight", (channels, tensor_type_of(data).shape[1], height, width), data)
    padding = (height // 2, width // 2) if same else (0, 0)
    body = builders.conv2d(data, weight, (stride, stride), padding, channels=channels, kernel_size=(height, width))
    return relu(batch_norm_infer(body, f"{name}_bn", epsilon=2e-5, scale=False))


def _conv_chain(data: Expr, name: str, *layers: _ConvSpec) -> Expr:
    for number, layer in enumerate(layers):
        data = _conv_batch_norm_relu(data, f"{name}_{number}", layer)
    return data


def _same_size_avg_pool(data: Expr) -> Expr:
    return avg_pool2d(data, pool_size=(3, 3), strides=(1, 1), padding=(1, 1), count_include_pad=True)


def _inception_block(data: Expr, name: str, pool_channels: int, *chains: tuple[_ConvSpec, ...]) -> Expr:
    """Build a block of parallel branches and concatenate their results: one branch per chain of
    convolutions, and one pooling branch. That is an average pool with a projection to
    `pool_channels` channels, or for `pool_channels` 0 a max pool of stride 2.
    """
    branches = [_conv_chain(data, f"{name}_chain{k}", *chain) for k, chain in enumerate(chains)]
    if pool_channels:
        branches.append(
            _conv_batch_norm_relu(_same_size_avg_pool(data), f"{name}_pool", _same_size_conv_spec(pool_channels, 1))
        )
    else:
        branches.append(max_pool2d(data, pool_size=(3, 3), strides=(2, 2)))
    return concatenate(branches, axis=1)


def _final_inception_block(data: Expr, name: str) -> Expr:
    """Build a block of the last kind, in which two chains end in two parallel convolutions each."""
    first = _conv_chain(data, f"{name}_chain1", _same_size_conv_spec(384, 1))
    second = _conv_chain(data, f"{name}_chain2", _same_size_conv_spec(448, 1), _same_size_conv_spec(384, 3))
    ends = [
        _conv_batch_norm_relu(inner, f"{name}_end{k}{axis}", _same_size_conv_spec(384, *extents))
        for k, inner in enumerate((first, second))
        for axis, extents in (("h", (1, 3)), ("v", (3, 1)))
    ]
    rest = [
        _conv_batch_norm_relu(data, f"{name}_chain0", _same_size_conv_spec(320, 1)),
        _conv_batch_norm_relu(_same_size_avg_pool(data), f"{name}_pool", _same_size_conv_spec(192, 1)),
    ]
    return concatenate([rest[0], *ends, rest[1]], axis=1)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 299, 299),
    dtype: str = "float32",
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape); the result is
    (batch_size, num_classes).
    """
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    body = _conv_chain(body, "stem", _downsampling_conv_spec(32), (32, 3, 3, 1, False), _same_size_conv_spec(64, 3))
    body = max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
    body = _conv_chain(body, "stem_more", _same_size_conv_spec(80, 1), (192, 3, 3, 1, False))
    body = max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
    for k, pool in enumerate((32, 64, 64)):
        small = (
            (_same_size_conv_spec(64, 1),),
            (_same_size_conv_spec(48, 1), _same_size_conv_spec(64, 5)),
            (_same_size_conv_spec(64, 1), _same_size_conv_spec(96, 3), _same_size_conv_spec(96, 3)),
        )
        body = _inception_block(body, f"mixed{k}", pool, *small)
    body = _inception_block(
        body,
        "mixed3",
        0,
        (_downsampling_conv_spec(384),),
        (_same_size_conv_spec(64, 1), _same_size_conv_spec(96, 3), _downsampling_conv_spec(96)),
    )
    for k, n in enumerate((128, 160, 160, 192), 4):
        long = (
            _same_size_conv_spec(n, 1),
            _same_size_conv_spec(n, 7, 1),
            _same_size_conv_spec(n, 1, 7),
            _same_size_conv_spec(n, 7, 1),
            _same_size_conv_spec(192, 1, 7),
        )
        body = _inception_block(
            body,
            f"mixed{k}",
            192,
            (_same_size_conv_spec(192, 1),),
            (_same_size_conv_spec(n, 1), _same_size_conv_spec(n, 1, 7), _same_size_conv_spec(192, 7, 1)),
            long,
        )
    rows = (
        _same_size_conv_spec(192, 1),
        _same_size_conv_spec(192, 1, 7),
        _same_size_conv_spec(192, 7, 1),
        _downsampling_conv_spec(192),
    )
    body = _inception_block(body, "mixed8", 0, (_same_size_conv_spec(192, 1), _downsampling_conv_spec(320)), rows)
    body = _final_inception_block(_final_inception_block(body, "mixed9"), "mixed10")
    body = batch_flatten(avg_pool2d(body, pool_size=(8, 8), strides=(1, 1)))
    return function_of_free_variables(softmax(dense_add_bias(body, "fc1", num_classes)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
