# SPDX-License-Identifier: Apache-2.0
"""Relay's interface over the compiler: build, executors, virtual machine, front ends, expressions by operator name."""
