# SPDX-License-Identifier: Apache-2.0
"""The `aotc` command."""

import sys


def run() -> None:
    """What the command does; an interruption while it is still being loaded ends it quietly, too."""
    try:
        from aotc.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
