# SPDX-License-Identifier: Apache-2.0
"""Runs the `aotc` command as `python -m aotc.cli`."""

from aotc.cli import run

run()
