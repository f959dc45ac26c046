# SPDX-License-Identifier: Apache-2.0
"""Relay's containers of parts of programs: those of Python.

isinstance(aotc.ir.load_json(text), aotc.ir.container.Map)
"""

#: What holds parts in order, and parts by name.
Array, Map = tuple, dict
