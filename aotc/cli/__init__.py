# SPDX-License-Identifier: Apache-2.0
"""The `aotc` command."""

import atexit
import os
import sys
from contextlib import suppress

from aotc.ir.interrupts import exit_on_signals


def run() -> None:
    """Run the command; an interrupt at any moment ends it with exit code 130 and leaves nothing behind."""
    exit_on_signals()
    code = 1

    def leave() -> None:
        # called last, since registered first: the interpreter would ignore signals while it is torn down
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)

    atexit.register(leave)
    try:
        # takes a second, in which an interrupt may come
        from aotc.cli.main import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
