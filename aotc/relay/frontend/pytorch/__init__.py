# SPDX-License-Identifier: Apache-2.0
"""The PyTorch front ends: import TorchScript and torch.export programs as modules of the graph IR.

torchscript       converts the nodes of a TorchScript graph
exported_program  converts the nodes of an ExportedProgram
changed_tensors   finds the buffers, parameters and constants that an ExportedProgram changes
pt2_archive       reads .pt2 files of exported programs as data; `pt2_validation` checks the graph
                  in them
ops_*             one converter per PyTorch operator, by family, for both; `converter_table` lists
                  them
value_conversion_and_promotion  arguments and data types as PyTorch defines them

    import torch
    from aotc.relay.frontend.pytorch import from_exported
    module, params = from_exported(torch.export.export(net, (x,)))

Importing this package requires PyTorch.
"""

from aotc.relay.frontend.pytorch.changed_tensors import changed_buffers_of_program, contents_of_changed_buffers
from aotc.relay.frontend.pytorch.converter_table import CONVERTERS, converter_of
from aotc.relay.frontend.pytorch.exported_program import (
    from_exported,
    functionalize_and_decompose,
    input_types_of_exported,
)
from aotc.relay.frontend.pytorch.pt2_archive import load_exported
from aotc.relay.frontend.pytorch.torchscript import from_script

__all__ = [
    "CONVERTERS",
    "changed_buffers_of_program",
    "contents_of_changed_buffers",
    "converter_of",
    "from_exported",
    "from_script",
    "functionalize_and_decompose",
    "input_types_of_exported",
    "load_exported",
]
