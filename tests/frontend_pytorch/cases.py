# SPDX-License-Identifier: Apache-2.0
"""Small torch programs, one or more for each converter: name -> (function or module, inputs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # the operators of the namespace quantized_decomposed
from torch import Tensor, nn
from torch.nn import functional as F

Case = tuple[Any, tuple[Tensor, ...]]


class Calls(nn.Module):
    """A function of a module and tensors."""

    def __init__(self, function: Any, inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.inner, *args)


def real(*shape: int) -> Tensor:
    return torch.randn(*shape)


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape) * 0.8 + 0.1


def whole(*shape: int, low: int = -5, high: int = 6) -> Tensor:
    return torch.randint(low, high, shape)


def truth(*shape: int) -> Tensor:
    return torch.rand(*shape) > 0.5


def unary() -> Iterator[tuple[str, Case]]:
    anywhere = (
        *("abs", "exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "sigmoid"),
        *("ceil", "floor", "trunc", "sign", "neg", "square"),
    )
    for name in anywhere:
        yield name, (getattr(torch, name), (real(3, 4),))
    for name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "asin", "acos", "atanh", "reciprocal"]:
        yield name, (getattr(torch, name), (positive(3, 4),))
    yield "exp2", (torch.exp2, (whole(5),))
    yield "acosh", (torch.acosh, (positive(3) + 1.5,))
    yield "round_ties", (torch.round, (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),))
    yield "round", (lambda x: (torch.round(x), torch.round(x, decimals=1)), (real(9) * 3,))
    for name in ["exp", "sqrt", "sin", "sigmoid", "reciprocal", "abs", "floor", "round", "sign", "neg", "square"]:
        yield f"{name}_int", (getattr(torch, name), (whole(5, low=1),))
    for name in ["isnan", "isinf", "isfinite"]:
        special = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
        yield name, (getattr(torch, name), (special,))
        yield f"{name}_int", (getattr(torch, name), (whole(3),))
    nan = torch.tensor([torch.nan, -2.0, 0, torch.inf])
    yield (
        "nan_order",
        (lambda x: (x.sign(), torch.bucketize(x, nan[1:]), torch.bucketize(x, nan[1:], right=True)), (nan,)),
    )
    yield "erfc", (torch.erfc, (real(5),))
    yield "logical_not", (torch.logical_not, (whole(6, low=0, high=2),))
    yield "bitwise_not", (lambda x, y: (~x, ~y), (whole(4), truth(4)))


def activation() -> Iterator[tuple[str, Case]]:
    functions = (
        "relu relu6 silu mish hardswish hardsigmoid hardtanh elu selu celu leaky_relu softplus softsign logsigmoid "
        "tanhshrink softshrink hardshrink gelu"
    )
    for name in functions.split():
        yield name, (getattr(F, name), (real(3, 5) * 3,))
    yield "gelu_tanh", (lambda x: F.gelu(x, approximate="tanh"), (real(7),))
    yield "elu_alpha", (lambda x: F.elu(x, 0.3), (real(7),))
    yield "celu_alpha", (lambda x: F.celu(x, 0.3), (real(7),))
    yield "softplus_beta", (lambda x: F.softplus(x, 2.0, 3.0), (real(9) * 3,))
    yield "threshold", (lambda x: F.threshold(x, 0.1, 20.0), (real(7),))
    yield "prelu", (nn.PReLU(4), (real(2, 4, 3),))
    yield "prelu_one", (nn.PReLU(), (real(2, 4),))
    yield "glu", (lambda x: F.glu(x, 1), (real(2, 6, 3),))
    yield "softmax", (lambda x: (F.softmax(x, 1), F.log_softmax(x, -1), F.softmin(x, 0)), (real(3, 4),))
    yield "softmax_dtype", (lambda x: F.softmax(x, 0, dtype=torch.float64), (real(5),))
    yield "dropout", (nn.Dropout(0.5), (real(4),))
    yield "inplace", (lambda x: F.relu(x.clone(), inplace=True) + F.hardswish(x * 2, inplace=True), (real(4),))


def binary() -> Iterator[tuple[str, Case]]:
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "atan2",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "fmod",
        "remainder",
        "floor_divide",
    ]:
        yield name, (getattr(torch, name), (real(3, 4), real(4) + 2.5))
    for name in ["add", "sub", "mul", "div", "eq", "lt", "remainder", "fmod", "floor_divide"]:
        yield f"{name}_int", (getattr(torch, name), (whole(3, 4), whole(3, 1, low=1)))
    yield (
        "div_modes",
        (
            lambda x, y: tuple(torch.div(a, y, rounding_mode=m) for a in (x, -x) for m in ("floor", "trunc")),
            (real(6) * 5, positive(6)),
        ),
    )
    yield (
        "div_modes_int",
        (lambda x, y: tuple(torch.div(x, y, rounding_mode=m) for m in ("floor", "trunc")), (whole(9), whole(9, low=1))),
    )
    yield "scalars", (lambda x: (x + 1, x * 2.5, 3 - x, 1.5 / x, x**2, x**3, x**0.5, 2**x, x**-1.5), (positive(5),))
    yield "scalars_int", (lambda x: (x + 1, x * 2.5, x / 2, x // 2, x % 3, x**2, 3 - x, x > 1.5), (whole(5, low=1),))
    yield (
        "alpha",
        (
            lambda x, y: (torch.add(x, y, alpha=2.5), torch.sub(x, y, alpha=3), torch.rsub(x, 2, alpha=2)),
            (real(4), real(4)),
        ),
    )
    yield "bool_arithmetic", (lambda x, y: (x + y, x * y, x + 1, x * 1.5), (truth(8), truth(8)))
    yield (
        "logical",
        (
            lambda x, y: (torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)),
            (whole(8, low=0, high=2), whole(8, low=0, high=2)),
        ),
    )
    yield "bitwise", (lambda x, y: (x & y, x | y, x ^ y, x & 3), (whole(8), whole(8)))
    yield "bitwise_bool", (lambda x, y: (x & y, x | y, x ^ y), (truth(8), truth(8)))
    yield "shifts", (lambda x: (torch.bitwise_left_shift(x, 2), torch.bitwise_right_shift(x, 1)), (whole(8),))
    yield "shift_operators", (lambda x, y: (x << 1, x >> y, y << y), (whole(8), whole(8, low=0)))
    yield (
        "where",
        (
            lambda c, x, y: (torch.where(c, x, y), torch.where(c, x, 0.0), torch.where(c, 1, y)),
            (truth(3, 1), real(4), real(3, 4)),
        ),
    )
    yield "masked_fill", (lambda x, m: x.masked_fill(m, float("-inf")), (real(3, 4), truth(4)))
    yield "clamp", (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(max=0.2), torch.clamp(x, 1, 0)), (real(9),))
    yield "clamp_int", (lambda x: (x.clamp(-2, 2), x.clamp(min=0)), (whole(9),))
    yield "clamp_tensor", (lambda x, y: torch.clamp(x, min=y), (real(9), real(9)))
    yield (
        "addc",
        (
            lambda x, y, z: (torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z, value=2), torch.lerp(x, y, 0.3)),
            (real(4), real(4), positive(4)),
        ),
    )


def promotion() -> Iterator[tuple[str, Case]]:
    dtypes = {"b": torch.bool, "u1": torch.uint8, "i1": torch.int8, "i2": torch.int16, "i4": torch.int32}
    dtypes |= {"i8": torch.int64, "f4": torch.float32, "f8": torch.float64}
    for name, dtype in dtypes.items():
        others = tuple(torch.tensor([1, 1, 0]).to(other) for other in dtypes.values())
        yield name, (_pairs, (torch.tensor([0, 1, 1]).to(dtype), *others))
        scalar = torch.tensor(1).to(dtype)
        yield f"{name}_scalar", (lambda x, y: (x + y, x.float() * y, x / y), (whole(3, low=1).to(torch.int32), scalar))


def _pairs(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return (*(x * y for y in others), *(x == y for y in others), x * 2, x * 1.5, x * True)


def shapes() -> Iterator[tuple[str, Case]]:
    x = real(2, 3, 4)
    yield "view", (lambda x: (x.view(6, 4), x.view(-1), x.reshape(4, -1, 2), x.view(2, 3, 2, 2)), (x,))
    yield "flatten", (lambda x: (x.flatten(), x.flatten(1), x.flatten(0, 1), x.unflatten(2, (2, -1))), (x,))
    yield "broadcast_to", (lambda x: (torch.broadcast_to(x, (2, 3)), x.ravel()), (real(3),))
    yield "view_as", (lambda x, y: (x.view_as(y), x.reshape_as(y)), (real(6), real(2, 3)))
    yield "permute", (lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x.mT, x[0].t(), x[0].T, x.movedim(0, 2)), (x,))
    yield (
        "squeeze",
        (lambda x: (x.squeeze(), x.squeeze(0), x.squeeze(1), x.squeeze((0, 2)), x.unsqueeze(-1)), (real(1, 3, 1),)),
    )
    yield "expand", (lambda x: (x.expand(2, 3, 4), x.expand(-1, 4), x.expand_as(torch.zeros(3, 5))), (real(3, 1),))
    yield (
        "repeat",
        (
            lambda x: (x.repeat(2, 1), x.repeat(2, 1, 2), x.tile(2), x.repeat_interleave(2, 1), x.repeat_interleave(3)),
            (real(2, 3),),
        ),
    )
    yield (
        "cat",
        (
            lambda x, y: (torch.cat([x, y], 1), torch.cat([x, y, x], -1), torch.stack([x, x], 1)),
            (real(2, 3), real(2, 2)),
        ),
    )
    yield "cat_types", (lambda x, y: torch.cat([x, y]), (real(3), whole(2)))
    yield (
        "split",
        (lambda x: (*x.split(2, 2), *x.split([1, 2], 1), *x.chunk(2, 1), *x.unbind(0), *x.tensor_split(3, 2)), (x,)),
    )
    yield "slices", (lambda x: (x[:, 1:], x[..., ::2], x[:, -2:], x[1, :, 1:3], x[:, :100], x[0:0]), (x,))
    yield "select", (lambda x: (x[0], x[:, -1], x.narrow(2, 1, 2), x[:, None, 1]), (x,))
    yield "flip_roll", (lambda x: (x.flip(0, 2), x.roll(1, 2), x.roll((1, -1), (0, 1)), x.roll(5)), (x,))
    yield "tri", (lambda x: (x.tril(), x.triu(1), x.tril(-1), torch.triu(x, -1)), (real(2, 4, 4),))
    yield "diagonal", (lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-1, 0, 2)), (x,))
    yield "pad", (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 0, 2), value=3.0), F.pad(x, (-1, 1))), (x,))
    yield (
        "pad_modes",
        (
            lambda x: tuple(F.pad(x, (1, 2, 2, 1), mode=m) for m in ("reflect", "replicate", "circular")),
            (real(1, 2, 4, 5),),
        ),
    )
    yield "pixel_shuffle", (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), (real(1, 8, 4, 6),))
    yield "channel_shuffle", (lambda x: F.channel_shuffle(x, 2), (real(1, 6, 2, 2),))
    yield "unfold", (lambda x: (x.unfold(2, 2, 1), F.unfold(x[None], 2, padding=1, stride=2)), (real(2, 4, 6),))
    yield "broadcast_tensors", (lambda x, y: torch.broadcast_tensors(x, y), (real(2, 1), real(3)))
    yield (
        "meshgrid",
        (lambda x, y: (*torch.meshgrid(x, y, indexing="ij"), *torch.meshgrid(x, y, indexing="xy")), (real(2), real(3))),
    )
    yield (
        "casts",
        (
            lambda x: (x.to(torch.int32), x.long(), x.double(), x.half(), x > 0, x.bool(), x.type_as(x.int())),
            (real(5) * 3,),
        ),
    )


def creation() -> Iterator[tuple[str, Case]]:
    yield (
        "arange",
        (lambda x: (torch.arange(4) + x, torch.arange(1, 9, 2) * x, torch.arange(0, 1, 0.25) + x), (real(4),)),
    )
    yield (
        "full",
        (lambda x: (torch.zeros(2, 3) + x, torch.ones(3, dtype=torch.int64) + x, torch.full((3,), 7) + x), (real(3),)),
    )
    yield (
        "like",
        (
            lambda x: (
                torch.zeros_like(x),
                torch.ones_like(x) + x,
                torch.full_like(x, 2.5),
                x.new_zeros(2),
                x.new_full((2,), 3),
            ),
            (real(3),),
        ),
    )
    yield (
        "eye_linspace",
        (lambda x: (torch.eye(3) + x, torch.linspace(0, 1, 3) * x, torch.tensor([1.0, 2, 3]) + x), (real(3),)),
    )
    yield (
        "causal",
        (
            lambda x: x.masked_fill(torch.triu(torch.ones(4, 4, dtype=torch.bool), 1), -1e9).softmax(-1),
            (real(2, 4, 4),),
        ),
    )


def indexing() -> Iterator[tuple[str, Case]]:
    x, places = real(4, 5, 6), whole(3, low=0, high=4)
    yield "embedding", (nn.Embedding(10, 4, padding_idx=0), (whole(2, 3, low=0),))
    yield "index", (lambda x, i: (x[i], x[:, i], x[..., i]), (x, places))
    yield "index_negative", (lambda x, i: x[:, i], (x, whole(3, low=-4, high=4)))
    yield "index_pairs", (lambda x, i: (x[i, i], x[:, i, i], x[i, :, i], x[i[:, None], i]), (x, places))
    yield "index_lists", (lambda x: (x[[0, 2]], x[:, [1, 1, 0]]), (x,))
    yield "index_mask", (lambda x: x[torch.tensor([True, False, True, False])], (x,))
    yield "index_select", (lambda x, i: x.index_select(1, i), (x, places))
    yield (
        "gather",
        (lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1)), (real(2, 5), whole(2, 3, low=0, high=5))),
    )
    yield "gather_less", (lambda x, i: x.gather(1, i), (real(3, 5), whole(2, 3, low=0, high=5)))
    yield (
        "scatter",
        (
            lambda x, i, v: (x.scatter(0, i, v), x.scatter(0, i, 2.5)),
            (real(4, 3), torch.tensor([[0, 1, 2], [3, 2, 1]]), real(2, 3)),
        ),
    )
    yield "scatter_add", (lambda x, i, v: x.scatter_add(0, i, v), (real(4, 3), whole(2, 3, low=0, high=4), real(2, 3)))
    yield (
        "scatter_reduce",
        (
            lambda x, i, v: (x.scatter_reduce(0, i, v, "amax"), x.scatter_reduce(0, i, v, "prod")),
            (real(4, 3), whole(2, 3, low=0, high=4), real(2, 3)),
        ),
    )
    yield "index_put", (lambda x, v: x.index_put((torch.tensor([1, 3]),), v), (real(4, 3), real(2, 3)))
    yield "index_put_mask", (lambda x, m: x.index_put((m,), torch.tensor(0.5)), (real(4, 3), truth(4, 3)))
    yield (
        "index_add",
        (
            lambda x, v: x.index_put((torch.tensor([1, 1]), torch.tensor([0, 0])), v, accumulate=True),
            (real(4, 3), real(2)),
        ),
    )
    yield (
        "scatters",
        (
            lambda x, v: (torch.select_scatter(x, v, 0, 1), torch.slice_scatter(x, v[None], 0, 2, 3)),
            (real(4, 3), real(3)),
        ),
    )
    yield (
        "index_along",
        (lambda x, i, v: (x.index_add(0, i, v), x.index_copy(0, i, v)), (real(4, 3), torch.tensor([2, 0]), real(2, 3))),
    )
    yield "index_add_twice", (lambda x, v: x.index_add(1, torch.tensor([1, 1]), v), (real(4, 3), real(4, 2)))
    yield "take", (lambda x, i: torch.take(x, i), (real(3, 4), whole(5, low=-12, high=12)))
    yield "one_hot", (lambda i: F.one_hot(i, 6), (whole(2, 3, low=0),))
    edges = torch.linspace(-1.3, 2.7, 8)
    special = torch.tensor([-1.3, 2.7, 2.8, -1.4, float("nan"), 0.5, float("inf")])
    yield "histc", (lambda x: torch.histc(torch.cat([x.flatten(), edges, special]), 7, -1.3, 2.7), (real(5, 8),))
    yield "histc_of_its_own_range", (lambda x: (torch.histc(x, 5), torch.histc(0 * x + 3, 4)), (real(5, 8),))
    yield "histc_half", (lambda x: torch.histc(x, 3, 0, 2), (real(4, 9).half(),))
    yield (
        "bucketize",
        (
            lambda x: (
                torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
                torch.bucketize(x, torch.tensor([-1.0, 0, 1]), right=True),
            ),
            (real(3, 4),),
        ),
    )
    rows = torch.tensor([[-1.0, 0, 0, 2], [0, 1, 3, 5]])
    yield (
        "searchsorted",
        (
            lambda r, x: (
                torch.searchsorted(r, x),
                torch.searchsorted(r, x, side="right", out_int32=True),
                torch.searchsorted(r[0], x[0], sorter=torch.tensor([0, 1, 2, 3])),
                torch.searchsorted(r[1], 2),
            ),
            (rows, torch.tensor([[0, 9, torch.nan], [-1, 0, 3]])),
        ),
    )


def reductions() -> Iterator[tuple[str, Case]]:
    x = real(3, 4, 5)
    for name in ["sum", "mean", "prod", "amax", "amin", "var", "std"]:
        yield name, (lambda x, f=name: (getattr(x, f)(dim=1), getattr(x, f)(dim=-1, keepdim=True)), (x,))
    yield "all_axes", (lambda x: (x.sum(), x.mean(), x.prod(), x.max(), x.min(), x.var(), x.std(), x.median()), (x,))
    yield (
        "many_axes",
        (lambda x: (x.sum((0, 2)), x.mean((1, 2), keepdim=True), x.amax((0, 1)), torch.var(x, (0, 1))), (x,)),
    )
    yield "ints", (lambda x: (x.sum(), x.sum(1), x.prod(0), x.max(), x.amin(0)), (whole(3, 4, low=1, high=4),))
    yield "bools", (lambda x: (x.sum(), x.any(), x.all(), x.any(0), x.all(1), x.float().mean()), (truth(3, 4),))
    yield (
        "corrections",
        (lambda x: (x.var(unbiased=False), x.std(1, correction=0), *torch.var_mean(x, 0), *torch.std_mean(x)), (x,)),
    )
    yield (
        "places",
        (lambda x: (x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True), *x.max(1), *x.min(2, keepdim=True)), (x,)),
    )
    yield (
        "norms",
        (
            lambda x: (
                x.norm(),
                x.norm(1, 1),
                torch.linalg.vector_norm(x, 3, dim=(0, 1)),
                torch.linalg.norm(x[0]),
                x.norm(float("inf")),
            ),
            (x,),
        ),
    )
    yield "normalize", (lambda x: (F.normalize(x, dim=1), F.cosine_similarity(x, x.flip(0), dim=2)), (x,))
    yield "logsumexp", (lambda x: x.logsumexp(1), (x,))
    yield "running", (lambda x: (x.cumsum(1), x.cumprod(-1), x.int().cumsum(0)), (x,))
    yield "topk_of_none", (lambda x: torch.topk(x, 0), (real(3, 4),))
    yield (
        "orders",
        (
            lambda x: (
                *x.topk(3),
                *x.topk(2, 1, largest=False),
                *x.sort(1),
                *x.sort(-1, descending=True),
                x.argsort(0),
            ),
            (x,),
        ),
    )


def convolutions() -> Iterator[tuple[str, Case]]:
    yield "conv1d", (nn.Conv1d(3, 4, 3, 2, 1), (real(2, 3, 9),))
    yield "conv2d", (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2), (real(2, 4, 9, 8),))
    yield "conv3d", (nn.Conv3d(2, 3, 2), (real(1, 2, 4, 5, 3),))
    yield "conv_same", (nn.Conv2d(2, 3, 4, padding="same"), (real(1, 2, 6, 6),))
    yield "conv_valid", (nn.Conv2d(2, 3, 3, padding="valid", bias=False), (real(1, 2, 6, 6),))
    yield "conv_reflect", (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (real(1, 2, 6, 6),))
    yield "conv_unbatched", (nn.Conv2d(2, 3, 3), (real(2, 6, 6),))
    yield "deconv1d", (nn.ConvTranspose1d(3, 4, 3, 2), (real(2, 3, 5),))
    yield "deconv2d", (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (real(1, 4, 5, 4),))
    yield "deconv3d", (nn.ConvTranspose3d(2, 3, 2, 2, bias=False), (real(1, 2, 3, 3, 2),))
    for rank in (1, 2, 3):
        x = real(1, 3, *(9, 8, 7)[:rank])
        yield f"max_pool{rank}d", (getattr(nn, f"MaxPool{rank}d")(3, 2, 1), (x,))
        yield f"avg_pool{rank}d", (getattr(nn, f"AvgPool{rank}d")(3, 2, 1), (x,))
        yield f"adaptive_avg{rank}d", (getattr(nn, f"AdaptiveAvgPool{rank}d")(3), (x,))
        yield f"adaptive_max{rank}d", (getattr(nn, f"AdaptiveMaxPool{rank}d")(2), (x,))
    yield "max_pool_ceil", (nn.MaxPool2d(3, 2, ceil_mode=True), (real(1, 2, 8, 7),))
    yield "max_pool_dilated", (nn.MaxPool2d(2, 1, dilation=2), (real(1, 2, 8, 7),))
    yield (
        "avg_pool_options",
        (
            lambda x: (
                F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
                F.avg_pool2d(x, 2, divisor_override=3),
                F.avg_pool2d(x, 3, 2, ceil_mode=True),
            ),
            (real(1, 2, 8, 7),),
        ),
    )
    yield "adaptive_none", (lambda x: F.adaptive_avg_pool2d(x, (None, 2)), (real(1, 2, 6, 5),))
    yield "max_pool_unbatched", (nn.MaxPool2d(2), (real(2, 6, 6),))


def resizing() -> Iterator[tuple[str, Case]]:
    x = real(1, 2, 5, 7)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        name = mode.replace("-", "_")
        yield f"{name}_scale", (lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), (x,))
        yield f"{name}_size", (lambda x, m=mode: F.interpolate(x, size=(8, 4), mode=m), (x,))
        yield f"{name}_fraction", (lambda x, m=mode: F.interpolate(x, scale_factor=(1.7, 0.6), mode=m), (x,))
    for mode in ("bilinear", "bicubic"):
        yield f"{mode}_corners", (lambda x, m=mode: F.interpolate(x, size=(8, 10), mode=m, align_corners=True), (x,))
    yield (
        "one_axis",
        (lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=5, mode="linear")), (real(1, 2, 4),)),
    )
    yield (
        "three_axes",
        (
            lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(3, 4, 5), mode="trilinear")),
            (real(1, 2, 4, 3, 2),),
        ),
    )
    yield (
        "recomputed",
        (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True), (x,)),
    )
    for mode in ("bilinear", "bicubic"):
        yield f"{mode}_antialias", (lambda x, m=mode: F.interpolate(x, (3, 10), mode=m, antialias=True), (x,))
        yield (
            f"{mode}_antialias_factor",
            (
                lambda x, m=mode: (
                    F.interpolate(x, scale_factor=0.6, mode=m, antialias=True),
                    F.interpolate(x, (2, 3), mode=m, antialias=True, align_corners=True),
                ),
                (x,),
            ),
        )
    for mode in ("bilinear", "nearest"):
        yield (
            f"grid_{mode}",
            (
                lambda x, g, m=mode: F.grid_sample(x, g, mode=m, align_corners=False),
                (x, torch.rand(1, 3, 4, 2) * 1.6 - 0.8),
            ),
        )


def normalizations() -> Iterator[tuple[str, Case]]:
    x = real(2, 6, 4, 5)
    yield "batch_norm", (nn.BatchNorm2d(6), (x,))
    yield "batch_norm1d", (nn.BatchNorm1d(6), (real(3, 6),))
    yield "batch_norm_own", (nn.BatchNorm2d(6, track_running_stats=False), (x,))
    yield "instance_norm", (nn.InstanceNorm2d(6, affine=True), (x,))
    yield "instance_norm_plain", (nn.InstanceNorm1d(6), (real(2, 6, 7),))
    yield "group_norm", (nn.GroupNorm(3, 6), (x,))
    yield "layer_norm", (nn.LayerNorm(5), (x,))
    yield "layer_norm_axes", (nn.LayerNorm((4, 5)), (x,))
    yield "layer_norm_plain", (nn.LayerNorm(5, elementwise_affine=False), (x,))
    yield "rms_norm", (nn.RMSNorm(5), (x,))
    yield "local_response", (nn.LocalResponseNorm(3), (x,))


def products() -> Iterator[tuple[str, Case]]:
    yield "linear", (nn.Linear(4, 3), (real(2, 4),))
    yield (
        "linear_ranks",
        (lambda x, w: (F.linear(x, w), F.linear(x[0], w), F.linear(x[0, 0], w)), (real(2, 3, 4), real(5, 4))),
    )
    yield (
        "matmul",
        (lambda x, y: (x @ y, x[0] @ y[0], x @ y[0], x[0, 0] @ y[0], x @ y[0, :, 0]), (real(2, 3, 4), real(2, 4, 5))),
    )
    yield "matmul_broadcast", (torch.matmul, (real(2, 1, 3, 4), real(5, 4, 2)))
    yield (
        "mm",
        (
            lambda x, y: (
                torch.mm(x, y),
                torch.bmm(x[None], y[None]),
                torch.mv(x, y[:, 0]),
                torch.dot(x[0], y[:, 0]),
                torch.outer(x[0], y[0]),
            ),
            (real(3, 4), real(4, 5)),
        ),
    )
    yield (
        "addmm",
        (
            lambda b, x, y: (
                torch.addmm(b, x, y),
                torch.addmm(b, x, y, beta=0.5, alpha=2),
                torch.baddbmm(b[None, None], x[None], y[None]),
            ),
            (real(5), real(3, 4), real(4, 5)),
        ),
    )
    yield (
        "einsum",
        (
            lambda x, y: (
                torch.einsum("bij,bjk->bik", x, y),
                torch.einsum("bij,bkj->bik", x, y.mT),
                torch.einsum("bij->ji", x),
            ),
            (real(2, 3, 4), real(2, 4, 5)),
        ),
    )
    q = real(2, 2, 5, 4)
    yield "sdpa", (F.scaled_dot_product_attention, (q, real(2, 2, 6, 4), real(2, 2, 6, 3)))
    yield "sdpa_causal", (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (q,))
    yield "sdpa_scale", (lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3), (q,))
    yield (
        "sdpa_masks",
        (
            lambda q, m, b: (F.scaled_dot_product_attention(q, q, q, m), F.scaled_dot_product_attention(q, q, q, b)),
            (q, torch.ones(5, 5).tril().bool(), real(5, 5)),
        ),
    )
    yield (
        "sdpa_groups",
        (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), (real(1, 4, 3, 4), real(1, 2, 3, 4))),
    )
    yield (
        "multihead",
        (Calls(lambda a, x: a(x, x, x)[0], nn.MultiheadAttention(8, 2, batch_first=True)), (real(2, 5, 8),)),
    )


def recurrent() -> Iterator[tuple[str, Case]]:
    yield "lstm", (nn.LSTM(3, 4), (real(5, 2, 3),))
    yield "lstm_deep", (nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, bias=False), (real(2, 5, 3),))
    yield "lstm_projection", (nn.LSTM(3, 5, 2, bidirectional=True, proj_size=2), (real(4, 2, 3),))
    yield (
        "lstm_projection_state",
        (
            Calls(lambda f, x, h, c: f(x, (h, c)), nn.LSTM(3, 5, proj_size=2, bias=False, batch_first=True)),
            (real(2, 4, 3), real(1, 2, 2), real(1, 2, 5)),
        ),
    )
    yield "gru", (nn.GRU(3, 4, 2), (real(5, 2, 3),))
    yield "gru_state", (nn.GRU(3, 4, bidirectional=True), (real(5, 2, 3), real(2, 2, 4)))
    yield "rnn_tanh", (nn.RNN(3, 4), (real(5, 2, 3),))
    yield "rnn_relu", (nn.RNN(3, 4, nonlinearity="relu"), (real(5, 2, 3),))
    yield "lstm_cell", (Calls(lambda f, x, h, c: f(x, (h, c)), nn.LSTMCell(3, 4)), (real(2, 3), real(2, 4), real(2, 4)))
    yield "gru_cell", (nn.GRUCell(3, 4), (real(2, 3), real(2, 4)))
    yield "rnn_cell", (nn.RNNCell(3, 4), (real(2, 3), real(2, 4)))


def _write_slice(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:3] = 7
    y[0] += 1
    return y


def _write_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    rows = y.view(2, 2, 3)
    first, second = rows.unbind(0)
    second.mul_(3)
    first[..., ::2] = 0.5
    return y, rows.transpose(0, 1)


def _write_base(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    part = y[1:]
    y.relu_()
    y.masked_fill_(y > 1.5, 9.0)
    return part, y


def _write_reshaped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.relu(x + 1, inplace=True)
    z = y.transpose(0, 1).contiguous()
    z += 1
    z[0] *= 2
    return z, z.reshape(-1)


def _write_rows(x: Tensor, index: Tensor) -> Tensor:
    y = torch.zeros(4, 3)
    y[index] = x
    y[index, 0] = 5.0
    return y


def in_place() -> Iterator[tuple[str, Case]]:
    yield "reshaped", (_write_reshaped, (real(4, 3),))
    yield "rows", (_write_rows, (real(2, 3), torch.tensor([2, 0])))
    yield "slice", (_write_slice, (real(3, 4),))
    yield "views", (_write_views, (real(4, 3),))
    yield "base", (_write_base, (real(4, 3),))
    yield (
        "operators",
        (lambda x: x.clone().add_(1).mul_(2.5).sub_(x).div_(3).clamp_(-1, 1).zero_().fill_(3).add_(x), (real(5),)),
    )
    yield "integers", (lambda x: x.clone().add_(2).floor_divide_(2), (whole(5),))


def between_integers(function: Any) -> Any:
    """A layer as PyTorch's quantizer leaves it: data and weights quantized and back, of one scale and of several."""
    ops, ends = torch.ops.quantized_decomposed, (-128, 127, torch.int8)

    def layer(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        zeros = torch.zeros(w.shape[0], dtype=torch.int64)
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.05, 3, *ends), 0.05, 3, *ends)
        w = ops.quantize_per_channel(w, scales, zeros, 0, -127, *ends[1:])
        y = function(x, ops.dequantize_per_channel(w, scales, zeros, 0, -127, *ends[1:]))
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(y, 0.5, -7, *ends), 0.5, -7, *ends)

    return layer


