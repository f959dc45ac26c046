# SPDX-License-Identifier: Apache-2.0
"""The text of the graph after each pass, as numbered files in a directory.

with PassContext(instruments=[dump_ir("build/ir")]):
    module = InferType()(module)                 # build/ir/000_InferType.relay
"""

from pathlib import Path
from typing import Any

from aotc.ir import DumpIR
from aotc.relay.module import IRModule
from aotc.relay.text.printer import astext


def text_of(module: Any, show_meta_data: bool = False) -> str:
    """What a pass has made: Relay text of a graph, the text form of a program of kernels."""
    return astext(module, show_meta_data) if isinstance(module, IRModule) else str(module)


def dump_ir(dump_dir: str | Path, refresh: bool = False, show_meta_data: bool = False) -> DumpIR:
    """An instrument that writes Relay text; the values of large constants only with `show_meta_data`.

    refresh    first remove the files of earlier dumps from the directory

    Raises AotcError (code "dump-ir") if the directory cannot be written to.
    """
    return DumpIR(dump_dir, refresh, show=lambda module: text_of(module, show_meta_data), suffix="relay")
