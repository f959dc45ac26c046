# SPDX-License-Identifier: Apache-2.0
"""Relay's interface over the compiler: build, executors, virtual machine, front ends, expressions by operator name.

In: modules, targets and devices as programs written for Relay give them, and the current pass context.  Out: libraries,
executors and expressions with the names that such programs know; the modules of `aotc` and `aotc.relay` offer them.

    build(mod, "llvm", params=params)["default"](cpu())
"""