def quantized() -> Iterator[tuple[str, Case]]:
    ops, x = torch.ops.quantized_decomposed, real(4, 6) * 3
    for dtype, low, high in ((torch.int8, -128, 127), (torch.uint8, 0, 200), (torch.int16, -(2**15), 2**15 - 1)):
        ends = low, high, dtype
        yield f"quantize_{dtype}", (lambda x, e=ends: ops.quantize_per_tensor(x, 0.05, 7, *e), (x,))
        yield f"choose_{dtype}", (lambda x, e=ends: ops.choose_qparams(x, e[0], e[1], 1e-6, e[2]), (x,))
    s8, u8 = (-128, 127, torch.int8), (0, 255, torch.uint8)
    yield "symmetric", (lambda x: ops.choose_qparams_symmetric(x, -127, 127, 1e-6, torch.int8), (x,))

    def dynamic(x: Tensor) -> Tensor:
        numbers = ops.choose_qparams(x, 0, 255, 1e-6, torch.uint8)
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *numbers, *u8), *numbers, *u8)

    def by_token(x: Tensor) -> Tensor:
        numbers = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
        return ops.dequantize_per_token(ops.quantize_per_token(x, *numbers, *s8), *numbers, *s8, torch.float32)

    yield "dynamic", (dynamic, (x,))
    yield "tokens", (by_token, (x,))
    yield "tokens_symmetric", (lambda x: ops.choose_qparams_per_token(x, torch.int8), (x,))
    numbers = positive(6, 4), whole(6, 4, low=-3, high=4)
    groups = (-8, 7, torch.int8, 4)
    yield "groups", (lambda x, s, z: ops.quantize_per_channel_group(x, s, z, *groups), (real(6, 16), *numbers))
    packed = whole(6, 16, low=-8, high=8).to(torch.int8)
    yield (
        "groups_back",
        (lambda w, s, z: ops.dequantize_per_channel_group(w, s, z, *groups, torch.float32), (packed, *numbers)),
    )
    yield "type", (lambda x: ops.convert_element_type(x, torch.float16), (x,))
    yield "linear", (between_integers(F.linear), (real(2, 8), real(5, 8), positive(5) / 50))
    yield "conv2d", (between_integers(F.conv2d), (real(1, 3, 6, 6), real(4, 3, 3, 3), positive(4) / 50))


