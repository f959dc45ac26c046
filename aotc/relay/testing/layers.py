# SPDX-License-Identifier: Apache-2.0
"""Graph builders of layers: operators together with variables for their parameters, which are named
after the layer.

x = conv2d(x, "conv0", 64, 7, stride=2, padding=3)         # %conv0_weight
x = batch_norm_infer(x, "bn0", epsilon=2e-5)               # %bn0_gamma, ...
"""

from typing import Any

from aotc.ir import Dim, TensorType
from aotc.relay.analysis import free_vars
from aotc.relay.expr import Expr, Function, TupleGetItem, Var, tensor_type_of
from aotc.relay.op.builders import batch_norm, bias_add, dense
from aotc.relay.op.builders import conv2d as conv2d_op


def parameter_variable(name: str, shape: tuple[Dim, ...], dtype_source: Expr) -> Var:
    """Create the variable of a layer's parameter, with a name, a shape and the data type of
    `dtype_source`.
    """
    return Var(name, TensorType(shape, tensor_type_of(dtype_source).dtype))


def function_of_free_variables(result: Expr) -> Function:
    """Return a function with the body `result`, whose parameters are its free variables, the data
    first.
    """
    return Function(free_vars(result), result)


def conv2d(
    data: Expr,
    name: str,
    channels: int,
    size: int,
    stride: int = 1,
    padding: int = 0,
    *,
    groups: int = 1,
    data_layout: str = "NCHW",
) -> Expr:
    """Build a convolution without bias, with a kernel of `size` x `size` elements and equal strides
    and padding for height and width.
    """
    layout = {"NCHW": "OIHW", "NHWC": "HWIO"}[data_layout]
    inputs = tensor_type_of(data).shape[data_layout.index("C")]
    extents = {"O": channels, "I": inputs // groups if isinstance(inputs, int) else inputs, "H": size, "W": size}
    return conv2d_op(
        data,
        parameter_variable(f"{name}_weight", tuple(extents[axis] for axis in layout), data),
        strides=(stride, stride),
        padding=(padding, padding),
        groups=groups,
        channels=channels,
        kernel_size=(size, size),
        data_layout=data_layout,
        kernel_layout=layout,
    )


def batch_norm_infer(data: Expr, name: str, *, axis: int = 1, **attributes: Any) -> Expr:
    """Build batch normalization for inference, with stored statistics, and return its first result."""
    shape = (tensor_type_of(data).shape[axis],)
    roles = ("gamma", "beta", "moving_mean", "moving_var")
    gamma, beta, mean, var = (parameter_variable(f"{name}_{role}", shape, data) for role in roles)
    return TupleGetItem(batch_norm(data, gamma, beta, mean, var, axis=axis, **attributes), 0)


def dense_add_bias(data: Expr, name: str, units: int, axis: int = -1) -> Expr:
    """Build a fully connected layer and add a bias along `axis`."""
    weight = parameter_variable(f"{name}_weight", (units, tensor_type_of(data).shape[-1]), data)
    return bias_add(dense(data, weight, units=units), parameter_variable(f"{name}_bias", (units,), data), axis=axis)
