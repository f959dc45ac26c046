# SPDX-License-Identifier: Apache-2.0
"""Describe models and their compilation: as data, as text tables, and as one HTML page.

inspect_model("net.onnx")["macs"]
PassReport("net.onnx").save_html("report.html")
"""
