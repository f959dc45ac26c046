# SPDX-License-Identifier: Apache-2.0
"""Small networks of the usual kinds: convolutional, transformer and recurrent ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([nn.ReLU(inplace=True)] if act else []))


class Basic(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=False))
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.skip(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """ResNet-18 for `width` 64."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        stages = []
        for k in range(4):
            inputs, outputs = width * 2 ** max(k - 1, 0), width * 2**k
            stages += [Basic(inputs, outputs, 1 if k == 0 else 2), Basic(outputs, outputs, 1)]
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """MobileNet's and EfficientNet's block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = channels * 4
        self.expand, self.depthwise = conv_bn(channels, wide, 1, act=False), conv_bn(wide, wide, 3, 1, wide, act=False)
        self.gate, self.project = SqueezeExcite(wide), conv_bn(wide, channels, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.depthwise(F.hardswish(self.expand(x))))
        return x + self.project(self.gate(y))


class Dense(nn.Module):
    """Concatenations, channel shuffle and parallel branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv_bn(8, 8), conv_bn(16, 8), nn.Conv2d(24, 24, 3, padding=1, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.a(x)], 1)
        x = torch.cat([x, self.b(x)], 1)
        n, c, h, w = x.size()
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)
        left, right = self.c(x).chunk(2, dim=1)
        return torch.cat((F.avg_pool2d(left, 3, 1, 1), F.max_pool2d(right, 3, 1, 1)), 1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = conv_bn(3, 8), conv_bn(8, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.inner(F.max_pool2d(a, 2))
        wide = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)[:, :8]
        return torch.sigmoid(self.out(torch.cat([a, self.up(b), wide], 1)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh" if causal else "none"), nn.Dropout(0.1))
        self.back = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.back(self.mlp(self.norm2(x)))


class Decoder(nn.Module):
    """A GPT: its output layer shares the weight of the embedding."""

    def __init__(self, words: int = 50, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.blocks, self.norm = nn.Sequential(Block(width, True), Block(width, True)), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        return self.head(self.norm(self.blocks(self.words(ids) + self.places(places))))


class Encoder(nn.Module):
    """A BERT with a mask of its own making."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, width), nn.Embedding(2, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.pool = nn.Linear(width, 8)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], 4, -1).permute(0, 2, 1, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(ids) + self.kinds(torch.zeros_like(ids))
        bias = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        mixed = torch.matmul(F.softmax(scores + bias, dim=-1), v)
        y = self.norm(x + mixed.permute(0, 2, 1, 3).reshape(x.shape))
        return y, torch.tanh(self.pool(y[:, 0]))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.gru, self.rnn = nn.GRU(16, 5), nn.RNN(5, 4, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x)
        y, _ = self.gru(y.transpose(0, 1))
        return self.rnn(y)[0], h, c


def image(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, size, size)


def ids(length: int = 12) -> Tensor:
    return torch.randint(0, 50, (2, length))


NETS = {
    "resnet": (ResNet, lambda: (image(64),)),
    "inverted": (lambda: nn.Sequential(conv_bn(3, 8, 3, 2), Inverted(8), Inverted(8)), lambda: (image(),)),
    "dense": (lambda: nn.Sequential(conv_bn(3, 8, 3, 2), Dense()), lambda: (image(),)),
    "unet": (UNet, lambda: (image(),)),
    "decoder": (Decoder, lambda: (ids(),)),
    "encoder": (Encoder, lambda: (ids(), torch.tensor([[1] * 12, [1] * 7 + [0] * 5]))),
    "recurrent": (Recurrent, lambda: (torch.randn(2, 7, 6),)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu"),
        lambda: (torch.randn(2, 5, 16),),
    ),
}


def spread_statistics(net: nn.Module) -> nn.Module:
    """Batch normalization with statistics that are not those of a new module."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.2, 0.2)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.2, 0.2)
    return net.eval()
