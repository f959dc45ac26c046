# SPDX-License-Identifier: Apache-2.0
from aotc.relay.testing import dcgan as dcgan
from aotc.relay.testing import init as init
from aotc.relay.testing import layers as layers
from aotc.relay.testing import mlp as mlp
from aotc.relay.testing import mobilenet as mobilenet
from aotc.relay.testing import resnet as resnet
from aotc.relay.testing import squeezenet as squeezenet
from aotc.relay.testing import temp_op_attr as temp_op_attr
from aotc.relay.testing.init import create_workload as create_workload
from aotc.relay.testing.run import run_infer_type as run_infer_type
from aotc.relay.testing.run import run_opt_pass as run_opt_pass
from aotc.relay.testing.temp_op_attr import TempOpAttr as TempOpAttr
