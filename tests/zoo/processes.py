# SPDX-License-Identifier: Apache-2.0
"""Calls functions in processes of their own, which are copies of one that has imported the large libraries."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

_PRELOADED: Final = ["torch", "onnxscript", "skl2onnx", "onnxruntime", "tests.zoo.preload"]


def in_a_process(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Return what a function of a module gives in another process; raise TimeoutError, or EOFError if it crashes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise TimeoutError
        return receiver.recv()
    finally:
        process.kill()
        process.join()


def _send_result(sender: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = function(*arguments)
    sender.send(result)
