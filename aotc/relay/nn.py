# SPDX-License-Identifier: Apache-2.0
"""Relay's neural-network operators: `relay.nn.conv2d(data, weight, padding=(1, 1))` and the rest."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay.op.adaptive_pool import adaptive_avg_pool1d as adaptive_avg_pool1d
    from aotc.relay.op.adaptive_pool import adaptive_avg_pool2d as adaptive_avg_pool2d
    from aotc.relay.op.adaptive_pool import adaptive_avg_pool3d as adaptive_avg_pool3d
    from aotc.relay.op.adaptive_pool import adaptive_max_pool1d as adaptive_max_pool1d
    from aotc.relay.op.adaptive_pool import adaptive_max_pool2d as adaptive_max_pool2d
    from aotc.relay.op.adaptive_pool import adaptive_max_pool3d as adaptive_max_pool3d
    from aotc.relay.op.adaptive_pool import global_avg_pool2d as global_avg_pool2d
    from aotc.relay.op.adaptive_pool import global_max_pool2d as global_max_pool2d
    from aotc.relay.op.batch_space import batch_to_space_nd as batch_to_space_nd
    from aotc.relay.op.batch_space import space_to_batch_nd as space_to_batch_nd
    from aotc.relay.op.cast import leaky_relu as leaky_relu
    from aotc.relay.op.cast import prelu as prelu
    from aotc.relay.op.conv import conv1d as conv1d
    from aotc.relay.op.conv import conv2d as conv2d
    from aotc.relay.op.conv import conv3d as conv3d
    from aotc.relay.op.conv_transpose import conv1d_transpose as conv1d_transpose
    from aotc.relay.op.conv_transpose import conv2d_transpose as conv2d_transpose
    from aotc.relay.op.conv_transpose import conv3d_transpose as conv3d_transpose
    from aotc.relay.op.dense import batch_matmul as batch_matmul
    from aotc.relay.op.dense import bias_add as bias_add
    from aotc.relay.op.dense import contrib_dense_pack as contrib_dense_pack
    from aotc.relay.op.dense import dense as dense
    from aotc.relay.op.dense import matmul as matmul
    from aotc.relay.op.depth import depth_to_space as depth_to_space
    from aotc.relay.op.depth import space_to_depth as space_to_depth
    from aotc.relay.op.elementwise import relu as relu
    from aotc.relay.op.norm import batch_norm as batch_norm
    from aotc.relay.op.norm import dropout as dropout
    from aotc.relay.op.norm import group_norm as group_norm
    from aotc.relay.op.norm import instance_norm as instance_norm
    from aotc.relay.op.norm import l2_normalize as l2_normalize
    from aotc.relay.op.norm import layer_norm as layer_norm
    from aotc.relay.op.norm import lrn as lrn
    from aotc.relay.op.pad import mirror_pad as mirror_pad
    from aotc.relay.op.pad import pad as pad
    from aotc.relay.op.pool import avg_pool1d as avg_pool1d
    from aotc.relay.op.pool import avg_pool2d as avg_pool2d
    from aotc.relay.op.pool import avg_pool3d as avg_pool3d
    from aotc.relay.op.pool import max_pool1d as max_pool1d
    from aotc.relay.op.pool import max_pool2d as max_pool2d
    from aotc.relay.op.pool import max_pool3d as max_pool3d
    from aotc.relay.op.recurrent import gru as gru
    from aotc.relay.op.recurrent import lstm as lstm
    from aotc.relay.op.recurrent import rnn as rnn
    from aotc.relay.op.resize import upsampling as upsampling
    from aotc.relay.op.shape import batch_flatten as batch_flatten
    from aotc.relay.op.softmax import fast_softmax as fast_softmax
    from aotc.relay.op.softmax import log_softmax as log_softmax
    from aotc.relay.op.softmax import softmax as softmax


def _prepare() -> None:
    importlib.import_module("aotc.driver.wiring").install()


def _operators() -> Mapping[str, Any]:
    found: Mapping[str, Any] = importlib.import_module("aotc.relay_api.expr").op_namespace("nn")
    return found


__getattr__, __dir__ = lazy_names(__name__, {}, more=_operators, prepare=_prepare)
