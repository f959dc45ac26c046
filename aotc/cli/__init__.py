# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `aotc` command line interface."""

import atexit
import os
import sys
from contextlib import suppress

from aotc.ir.garbage_collection import collect_garbage_rarely
from aotc.ir.interrupts import install_exit_signal_handlers
from aotc.ir.parallel_memo import allow_forked_processes


def run() -> None:
    """Run the `aotc` command; an interrupt ends it with exit code 130 after removing temporary
    files.
    """
    install_exit_signal_handlers()
    allow_forked_processes()
    code = 1

    def flush_output_and_exit_without_cleanup() -> None:
        # registered first, so called last: the interpreter would ignore signals during its shutdown
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)

    atexit.register(flush_output_and_exit_without_cleanup)
    try:
        # imported here, under the signal handlers: the import takes about a second
        with collect_garbage_rarely():
            from aotc.cli.main import main

            main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
