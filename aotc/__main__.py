# SPDX-License-Identifier: Apache-2.0
"""python -m aotc"""

from aotc.cli import run

run()
