# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `aotc` command line interface."""

import atexit
import os
import sys
from contextlib import suppress

from aotc.ir.interrupts import exit_on_signals


def run() -> None:
    """Run the `aotc` command; an interrupt ends it with exit code 130 after removing temporary
    files.
    """
    exit_on_signals()
    code = 1

    def leave() -> None:
        # registered first, so called last: the interpreter would ignore signals during its shutdown
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)

    atexit.register(leave)
    try:
        # imported here, under the signal handlers: the import takes about a second
        from aotc.cli.main import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
