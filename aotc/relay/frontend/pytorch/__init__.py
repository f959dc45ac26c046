# SPDX-License-Identifier: Apache-2.0
"""The PyTorch front ends: TorchScript and torch.export programs
become modules of the graph IR.

script    the walk over a TorchScript graph
exported  the walk over an ExportedProgram
archive   the .pt2 files of exported programs, read as data; `program` checks the graph in them
ops_*     one converter per PyTorch operator, in families, shared by both; `table` lists them
values    arguments and data types as PyTorch sees them

    module, params = from_exported(torch.export.export(net, (x,)))

Importing this package needs torch.
"""

from aotc.relay.frontend.pytorch.converter_table import CONVERTERS, converter_of
from aotc.relay.frontend.pytorch.exported_program import from_exported
from aotc.relay.frontend.pytorch.pt2_archive import load_exported
from aotc.relay.frontend.pytorch.torchscript import from_script

__all__ = ["CONVERTERS", "converter_of", "from_exported", "from_script", "load_exported"]
