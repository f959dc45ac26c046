# SPDX-License-Identifier: Apache-2.0
"""Relay's containers for parts of programs, as aliases: `Array` is Python's tuple, `Map` is dict.

isinstance(aotc.ir.load_json(text), aotc.ir.container.Map)
"""

#: Relay's container types.
Array, Map = tuple, dict
