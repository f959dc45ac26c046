# SPDX-License-Identifier: Apache-2.0
"""The generator of DCGAN: transposed convolutions from a random vector to an image (Radford et al.,
2016).

mod, params = get_workload(batch_size=1)         # 64 x 64 RGB
"""

from aotc.ir import TensorType
from aotc.relay.expr import Expr, Function, Var, tensor_type_of
from aotc.relay.op.builders import conv2d_transpose, dense, relu, reshape, tanh
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, function_of_free_variables, parameter_variable


def _doubling_transposed_conv(data: Expr, name: str, channels: int) -> Expr:
    """Build a transposed convolution that doubles height and width."""
    size = (4, 4)
    weight = parameter_variable(f"{name}_weight", (tensor_type_of(data).shape[1], channels, *size), data)
    return conv2d_transpose(data, weight, channels=channels, kernel_size=size, strides=(2, 2), padding=(1, 1))


def get_net(
    batch_size: int = 1, random_len: int = 100, channels: int = 3, ngf: int = 128, dtype: str = "float32"
) -> Function:
    """Build the network as a function of `data` (batch_size, random_len); the result is
    (batch_size, channels, 64, 64).

    ngf    channels of the layer before the last; each earlier layer has twice as many as the next
           one
    """
    data = Var("data", TensorType((batch_size, random_len), dtype))
    units = 8 * ngf * 4 * 4
    body: Expr = relu(dense(data, parameter_variable("dense_weight", (units, random_len), data), units=units))
    body = reshape(body, (-1, 8 * ngf, 4, 4))
    for number, multiple in ((2, 4), (3, 2), (4, 1)):
        body = _doubling_transposed_conv(body, f"g{number}_deconv", multiple * ngf)
        body = relu(batch_norm_infer(body, f"g{number}_batch_norm", scale=False))
    return function_of_free_variables(tanh(_doubling_transposed_conv(body, "g5_deconv", channels)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
