# SPDX-License-Identifier: Apache-2.0
"""Quantize float models with ONNX Runtime's quantizer, and report the loss of accuracy and the gain
in speed and size.

quantize("net.onnx", "net_int8.onnx", "samples")["layers"][0]["snr_db"]
"""
