# SPDX-License-Identifier: Apache-2.0
"""The deep Q network that plays Atari games from pixels (Mnih et al., 2015).

mod, params = get_workload(batch_size=1)         # four frames of 84 x 84
"""

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import batch_flatten, bias_add, relu
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import conv2d, dense_add_bias, function_of_free_variables, parameter_variable


def get_net(
    batch_size: int = 1, num_actions: int = 18, image_shape: tuple[int, int, int] = (4, 84, 84), dtype: str = "float32"
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape); the result is
    (batch_size, num_actions).
    """
    body: Expr = Var("data", TensorType((batch_size, *image_shape), dtype))
    for number, (channels, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 1):
        body = conv2d(body, f"conv{number}", channels, size, stride)
        body = relu(bias_add(body, parameter_variable(f"conv{number}_bias", (channels,), body)))
    body = relu(dense_add_bias(batch_flatten(body), "dense1", 512))
    return function_of_free_variables(dense_add_bias(body, "dense2", num_actions))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
