# SPDX-License-Identifier: Apache-2.0
"""Instrument that writes the text of the graph after each pass to numbered files in a directory.

with PassContext(instruments=[dump_ir("build/ir")]):
    module = InferType()(module)                 # build/ir/000_InferType.relay
"""

from pathlib import Path
from typing import Any

from aotc.ir import DumpIR
from aotc.relay.module import IRModule
from aotc.relay.text.printer import astext


def module_to_text(module: Any, show_meta_data: bool = False) -> str:
    """Return the result of a pass as text: Relay text of a graph, or the text form of a program of
    kernels.
    """
    return astext(module, show_meta_data) if isinstance(module, IRModule) else str(module)


def dump_ir(dump_dir: str | Path, refresh: bool = False, show_meta_data: bool = False) -> DumpIR:
    """Return an instrument that writes Relay text, with the values of large constants only if
    `show_meta_data` is True.

    refresh    True: first remove the files of earlier dumps from the directory

    Raise AotcError (code "dump-ir") if the directory cannot be written to.
    """
    return DumpIR(dump_dir, refresh, show=lambda module: module_to_text(module, show_meta_data), suffix="relay")