def _masked(x: Tensor) -> Tensor:
    """x with NaN in some places."""
    return torch.where(x > 1, torch.nan, x)


def order_statistics() -> Iterator[tuple[str, Case]]:
    x = torch.stack([torch.randperm(7) for _ in range(4)]).float()
    yield "running_extrema", (lambda x: (*x.cummax(1), *x.cummin(0), *_masked(x).cummax(1)), (real(4, 7).round(),))
    yield "running_integers", (lambda x: (*x.cummax(-1), *x.cummin(0)), (whole(3, 6),))
    yield "kth", (lambda x: (*x.kthvalue(3, 1), *x.T.kthvalue(2, 0, keepdim=True)), (x,))
    yield "median", (lambda x: (*x.median(1), *x.T.median(0, keepdim=True), x.median(), *x[:, :4].median(-1)), (x,))
    yield "median_nan", (lambda x: (*_masked(x).median(1), _masked(x).median()), (real(6, 4),))
    yield (
        "half_indices",
        (
            lambda x: (torch.tril_indices(4, 3, -1) + x, torch.triu_indices(3, 4, 1) * x, torch.tril_indices(2, 2)),
            (whole(1),),
        ),
    )


def special_functions() -> Iterator[tuple[str, Case]]:
    yield "erfinv", (torch.erfinv, (torch.tensor([-1.5, -1, -0.999, -0.7, -0.2, 0, 1e-6, 0.3, 0.71, 0.95, 0.9999, 1]),))
    yield "erfinv_double", (torch.erfinv, (torch.linspace(-0.999999, 0.999999, 41, dtype=torch.float64),))
    yield (
        "lgamma",
        (
            torch.lgamma,
            (torch.tensor([-3.5, -2, -0.3, 0, 1e-4, 0.4, 0.6, 1, 1.5, 2, 3.3, 7.9, 8.1, 40.5, 3e4, torch.inf]),),
        ),
    )
    yield "lgamma_double", (torch.lgamma, (torch.linspace(-9.9, 60, 50, dtype=torch.float64),))
    yield (
        "hypot",
        (torch.hypot, (torch.tensor([3.0, 0, 1e30, -2, torch.inf]), torch.tensor([4.0, 0, 1e30, 1e-9, torch.nan]))),
    )
    yield (
        "signs",
        (
            lambda x, y: (torch.copysign(x, y), torch.copysign(y, -2.0), torch.signbit(y)),
            (whole(5), torch.tensor([-0.0, 0.0, -3.5, 2, -torch.inf])),
        ),
    )


