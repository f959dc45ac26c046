# SPDX-License-Identifier: Apache-2.0
from aotc.relay.frontend import onnx as onnx
from aotc.relay.frontend import pytorch as pytorch
from aotc.relay.frontend import tflite as tflite
from aotc.relay_api.frontend import from_exported_program as from_exported_program
from aotc.relay_api.frontend import from_onnx as from_onnx
from aotc.relay_api.frontend import from_pytorch as from_pytorch
from aotc.relay_api.frontend import from_tflite as from_tflite
