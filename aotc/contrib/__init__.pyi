# SPDX-License-Identifier: Apache-2.0
from aotc.contrib import debugger as debugger
from aotc.contrib import external as external
from aotc.contrib import graph_executor as graph_executor
from aotc.contrib import utils as utils
