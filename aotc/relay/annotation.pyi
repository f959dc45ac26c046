# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import checkpoint as checkpoint
from aotc.relay.op.builders import compiler_begin as compiler_begin
from aotc.relay.op.builders import compiler_end as compiler_end
from aotc.relay.op.builders import stop_fusion as stop_fusion
