# SPDX-License-Identifier: Apache-2.0
"""Pass instruments for graph modules: operator counts, statistics, verification, and text dumps
after each pass.
"""
