# SPDX-License-Identifier: Apache-2.0
"""ResNet with identity mappings: pre-activation units (He, Zhang, Ren and Sun, "Identity Mappings
in Deep Residual Networks", 2016).

mod, params = get_workload(num_layers=18)        # ImageNet: 18, 34, 50, 101, 152, 200, 269 layers
mod, params = get_workload(num_layers=20, image_shape=(3, 28, 28), num_classes=10)    # CIFAR: 6 n + 2 or 9 n + 2
"""

from aotc.ir import AotcError, TensorType, frozen
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.op.builders import add, batch_flatten, global_avg_pool2d, max_pool2d, relu, softmax
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import batch_norm_infer, conv2d, dense_add_bias, function_of_free_variables

BATCH_NORM_EPSILON = 2e-5

_UNITS_PER_STAGE: dict[int, tuple[int, ...]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}


@frozen
class _ResNetStructure:
    """The structure of a ResNet: number of units per stage, number of channels after the stem and
    after each stage, and True for bottleneck units.
    """

    units: tuple[int, ...]
    filters: tuple[int, ...]
    bottleneck: bool


def _resnet_structure(num_layers: int, height: int) -> _ResNetStructure:
    bottleneck = num_layers >= (50 if height > 28 else 164)
    if height > 28:
        family, stem, units = "ResNet", 64, _UNITS_PER_STAGE.get(num_layers)
        hint = f"known: {', '.join(map(str, _UNITS_PER_STAGE))}"
    else:
        count, rest = divmod(num_layers - 2, 9 if bottleneck else 6)
        family, stem, units = "ResNet for small images", 16, (count,) * 3 if count > 0 and rest == 0 else None
        hint = "6 n + 2, or 9 n + 2 from 164"
    if units is None:
        raise AotcError("resnet", f"no {family} with {num_layers} layers is known", hint=hint)
    first = 4 * stem if bottleneck else stem
    return _ResNetStructure(units, (stem, *(first << stage for stage in range(len(units)))), bottleneck)


@frozen
class _Builder:
    layout: str

    def batch_norm(self, data: Expr, name: str, scale: bool = True) -> Expr:
        return batch_norm_infer(data, name, axis=self.layout.index("C"), epsilon=BATCH_NORM_EPSILON, scale=scale)

    def conv_with_same_padding(self, data: Expr, name: str, channels: int, kernel_size: int, stride: int = 1) -> Expr:
        """Build a convolution with padding that preserves height and width, apart from the stride."""
        return conv2d(data, name, channels, kernel_size, stride, kernel_size // 2, data_layout=self.layout)

    def residual_unit(
        self, data: Expr, name: str, channels: int, stride: int, is_first_of_stage: bool, bottleneck: bool
    ) -> Expr:
        """Build a pre-activation residual unit; in the first unit of a stage the shortcut is
        projected by a 1 x 1 convolution.
        """
        inner = channels // 4
        layers = [(inner, 1), (inner, 3), (channels, 1)] if bottleneck else [(channels, 3)] * 2
        active = relu(self.batch_norm(data, f"{name}_bn1"))
        body = self.conv_with_same_padding(active, f"{name}_conv1", *layers[0], stride)
        for number, layer in enumerate(layers[1:], 2):
            body = self.conv_with_same_padding(
                relu(self.batch_norm(body, f"{name}_bn{number}")), f"{name}_conv{number}", *layer
            )
        return add(
            body, self.conv_with_same_padding(active, f"{name}_sc", channels, 1, stride) if is_first_of_stage else data
        )


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Function:
    """Build the network as a function of `data` (batch_size, *image_shape) and its parameters; the
    result is (batch_size, num_classes).

    `image_shape` is in the order of `layout`. Raises AotcError for a number of layers for which no
    ResNet is defined.
    """
    build = _Builder(layout)
    data = Var("data", TensorType((batch_size, *image_shape), dtype))
    height = image_shape[layout.index("H") - 1]
    plan = _resnet_structure(num_layers, height)
    body = build.batch_norm(data, "bn_data", scale=False)
    if height <= 32:
        body = build.conv_with_same_padding(body, "conv0", plan.filters[0], 3)
    else:
        body = relu(build.batch_norm(build.conv_with_same_padding(body, "conv0", plan.filters[0], 7, 2), "bn0"))
        body = max_pool2d(body, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout=layout)
    for stage, (count, channels) in enumerate(zip(plan.units, plan.filters[1:], strict=True), 1):
        for unit in range(1, count + 1):
            stride = 2 if stage > 1 and unit == 1 else 1
            body = build.residual_unit(body, f"stage{stage}_unit{unit}", channels, stride, unit == 1, plan.bottleneck)
    body = relu(build.batch_norm(body, "bn1"))
    flat = batch_flatten(global_avg_pool2d(body, layout=layout))
    return function_of_free_variables(softmax(dense_add_bias(flat, "fc1", num_classes)))


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
