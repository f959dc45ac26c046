# SPDX-License-Identifier: Apache-2.0
"""Front ends: other people's models become modules of the graph IR.

from aotc.relay.frontend.onnx import from_onnx
module = from_onnx("net.onnx", dims={"batch": 1})
"""
