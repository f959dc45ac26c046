# SPDX-License-Identifier: Apache-2.0
from aotc import contrib as contrib
from aotc import error as error
from aotc import instrument as instrument
from aotc import ir as ir
from aotc import nd as nd
from aotc import relay as relay
from aotc import runtime as runtime
from aotc import target as target
from aotc import te as te
from aotc import testing as testing
from aotc import tir as tir
from aotc import transform as transform
from aotc.driver.compile import compile as compile
from aotc.driver.pipeline import CompiledModel as CompiledModel
from aotc.driver.torch_compile_backend import torch_compile_backend as torch_compile_backend
from aotc.error import TVMError as TVMError
from aotc.ir.device import Device as Device
from aotc.ir.device import cpu as cpu
from aotc.ir.device import cuda as cuda
from aotc.ir.device import device as device
from aotc.ir.diagnostics import AotcError as AotcError
from aotc.ir.global_function_registry import get_global_func as get_global_func
from aotc.ir.global_function_registry import register_func as register_func
from aotc.quantizing.quantize import quantize as quantize
from aotc.relay.module import IRModule as IRModule
from aotc.runtime.session import Session as Session
from aotc.runtime.session import load as load

__version__: str
