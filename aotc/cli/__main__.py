# SPDX-License-Identifier: Apache-2.0
"""python -m aotc.cli"""

from aotc.cli import run

run()