def distances() -> Iterator[tuple[str, Case]]:
    for p in (0.0, 1.0, 2.0, 3.5, float("inf")):
        yield f"cdist_{p}", (lambda x, y, p=p: torch.cdist(x, y, p), (real(2, 3, 4).round(), real(2, 5, 4).round()))
    yield "pdist", (lambda x: (F.pdist(x), F.pdist(x, 1.0)), (real(5, 3),))


def scatters() -> Iterator[tuple[str, Case]]:
    base, index, values = real(4, 3), whole(5, 3, low=0, high=4), real(5, 3)
    for name in ("sum", "prod", "mean", "amax", "amin"):
        yield (
            f"reduce_{name}",
            (
                lambda x, i, v, n=name: (
                    x.scatter_reduce(0, i, v, n),
                    x.scatter_reduce(0, i[:2], v, n, include_self=False),
                    (x * 4).int().scatter_reduce(0, i, (v * 9).int(), n, include_self=False),
                ),
                (base, index, values),
            ),
        )
    yield "index_mean", (lambda x, i, v: x.index_reduce(0, i, v, "mean"), (base, torch.tensor([2, 0, 2, 2, 0]), values))
    yield "masked", (lambda x, m, v: x.masked_scatter(m, v), (real(4, 3), truth(4, 3), real(12)))
    yield "masked_rows", (lambda x, m, v: x.masked_scatter(m[:, None], v), (real(4, 3), truth(4), real(4, 3)))
    counts = torch.tensor([2, 0, 3])
    yield (
        "repeats",
        (
            lambda x, n: (
                torch.repeat_interleave(x, n, 0, output_size=5),
                torch.repeat_interleave(x, 2, 1, output_size=8),
                torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1]), 1, output_size=4),
            ),
            (real(3, 4), counts),
        ),
    )
    yield "strided", (lambda x: (x.as_strided((3, 2), (1, 4), 1), x.as_strided((2, 3, 4), (6, 1, 1))), (real(2, 6),))
    yield "strided_vector", (lambda x: (x.as_strided((3,), (1,)), x.as_strided((2, 3), (3, 1))), (real(6),))
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=3)
        yield f"bags_{mode}", (bag, (whole(3, 5, low=0, high=10),))
        yield f"bags_{mode}_offsets", (bag, (torch.tensor([3, 1, 3, 7, 9, 3]), torch.tensor([0, 1, 4, 4])))
    weights = nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    yield (
        "bags_weights",
        (
            Calls(lambda f, i, o, w: f(i, o, per_sample_weights=w), weights),
            (whole(6, low=0, high=10), torch.tensor([0, 2, 2, 6]), real(6)),
        ),
    )
    rois = torch.tensor([[0, 2.0, 3, 9, 11], [1, 4, 4, 4.3, 12], [0, 1, 2, 13, 5]])
    yield (
        "regions",
        (
            lambda x, r: (_roi_align(x, r, 0.5, 3, 2, 2, False), _roi_align(x, r, 0.5, 2, 3, 2, True)),
            (real(2, 3, 8, 8), rois),
        ),
    )
    for rows in (5, 2):
        ends = torch.tensor([1, 1, rows], dtype=torch.int32)
        yield f"grouped_{rows}", (lambda *a: _grouped(*a), (real(rows, 16), real(3, 16, 8), ends))


