# SPDX-License-Identifier: Apache-2.0
"""Alias at TVM's import path of `aotc.relay_api.target.Target`, which makes a target from TVM's
target string: `Target("llvm")`.
"""

from aotc.relay_api.target import Target as Target
