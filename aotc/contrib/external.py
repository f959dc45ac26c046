# SPDX-License-Identifier: Apache-2.0
"""The user's own C kernels: `register("mine", generator)` for functions with the attribute
Compiler="mine".
"""

from aotc.relay.backend.external_c_code import register as register
from aotc.relay.backend.external_c_code import registered as registered
from aotc.relay.backend.external_c_code import unregister as unregister
