# SPDX-License-Identifier: Apache-2.0
from aotc.ir import Device as Device
from aotc.ir import NDArray as NDArray
from aotc.ir import cpu as cpu
from aotc.ir import cuda as cuda
from aotc.ir.device import device as device
from aotc.runtime import container as container
from aotc.runtime import vm as vm
from aotc.runtime.container import convert as convert
from aotc.runtime.module import CompiledLibrary as CompiledLibrary
from aotc.runtime.module import KernelModule as KernelModule
from aotc.runtime.module import Module as Module
from aotc.runtime.module import enabled as enabled
from aotc.runtime.module import load_module as load_module
from aotc.runtime.params import load_param_dict as load_param_dict
from aotc.runtime.params import save_param_dict as save_param_dict
