# SPDX-License-Identifier: Apache-2.0
"""Instruments that look into graph modules: operator counts, well-formedness, text after each pass."""
