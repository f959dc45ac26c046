# SPDX-License-Identifier: Apache-2.0
"""Multilayer perceptron with two hidden layers of 128 and 64 units.

mod, params = get_workload(batch_size=1)         # digits of 28 x 28
"""

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import batch_flatten, relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import dense_add_bias, function_of_free_variables


def get_net(
    batch_size: int = 1, num_classes: int = 10, image_shape: tuple[int, ...] = (1, 28, 28), dtype: str = "float32"
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape) and its parameters; the
    result is (batch_size, num_classes).
    """
    body: Expr = batch_flatten(Var("data", TensorType((batch_size, *image_shape), dtype)))
    body = relu(dense_add_bias(body, "fc1", 128))
    body = relu(dense_add_bias(body, "fc2", 64))
    return function_of_free_variables(softmax(dense_add_bias(body, "fc3", num_classes)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
