# SPDX-License-Identifier: Apache-2.0
"""A small synthetic network for quick tests: convolutions, batch normalization, pooling, a residual
addition, a classifier.

mod, params = get_workload()
"""

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import add, batch_flatten, global_avg_pool2d, max_pool2d, relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, conv2d, dense_add_bias, function_of_free_variables


def get_net(
    input_shape: tuple[int, int, int, int] = (1, 3, 24, 12), num_classes: int = 10, dtype: str = "float32"
) -> Function:
    """Build the network as a function of `data` (input_shape, NCHW); the result is (batch,
    num_classes).
    """
    body: Expr = Var("data", TensorType(input_shape, dtype))
    body = relu(batch_norm_infer(conv2d(body, "conv1", 8, 3, padding=1), "bn1"))
    body = max_pool2d(body, pool_size=(2, 2), strides=(2, 2))
    body = add(body, relu(batch_norm_infer(conv2d(body, "conv2", 8, 3, padding=1), "bn2")))
    return function_of_free_variables(
        softmax(dense_add_bias(batch_flatten(global_avg_pool2d(body)), "fc", num_classes))
    )


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
