# SPDX-License-Identifier: Apache-2.0
"""Relay's module `build_module`: functions that bind parameters and compile modules.

from aotc.relay.build_module import bind_params_by_name
"""

from aotc.ir.transform import PassContext as PassContext
from aotc.relay.bind_variables_and_parameters import bind_params_by_name as bind_params_by_name
from aotc.relay_api.build import ExecutorFactory as ExecutorFactory
from aotc.relay_api.build import build as build
from aotc.relay_api.build import optimize as optimize
from aotc.relay_api.executor import Executor as Executor
from aotc.relay_api.executor import create_executor as create_executor

#: Relay's older name of PassContext.
build_config = PassContext
