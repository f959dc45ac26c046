# SPDX-License-Identifier: Apache-2.0
"""DenseNet-121: the input of each layer of a block is the concatenation of the results of all
earlier layers (Huang et al., 2017).

mod, params = get_workload(batch_size=1)
"""

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var, tensor_type_of
from aotc.relay.op.builders import avg_pool2d, batch_flatten, concatenate, global_avg_pool2d, max_pool2d, relu
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, conv2d, dense_add_bias, function_of_free_variables

_LAYERS_PER_BLOCK = (6, 12, 24, 16)
_GROWTH_CHANNELS = 32


def _batch_norm_and_relu(data: Expr, name: str) -> Expr:
    return relu(batch_norm_infer(data, name, epsilon=1e-5))


def _densenet_layer(data: Expr, name: str) -> Expr:
    body = conv2d(_batch_norm_and_relu(data, f"{name}_bn1"), f"{name}_conv1", 4 * _GROWTH_CHANNELS, 1)
    body = conv2d(_batch_norm_and_relu(body, f"{name}_bn2"), f"{name}_conv2", _GROWTH_CHANNELS, 3, padding=1)
    return concatenate((data, body), axis=1)


def get_net(
    batch_size: int = 1, classes: int = 1000, image_shape: tuple[int, int, int] = (3, 224, 224), dtype: str = "float32"
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape); the result is
    (batch_size, classes).
    """
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    body = _batch_norm_and_relu(conv2d(body, "conv0", 2 * _GROWTH_CHANNELS, 7, 2, 3), "bn0")
    body = max_pool2d(body, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    for block, layers in enumerate(_LAYERS_PER_BLOCK, 1):
        if block > 1:  # a transition halves the number of channels, height and width
            half = tensor_type_of(body).static_shape[1] // 2
            body = conv2d(
                _batch_norm_and_relu(body, f"transition{block - 1}_bn"), f"transition{block - 1}_conv", half, 1
            )
            body = avg_pool2d(body, pool_size=(2, 2), strides=(2, 2))
        for layer in range(1, layers + 1):
            body = _densenet_layer(body, f"block{block}_layer{layer}")
    body = global_avg_pool2d(_batch_norm_and_relu(body, "bn_final"))
    return function_of_free_variables(dense_add_bias(batch_flatten(body), "fc", classes))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
