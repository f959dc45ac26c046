# SPDX-License-Identifier: Apache-2.0
"""Pass instruments: the base, the decorator, and those that come with aotc.

with aotc.transform.PassContext(instruments=[aotc.instrument.PassTimingInstrument()]): ...
"""

from aotc.ir import DumpIR as DumpIR
from aotc.ir import PassInstrument as PassInstrument
from aotc.ir import PrintAfterAll as PrintAfterAll
from aotc.ir.instrument import PassPrintingInstrument as PassPrintingInstrument
from aotc.ir.instrument import PassTimingInstrument as PassTimingInstrument
from aotc.ir.instrument import PrintBeforeAll as PrintBeforeAll
from aotc.ir.instrument import pass_instrument as pass_instrument
from aotc.relay.instrument.dump_ir import dump_ir as dump_ir
from aotc.relay.instrument.numeric_check import NumericCheck as NumericCheck
from aotc.relay.instrument.op_count_changes import OpDifference as OpDifference
from aotc.relay.instrument.verifier import Verifier as Verifier
from aotc.reporting.compile_report import PassReport as PassReport