@torch.library.custom_op("torchvision::roi_align", mutates_args=())
def _roi_align(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
               sampling_ratio: int, aligned: bool) -> Tensor:  # fmt: skip
    """What torchvision computes: means of bilinear samples in the cells of regions inside of the images."""
    results = []
    for roi in rois:
        x1, y1, x2, y2 = (roi[1:] * spatial_scale - (0.5 if aligned else 0.0)).tolist()
        ends = (x2, y2) if aligned else (max(x2, x1 + 1), max(y2, y1 + 1))
        lines = []
        for first, last, cells in ((x1, ends[0], pooled_width), (y1, ends[1], pooled_height)):
            count = cells * sampling_ratio
            lines.append(first + (last - first) * (torch.arange(count) + 0.5) / count)
        scale = torch.tensor([2 / (x.shape[3] - 1), 2 / (x.shape[2] - 1)])
        grid = torch.stack(torch.meshgrid(*lines, indexing="xy"), -1) * scale - 1
        samples = F.grid_sample(x[int(roi[0])][None], grid[None], padding_mode="border", align_corners=True)
        results.append(F.avg_pool2d(samples[0], sampling_ratio))
    return torch.stack(results)


@_roi_align.register_fake
def _(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
      sampling_ratio: int, aligned: bool) -> Tensor:  # fmt: skip
    return x.new_empty(rois.shape[0], x.shape[1], pooled_height, pooled_width)


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def _grouped(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """What the package transformers calls where torch has no grouped product."""
    starts = [0, *ends[:-1].tolist()]
    return torch.cat([x[a:b] @ m for a, b, m in zip(starts, ends.tolist(), matrices, strict=True)])


@_grouped.register_fake
def _(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], matrices.shape[2])


