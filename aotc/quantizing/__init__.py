# SPDX-License-Identifier: Apache-2.0
"""Float models made quantized ones, by ONNX Runtime's quantizer, and what that costs and gains.

quantize("net.onnx", "net_int8.onnx", "samples")["layers"][0]["snr_db"]
"""
