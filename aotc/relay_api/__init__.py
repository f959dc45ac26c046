# SPDX-License-Identifier: Apache-2.0
"""Compatibility with TVM's Relay: build, executors, virtual machine, front ends and expressions by
operator name.

Input: modules, targets and devices as programs written for Relay pass them, and the current pass
context. Output: libraries, executors and expressions with Relay's names; the modules `aotc` and
`aotc.relay` export them.

    build(mod, "llvm", params=params)["default"](cpu())
"""
