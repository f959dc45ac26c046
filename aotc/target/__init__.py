# SPDX-License-Identifier: Apache-2.0
"""Targets by Relay's names: `Target("llvm")` is this machine, `cuda()` are GPUs of NVIDIA."""

from aotc.ir.device import VirtualDevice as VirtualDevice
from aotc.relay_api.target import Target as Target
from aotc.relay_api.target import cuda as cuda
from aotc.relay_api.target import llvm as llvm
from aotc.target import target as target
