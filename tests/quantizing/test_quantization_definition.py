# SPDX-License-Identifier: Apache-2.0
"""The benchmark networks, quantized by ONNX Runtime's tool with uint8 and int8 activations, against their definition:
each QuantizeLinear rounds the double-precision results of its operators.

Each kernel is fed with the integers that ONNX Runtime computes without optimizations.  Its results are those of the
definition, but for numbers next to ties, where float32 may round to the neighbor.  Where ONNX Runtime's optimized
kernels give other integers than the definition, these lie next to ties, too, but for its softmax: docs/quantization.md
names the causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from aotc.checking.float64_reference import evaluate_model_in_float64
from aotc.checking.input_generation import draw_random_inputs
from aotc.checking.model_reference_runs import convert_inputs_to_float64
from aotc.driver.compile import CompileOptions
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from tests.ops.exact_quantization import Array, defined, outside
from tests.share import share
from tests.targets.machines import has_vnni

pytest.importorskip("onnxruntime")
import onnxruntime

from tests.quantizing.networks import Seen, Work, exposed, session

FORMS = ("qdq-u8", "qdq-s8")
NEAR = 2.0**-12
"""In steps: float32 sums of some thousand products are not nearer to the exact ones.  Ours are integers."""
OURS = 2.0**-14
"""What a float32 factor and a float32 product change of up to 255 steps."""


@dataclass
class Quantization:
    """A QuantizeLinear node: the tensor that it rounds, the operator that made this, and its scale and zero point."""

    data: str
    operator: str
    onto: tuple[Any, int]


def quantizations(model: onnx.ModelProto) -> dict[str, Quantization]:
    """The quantizations of a model with one scale, by the tensors that they give."""
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and known[node.input[1]].size == 1:
            scale, zero = (known[name].reshape(()) for name in node.input[1:3])
            onto, data = (np.float32(scale), int(zero)), node.input[0]
            found[node.output[0]] = Quantization(data, makers.get(data, ""), onto)
    return found


def unoptimized(work: Work, inputs: dict[str, Array]) -> Seen:
    """The integers that ONNX Runtime computes operator by operator, in float32."""
    model, names = work.model(), work.narrow(inputs)
    runs = session(exposed(model, names).SerializeToString(), onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    values = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, inputs), strict=True))
    return Seen(model, names, values, {}, only_integers=False)


def quotients(cut: onnx.ModelProto, rows: dict[str, Quantization], given: dict[str, Array]) -> dict[str, Array]:
    """What each quantization rounds, in steps of its scale, in double precision."""
    rows = {name: row for name, row in rows.items() if any(name in node.output for node in cut.graph.node)}
    wide = evaluate_model_in_float64(
        exposed(cut, [row.data for row in rows.values()]), convert_inputs_to_float64(given)
    )
    inputs = convert_inputs_to_float64(given)
    return {
        name: (wide[row.data] if row.data in wide else inputs[row.data]) / np.float64(row.onto[0])
        for name, row in rows.items()
    }


def run(model: onnx.ModelProto, given: dict[str, Array], **options: Any) -> dict[str, Array]:
    compiled = CompileOptions(cflags=("-O1",), **options).compile_model(model).session()
    return dict(zip([o.name for o in compiled.get_outputs()], compiled.run(None, given), strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "form"), share(product(NETWORK_BUILD_FUNCTIONS, FORMS), 1, always=[("ds_cnn", "qdq-s8")])
)
def test_kernels_of_networks_give_what_the_model_says(name: str, form: str, tmp_path: Path) -> None:
    work = Work.of(NETWORK_BUILD_FUNCTIONS[name](), form, tmp_path)
    rows = quantizations(work.model())
    if not rows:
        pytest.skip(f"ONNX Runtime's tool quantizes nothing of {name}")
    inputs = draw_random_inputs(work.types, 0)
    seen = unoptimized(work, inputs)
    cut, given = seen.cut(), seen.given(inputs)
    exact, ours = quotients(cut, rows, given), run(cut, given)
    theirs = dict(zip(ours, session(cut.SerializeToString()).run(list(ours), given), strict=True))
    counts, wrong = np.zeros(3, int), {}
    for tensor in exact.keys() & ours.keys():
        onto, quotient = rows[tensor].onto, exact[tensor]
        want = defined(quotient, onto, ours[tensor].dtype)
        counts += want.size, (ours[tensor] != want).sum(), (theirs[tensor] != want).sum()
        wrong[tensor, "ours"] = int(outside(ours[tensor], quotient, onto, OURS).sum())
        if has_vnni() and rows[tensor].operator != "Softmax":
            # its products of bytes saturate on other processors, its softmax multiplies by the integer below 1 / scale
            wrong[tensor, "ONNX Runtime's"] = int(outside(theirs[tensor], quotient, onto, NEAR).sum())
    print(f"{name} {form}: {counts[0]} integers, {counts[1]} of ours and {counts[2]} of ONNX Runtime's next to a tie")
    assert counts[0] and {where: count for where, count in wrong.items() if count} == {}