def _spectrogram(x: Tensor) -> tuple[Tensor, ...]:
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    return spectrum.abs(), torch.view_as_real(spectrum), torch.istft(spectrum * 2, 16, 4, window=window, length=64)


def _rotary(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1, 0.01]))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (3, 2))) * turns).flatten(-2)


def _complex_arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = torch.complex(x, y), torch.complex(y + 3, x)
    results = (
        *(a + b, a - b, a * b, a / b, a + 1, 2 - a, a * 2.5, a / 2, x * a, a * 1j, a.conj() * b, -a, a.reciprocal()),
        *(a**2, a**0.5, a.exp(), b.log(), a.sgn(), a.sum(0), a.mean(), a @ b.mT, a.mT.flip(0), torch.cat([a, b, x])),
        *(torch.where(x > 0, a, b), torch.stack([a, b], 1), a[1:, ::2], a.to(torch.complex128), x.to(torch.complex64)),
    )
    return (*map(torch.view_as_real, results), a.real, a.imag, a.abs(), a.angle(), x.angle(), a == b)


def _complex_views(x: Tensor) -> tuple[Tensor, ...]:
    z = x.view(torch.complex64)
    y = z.clone()
    y[0] = x[0, :2]
    y[:, 1:] *= 2j
    padded = F.pad(z, (1, 2), value=1.5)
    real = z.to(torch.float64), torch.ones_like(z, dtype=torch.float32), z.view(torch.float32)
    return *real, *map(torch.view_as_real, (z, y, padded, torch.ones_like(z)))


