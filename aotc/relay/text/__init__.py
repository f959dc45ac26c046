# SPDX-License-Identifier: Apache-2.0
"""Relay's text format for graph programs: printer, parser and JSON form."""
