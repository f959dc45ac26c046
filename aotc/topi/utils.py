# SPDX-License-Identifier: Apache-2.0
"""Layouts as TVM spells them.

nchw_pack_layout("NCHW4n8c")                     # True
"""

import re


def nchw_pack_layout(layout_info: str) -> bool:
    """Whether a layout is NCHW with blocks of images and channels inside."""
    return re.fullmatch(r"NCHW\d+n\d+c|NCHW\d+c\d+n", layout_info) is not None


def nchw_xc_layout(layout_info: str) -> bool:
    """Whether a layout is NCHW with blocks of channels inside."""
    return re.fullmatch(r"NCHW\d+c", layout_info) is not None