def complex_numbers() -> Iterator[tuple[str, Case]]:
    yield "arithmetic", (_complex_arithmetic, (real(3, 4), real(3, 4)))
    yield "views", (_complex_views, (real(3, 4),))
    yield "rotary", (_rotary, (real(2, 5, 6),))
    yield "spectrogram", (_spectrogram, (real(2, 64),))
    for n in (1, 7, 12):
        yield (
            f"fft_{n}",
            (
                lambda x, n=n: (
                    torch.fft.irfft(torch.fft.rfft(x), n=n),
                    torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), n=n, norm="ortho"),
                    torch.view_as_real(torch.fft.fft(x)),
                    torch.fft.ifft(torch.fft.fft(x, dim=0), dim=0, norm="forward").real,
                ),
                (real(3, n),),
            ),
        )
    yield (
        "fft_axes",
        (
            lambda x: (
                torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * 1.5, s=(6, 5), norm="ortho"),
                torch.view_as_real(torch.fft.fftn(x, dim=(0, 1))),
                torch.fft.fftshift(torch.fft.rfft(x, dim=1).abs()),
            ),
            (real(2, 6, 5),),
        ),
    )


FAMILIES = (
    unary, activation, binary, promotion, shapes, creation, indexing, reductions, convolutions, resizing,
    normalizations, products, recurrent, in_place, quantized, order_statistics, special_functions, distances, scatters,
    complex_numbers,
)  # fmt: skip


#: Families with operators that occur in exported programs only, not in TorchScript.
EXPORTED_ONLY = ("complex_numbers", "scatters")


def all_cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {f"{family.__name__}-{name}": case for family in FAMILIES for name, case in family()}
