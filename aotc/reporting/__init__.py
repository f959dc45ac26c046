# SPDX-License-Identifier: Apache-2.0
"""What models are and what their compilation did: as data, as tables, and as one page for the browser.

inspect_model("net.onnx")["macs"]
PassReport("net.onnx").save_html("report.html")
"""
