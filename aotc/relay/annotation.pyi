# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.annotation import compiler_begin as compiler_begin
from aotc.relay.op.annotation import compiler_end as compiler_end
from aotc.relay.op.annotation import stop_fusion as stop_fusion
