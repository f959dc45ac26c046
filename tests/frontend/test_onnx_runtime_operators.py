# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX Runtime adds or still runs, compared with ONNX Runtime: fused ones, attention, experimental
operators of set 1; and networks as its optimizer writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import pytest
from evaluation import Array, model_of, ort_run, run_model
from onnx import ModelProto, helper, numpy_helper, parser

from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate

RNG: Final = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def node_model(
    op: str, values: Sequence[Array | None], outputs: int, opset: int, domain: str, attributes: Mapping[str, Any]
) -> tuple[ModelProto, dict[str, Array]]:
    """A model of one node whose first input is an input of the model, and the value of that input."""
    names = ["" if v is None else f"i{k}" for k, v in enumerate(values)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    data = values[0]
    assert data is not None
    constants = {n: v for n, v in list(zip(names, values, strict=True))[1:] if v is not None}
    elem = helper.np_dtype_to_tensor_dtype(data.dtype)
    model = model_of([node], {"i0": data.shape}, results, constants=constants, opset=opset, elem=elem)
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model, {"i0": data}


def agrees_with_onnx_runtime(model: ModelProto, feeds: Mapping[str, Array], tolerance: float = 2e-5) -> None:
    wanted, got = ort_run(model, feeds), run_model(from_onnx(model), feeds)
    for want, value in zip(wanted, got, strict=True):
        assert value.dtype == want.dtype
        np.testing.assert_allclose(value, want, tolerance, tolerance)


IMAGE, MATRIX, SEQUENCE = (2, 3, 6, 5), (4, 6), (2, 5, 8)
MASKS: Final = {
    "lengths": np.array([3, 5], np.int32),
    "ends and starts": np.array([3, 5, 1, 0], np.int32),
    "positions": np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]], np.int32),
    "pairs": RNG.integers(0, 2, (2, 5, 5)).astype(np.int32),
}


def fused_cases() -> Iterator[tuple[str, Sequence[Array | None], int, dict[str, Any]]]:
    """(operator, values of its inputs, number of outputs, attributes) in the domain com.microsoft."""
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    for name, numbers in (("Relu", ()), ("LeakyRelu", (0.3,)), ("Clip", (-0.5, 1.0)), ("HardSigmoid", (0.3, 0.4))):
        given = {"activation": name, **({"activation_params": list(numbers)} if numbers else {})}
        yield "FusedConv", [floats(*IMAGE), floats(4, 3, 3, 3), floats(4)], 1, {**window, **given}
    yield "FusedConv", [floats(*IMAGE), floats(4, 3, 3, 3), floats(4), floats(2, 4, 6, 5)], 1, {
        **window, "activation": "Tanh",
    }  # fmt: skip
    yield "FusedGemm", [floats(*MATRIX), floats(3, 6), floats(3)], 1, {
        "transB": 1, "alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.2,
    }  # fmt: skip
    yield "FusedMatMul", [floats(*SEQUENCE), floats(3, 8)], 1, {"transB": 1, "alpha": 0.5}
    yield "FusedMatMul", [floats(2, 3, 4, 6), floats(2, 3, 4, 5)], 1, {"transA": 1}
    yield "FusedMatMul", [floats(4, 2, 3, 6), floats(6, 2, 3, 5)], 1, {"transBatchA": 1, "transBatchB": 1}
    yield "BiasGelu", [floats(*SEQUENCE), floats(8)], 1, {}
    yield "Gelu", [floats(*SEQUENCE)], 1, {}
    yield "FastGelu", [floats(*SEQUENCE), floats(8)], 1, {}
    yield "QuickGelu", [floats(*SEQUENCE)], 1, {"alpha": 1.7}
    for outputs, bias in ((1, None), (4, floats(8))):
        scales = [floats(8), floats(8)]
        yield (
            "SkipLayerNormalization",
            [floats(*SEQUENCE), floats(*SEQUENCE), *scales, bias],
            outputs,
            {"epsilon": 1e-5},
        )
    yield "SkipSimplifiedLayerNormalization", [floats(*SEQUENCE), floats(*SEQUENCE), floats(8), floats(8)], 1, {}
    ids, segments = (RNG.integers(0, n, (2, 5)).astype(np.int32) for n in (9, 2))
    tables = [floats(9, 8), floats(7, 8), floats(2, 8), floats(8), floats(8)]
    yield "EmbedLayerNormalization", [ids, segments, *tables, MASKS["positions"]], 3, {"epsilon": 1e-5}
    yield "EmbedLayerNormalization", [ids, None, *tables[:2], None, *tables[3:]], 2, {}
    for mask in (None, *MASKS.values()):
        yield "Attention", [floats(*SEQUENCE), floats(8, 24), floats(24), mask], 1, {"num_heads": 2}
    past = floats(2, 2, 2, 3, 4)
    yield "Attention", [floats(*SEQUENCE), floats(8, 24), floats(24), None, past], 2, {
        "num_heads": 2, "unidirectional": 1,
    }  # fmt: skip
    yield "Attention", [floats(*SEQUENCE), floats(8, 20), floats(20), None, None, floats(2, 2, 5, 5)], 1, {
        "num_heads": 2, "qkv_hidden_sizes": [8, 8, 4], "scale": 0.3,
    }  # fmt: skip
    three = [floats(*SEQUENCE), floats(2, 7, 8), floats(2, 7, 8)]
    hidden = RNG.integers(0, 2, (2, 7)).astype(np.int32)
    yield "MultiHeadAttention", [*three, floats(24), hidden], 1, {"num_heads": 2}
    yield "MultiHeadAttention", [floats(*SEQUENCE), *([floats(*SEQUENCE)] * 2)], 1, {
        "num_heads": 4, "unidirectional": 1, "scale": 0.4,
    }  # fmt: skip
    split = [floats(2, 2, 7, 4), floats(2, 2, 7, 4)]
    yield "MultiHeadAttention", [floats(*SEQUENCE), *split], 1, {"num_heads": 2}
    for steps, keys in ((3, 5), (1, 4), (4, 2)):
        crossed = [floats(2, steps, 8), *(floats(2, keys, 8) for _ in "kv")]
        yield "MultiHeadAttention", crossed, 1, {"num_heads": 2, "unidirectional": 1}
    grown = [*([floats(*SEQUENCE)] * 3), None, None, None, floats(2, 2, 3, 4), floats(2, 2, 3, 4)]
    yield "MultiHeadAttention", grown, 3, {"num_heads": 2}
    yield from grouped_attention_cases()
    yield from masked_attention_cases()
    yield from integer_cache_cases()
    ids = np.array([[0, 1, 2, 3, 4], [7, 5, 3, 1, 0]])
    for x, positions, attributes in (
        (floats(2, 5, 32), ids, {}),
        (floats(2, 5, 48), np.array([3]), {"num_heads": 2, "rotary_embedding_dim": 16, "interleaved": 1}),
        (floats(2, 2, 5, 16), ids, {"interleaved": 1}),
    ):
        yield "RotaryEmbedding", [x, positions, floats(9, 8), floats(9, 8)], 1, attributes


def grouped_attention_cases() -> Iterator[tuple[str, list[Array | None], int, dict[str, Any]]]:
    """Prompts and steps, with lengths of all sequences, and features of the scores."""
    heads, rotary = {"num_heads": 4, "kv_num_heads": 2}, [floats(9, 8), floats(9, 8)]

    def case(
        steps: int,
        past: int | None,
        last: list[int],
        total: int,
        *more: Array | None,
        size: int = 16,
        **attributes: Any,
    ) -> tuple[str, list[Array | None], int, dict[str, Any]]:
        batch = len(last)
        new = [floats(batch, steps, count * size) for count in (4, 2, 2)]
        caches = [None] * 2 if past is None else [floats(batch, 2, past, size) for _ in range(2)]
        lengths = [np.array(last, np.int32), np.array(total, np.int32)]
        return "GroupQueryAttention", [*new, *caches, *lengths, *more], 3, heads | attributes

    yield case(4, None, [3, 3], 4)
    yield case(4, 0, [3, 3], 4, *rotary, do_rotary=1)
    yield case(1, 5, [5, 5], 6, *rotary, size=32, do_rotary=1, rotary_interleaved=1)
    yield case(3, 5, [7], 8, *rotary, np.array([[2, 8, 4]]), do_rotary=1)
    yield case(3, None, [2, 2], 3, *rotary, np.array([[2, 8, 4], [1, 1, 1]]), do_rotary=1)
    yield case(
        3, 5, [7], 8, None, None, None, floats(1, 4, 3, 8), floats(4), local_window_size=3, softcap=2.0, scale=0.7
    )
    yield case(6, None, [5], 6, local_window_size=2, smooth_softmax=1)
    yield case(1, 6, [5, 5], 6, None, None, None, floats(1, 1, 1, 6))
    yield case(1, 6, [5, 5], 6, causal=0)
    yield case(3, 5, [7], 8, causal=0)
    yield case(5, None, [4, 2, 0], 5, causal=0)  # sequences of other lengths than the longest one
    yield case(5, None, [3], 5, *rotary, causal=0, do_rotary=1)
    packed = [floats(2, 1, 128), None, None, floats(2, 2, 5, 16), floats(2, 2, 5, 16), np.array([5, 5], np.int32)]
    yield "GroupQueryAttention", [*packed, np.array(6, np.int32), *rotary], 3, heads | {"do_rotary": 1}


def test_grouped_attention_normalizes_queries_and_keys() -> None:
    """ONNX Runtime does so on GPUs only, so that it gets normalized queries and keys here."""
    weights, lengths = [floats(16), floats(16)], [np.array([7], np.int32), np.array(8, np.int32)]
    rotary, caches, attributes = [floats(9, 8), floats(9, 8)], [floats(1, 2, 5, 16) for _ in "kv"], {"do_rotary": 1}
    new = [floats(1, 3, count * 16) for count in (4, 2, 2)]
    normalized = []
    for x, weight, epsilon in zip(new, weights, (0.1, 0.2), strict=False):
        heads = x.reshape(1, 3, -1, 16)
        heads = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + np.float32(epsilon)) * weight
        normalized.append(heads.reshape(x.shape))
    attributes |= {"num_heads": 4, "kv_num_heads": 2}
    rest, norms = [new[2], *caches, *lengths, *rotary], {"qk_norm_epsilon": 0.1, "k_norm_epsilon": 0.2}
    domain = "com.microsoft"
    reference, feeds = node_model("GroupQueryAttention", [*normalized, *rest], 3, 17, domain, attributes)
    values = [*new[:2], *rest, *[None] * 5, *weights]
    model, given = node_model("GroupQueryAttention", values, 3, 17, domain, attributes | norms)
    for want, value in zip(ort_run(reference, feeds), run_model(from_onnx(model), given), strict=True):
        np.testing.assert_allclose(value, want, 2e-5, 2e-5)


def test_grouped_attention_returns_results_of_the_softmax() -> None:
    values = [*(floats(1, 3, count * 16) for count in (4, 2, 2)), *(floats(1, 2, 5, 16) for _ in "kv")]
    values += [np.array([7], np.int32), np.array(8, np.int32)]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "qk_output": 2}
    model, feeds = node_model("GroupQueryAttention", values, 4, 17, "com.microsoft", attributes)
    model.graph.output[3].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    agrees_with_onnx_runtime(model, feeds)


def test_grouped_attention_returns_results_of_the_softmax_up_to_the_length_in_a_buffer() -> None:
    """ONNX Runtime leaves what lies behind the length in present buffers as it was."""
    values = [*(floats(1, 2, count * 16) for count in (4, 2, 2)), *(floats(1, 2, 9, 16) for _ in "kv")]
    values += [np.array([5], np.int32), np.array(6, np.int32)]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "qk_output": 2}
    model, feeds = node_model("GroupQueryAttention", values, 4, 17, "com.microsoft", attributes)
    model.graph.output[3].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    expected, found = ort_run(model, feeds), run_model(from_onnx(model), feeds)
    assert found[3].shape == expected[3].shape == (1, 4, 2, 6)
    for number in (0, 3):
        np.testing.assert_allclose(found[number], expected[number], 2e-5, 2e-5)


def integer_cache_cases() -> Iterator[tuple[str, list[Array | None], int, dict[str, Any]]]:
    """Steps of GroupQueryAttention with caches of integers, which grow."""
    for bits, kind, steps, past, batch in ((8, "PER_TENSOR", 1, 3, 2), (8, "PER_CHANNEL", 3, 5, 1),
                                           (4, "PER_CHANNEL", 1, 3, 2), (4, "PER_TENSOR", 4, 0, 2)):  # fmt: skip
        new = [floats(batch, steps, count * 16) for count in (4, 2, 2)]
        shape = (batch, 2, past, 16 if bits == 8 else 8)
        caches = [RNG.integers(0, 256, shape).astype(np.uint8) for _ in range(2)]
        stored = [c.view(np.int8) if bits == 8 else c for c in caches]
        scales = [(RNG.random(1 if kind == "PER_TENSOR" else 32) / bits**2 + 0.01).astype(np.float32) for _ in "kv"]
        lengths = [np.full(batch, past + steps - 1, np.int32), np.array(past + steps, np.int32)]
        attributes = {"num_heads": 4, "kv_num_heads": 2, "kv_cache_bit_width": bits}
        attributes |= {"k_quant_type": kind, "v_quant_type": kind}
        yield "GroupQueryAttention", [*new, *stored, *lengths, *[None] * 5, *scales], 3, attributes


MASKED: Final = "DecoderMaskedMultiHeadAttention"
SHARED: Final = {"num_heads": 2, "past_present_share_buffer": 1}


def masked_attention_cases() -> Iterator[tuple[str, list[Array | None], int, dict[str, Any]]]:
    """A new token with buffers of six positions, and with the keys and values of another sequence."""
    heads = {"num_heads": 2}
    for past, has_mask in ((0, False), (3, True), (5, False)):
        mask = np.array([[1, 0, 1, 1], [1, 1, 0, 1]], np.int32) if has_mask else None
        inputs = [*(floats(2, 1, 8) for _ in range(3)), mask, floats(1, 2, 1, past + 1) if has_mask else None]
        buffers, place = [floats(2, 2, 6, 4) for _ in range(2)], np.array([past], np.int32)
        bias = [None, None, floats(24)] if has_mask else []
        yield MASKED, [*inputs, *buffers, place, *bias], 4, SHARED | {"output_qk": 1}
    others = [floats(2, 2, 5, 4) for _ in range(2)]
    yield MASKED, [floats(2, 1, 8), *others, MASKS["positions"]], 1, heads | {"scale": 0.4, "mask_filter_value": -2.0}


FUSED: Final = list(fused_cases())


@pytest.mark.parametrize("number", range(len(FUSED)), ids=[f"{k}-{case[0]}" for k, case in enumerate(FUSED)])
def test_operators_of_com_microsoft(number: int) -> None:
    op, values, outputs, attributes = FUSED[number]
    model, feeds = node_model(op, values, outputs, 17, "com.microsoft", attributes)
    if op == MASKED and outputs == 4:
        # otherwise ONNX Runtime takes the scores for float16
        model.graph.output[3].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    agrees_with_onnx_runtime(model, feeds)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_recurrent_layers_over_reversed_sequences_of_different_lengths(op: str, direction: str) -> None:
    count, gates = 2 if direction == "bidirectional" else 1, {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    shapes = (count, gates * 5, 3), (count, gates * 5, 5), (count, gates * 10)
    values = [floats(6, 4, 3), *(floats(*shape) for shape in shapes), np.array([4, 2, 6, 1], np.int32)]
    attributes = {"hidden_size": 5, "direction": direction}
    agrees_with_onnx_runtime(*node_model(op, values, 3 if op == "LSTM" else 2, 17, "", attributes))


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "opset", "attributes"),
    [
        ("Affine", [floats(2, 3)], 1, 1, {"alpha": 0.5, "beta": 2.0}),
        ("Crop", [floats(1, 2, 8, 9)], 1, 1, {"border": [1, 2, 3, 1]}),
        ("Crop", [floats(1, 2, 8, 9)], 1, 1, {"border": [1, 2, 0, 0], "scale": [4, 5]}),
        ("ImageScaler", [floats(*IMAGE)], 1, 1, {"bias": [0.5, -1.0, 2.0], "scale": 0.25}),
        ("ParametricSoftplus", [floats(2, 3)], 1, 1, {"alpha": 0.5, "beta": 2.0}),
        ("ScaledTanh", [floats(2, 3)], 1, 1, {"alpha": 0.5, "beta": 2.0}),
        ("ThresholdedRelu", [floats(2, 9)], 1, 8, {"alpha": 0.3}),
        ("LayerNormalization", [floats(*SEQUENCE), floats(8), floats(8)], 1, 12, {"axis": -1}),
        ("SimplifiedLayerNormalization", [floats(*SEQUENCE), floats(8)], 2, 14, {"epsilon": 1e-6}),
    ],
)
def test_operators_of_the_standard_domain_that_the_standard_lacks(
    op: str, inputs: list[Array], outputs: int, opset: int, attributes: dict[str, Any]
) -> None:
    agrees_with_onnx_runtime(*node_model(op, inputs, outputs, opset, "", attributes))


def test_what_is_refused_is_named() -> None:
    cases: list[tuple[str, list[Array | None], dict[str, Any], str]] = [
        ("QOrderedGelu", [floats(2)], {}, "com.microsoft::QOrderedGelu"),
        ("FusedConv", [floats(*IMAGE), floats(4, 3, 1, 1)], {"activation": "Cube"}, "activation 'Cube' of FusedConv"),
        ("FusedConv", [floats(*IMAGE), floats(4, 3, 1, 1)], {"activation": "Clip"}, "does not take 0 parameters"),
        ("Attention", [floats(*SEQUENCE), floats(8, 24)], {"num_heads": 5}, "cannot be divided into 5 heads"),
        ("MultiHeadAttention", [floats(*SEQUENCE)], {"num_heads": 2}, "keys and values of MultiHeadAttention"),
        ("GroupQueryAttention", grouped(4), {"num_heads": 4, "kv_num_heads": 3}, "divided evenly among 3 heads"),
        ("GroupQueryAttention", grouped(4), {"num_heads": 2, "kv_num_heads": 2, "causal": 0, "local_window_size": 2},
         "local_window_size needs causal 1"),
        ("GroupQueryAttention", grouped(4), {"num_heads": 2, "kv_num_heads": 2, "sliding_window_cache": 1},
         "sliding_window_cache 1 of GroupQueryAttention is not supported"),
        ("GroupQueryAttention", grouped(4), {"num_heads": 2, "kv_num_heads": 2, "qk_output": 1}, "qk_output 1"),
        ("GroupQueryAttention", [*grouped(4), *[None] * 7, floats(4)], {"num_heads": 2, "kv_num_heads": 2},
         "q_norm_weight, but no k_norm_weight"),
        ("GroupQueryAttention", grouped(5), {"num_heads": 2, "kv_num_heads": 2}, "total_sequence_length .* is 5"),
        ("GroupQueryAttention", grouped(4), {"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR"},
         "integers of 0 bits is not supported"),
        ("GroupQueryAttention", [*caches(floats(*CACHE), floats(*CACHE)), *[None] * 5, floats(1), floats(1)],
         {"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8},
         "a cache of float32 .* does not hold integers of 8 bits"),
        ("GroupQueryAttention", [*grouped(4), *[None] * 5, floats(1)], {"num_heads": 2, "kv_num_heads": 2},
         "input 12 .* is a scale, but k_quant_type is 'NONE'"),
        (MASKED, masked(2, 3), SHARED, "takes one new token, not 2"),
        (MASKED, masked(1, 5), SHARED, "5 of .* leaves no room in 5 positions"),
        (MASKED, [*masked(1, 3), np.array([2], np.int32)], SHARED, "beam search"),
        ("RotaryEmbedding", [floats(2, 5, 8), np.array([0]), *[floats(9, 3)] * 2], {"num_heads": 2}, "3 columns"),
        ("RotaryEmbedding", [floats(2, 5, 8), np.array([0]), *[floats(9, 0)] * 2], {}, "0 columns"),
        ("GroupQueryAttention", caches(floats(8), floats(8)), {"num_heads": 2, "kv_num_heads": 2}, "past_key.*rank 4"),
        ("GroupQueryAttention", caches(None, floats(*CACHE)), {"num_heads": 2, "kv_num_heads": 2}, "no past_key"),
        ("MultiHeadAttention", [*[floats(1, 4, 8)] * 3, None, None, None, floats(*CACHE)], {"num_heads": 2},
         "has past_key, but no past_value"),
    ]  # fmt: skip
    for op, values, attributes, message in cases:
        model, _ = node_model(op, values, 1, 17, "com.microsoft", attributes)
        with pytest.raises(AotcError, match=message):
            from_onnx(model)


def grouped(total: int) -> list[Array | None]:
    """Operands of GroupQueryAttention: a prompt of four tokens, said to be `total` ones."""
    return [*([floats(1, 4, 8)] * 3), None, None, np.array([3], np.int32), np.array(total, np.int32)]


CACHE: Final = (1, 2, 5, 4)


def masked(steps: int, past: int) -> list[Array | None]:
    """Operands of DecoderMaskedMultiHeadAttention with buffers of five positions."""
    return [
        *(floats(1, steps, 8) for _ in range(3)),
        None,
        None,
        floats(*CACHE),
        floats(*CACHE),
        np.array([past], np.int32),
    ]


def test_computed_rows_of_buffers_are_checked() -> None:
    text = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>
      net (float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, float[1,2,5,4] pk, float[1,2,5,4] pv, int32[1] n)
        => (float[1,1,8] y, float[1,2,5,4] keys, float[1,2,5,4] values) {
        one = Constant <value = int32[1] {1}> ()
        past = Mul (n, one)
        y, keys, values = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 2, past_present_share_buffer = 1> (
          q, k, v, , , pk, pv, past)
    }"""
    model = parser.parse_model(text)
    module = from_onnx(model)
    data = [*(floats(1, 1, 8) for _ in range(3)), *(floats(1, 2, 5, 4) for _ in range(2))]
    for past in (0, 4):
        feeds = dict(zip(("q", "k", "v", "pk", "pv", "n"), (*data, np.array([past], np.int32)), strict=True))
        for got, want in zip(run_model(module, feeds), ort_run(model, feeds), strict=True):
            np.testing.assert_allclose(got, want, 2e-5, 2e-5)
    for past in (5, -1):
        with pytest.raises(AotcError, match=r"past_sequence_length .* is the number of a row of the buffers"):
            evaluate(module, *data, np.array([past], np.int32))


def caches(key: Array | None, value: Array | None) -> list[Array | None]:
    """The same with past keys and values."""
    operands = grouped(9)
    operands[3:5] = key, value
    return operands


def networks() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Networks in ONNX's text form, with the shapes of weights behind their names, and the shape of x."""
    gelu = "d = Div (b, root) e = Erf (d) f = Add (e, one) h = Mul (b, f) "
    norm = (
        "m = ReduceMean <axes = [-1]> (a) c = Sub (a, m) p = Pow (c, two) v = ReduceMean <axes = [-1]> (p) "
        "w = Add (v, eps) s = Sqrt (w) n = Div (c, s) k = Mul (n, w0) y = Add (k, w1)"
    )
    attention = (
        "q0 = MatMul (x, w0) q1 = Add (q0, w1) k0 = MatMul (x, w2) k1 = Add (k0, w3) v0 = MatMul (x, w4) "
        "v1 = Add (v0, w5) q2 = Reshape (q1, split) k2 = Reshape (k1, split) v2 = Reshape (v1, split) "
        "q = Transpose <perm = [0, 2, 1, 3]> (q2) k = Transpose <perm = [0, 2, 3, 1]> (k2) "
        "v = Transpose <perm = [0, 2, 1, 3]> (v2) s0 = MatMul (q, k) s1 = Div (s0, two) p = Softmax <axis = -1> (s1) "
        "o0 = MatMul (p, v) o1 = Transpose <perm = [0, 2, 1, 3]> (o0) y = Reshape (o1, joined)"
    )
    weight = "wq = DequantizeLinear (i0, sw, zw) xq = QuantizeLinear (x, sx, zx) xd = DequantizeLinear (xq, sx, zx) "
    result = "yq = QuantizeLinear (a, sy, zx) y = DequantizeLinear (yq, sy, zx)"
    return {
        "convolutions": (
            "a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0:4:3:3:3, w1:4) b = Relu (a) "
            "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w2:4:4:3:3, w3:4) d = Add (c, b) y = Relu (d)",
            (1, 3, 6, 5),
        ),
        "clipped convolution": (
            "a = Conv <kernel_shape = [1, 1]> (x, w0:4:3:1:1) b = Clip (a, zero, six) "
            "c = Conv <kernel_shape = [1, 1]> (b, w1:2:4:1:1) y = Sigmoid (c)",
            (1, 3, 6, 5),
        ),
        "hard swish": (
            "a = Conv <kernel_shape = [1, 1]> (x, w0:4:3:1:1) b = HardSigmoid <alpha = 0.16667> (a) y = Mul (a, b)",
            (1, 3, 6, 5),
        ),
        "layers": ("a = Gemm (x, w0:6:5, w1:5) b = Relu (a) c = Gemm (b, w2:5:3, w3:3) y = Tanh (c)", (4, 6)),
        "scaled product": (
            "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul (x, t) y = Mul (a, two)",
            (2, 5, 8),
        ),
        "gelu with a bias": (f"a = MatMul (x, w0:8:8) b = Add (a, w1:8) {gelu}y = Mul (h, half)", (2, 5, 8)),
        "quick gelu": ("a = Mul (x, two) b = Sigmoid (a) y = Mul (x, b)", (2, 5, 8)),
        "normalization": ("a = Identity (x) " + norm.replace("w0", "w0:8").replace("w1", "w1:8"), (2, 5, 8)),
        "normalization of a sum": (
            "r = MatMul (x, w2:8:8) a = Add (r, x) " + norm.replace("w0", "w0:8").replace("w1", "w1:8"),
            (2, 5, 8),
        ),
        "attention": (
            attention.replace("w0", "w0:8:8").replace("w2", "w2:8:8").replace("w4", "w4:8:8")
            .replace("w1", "w1:8").replace("w3", "w3:8").replace("w5", "w5:8"),
            (2, 5, 8),
        ),
        "quantized convolution": (f"{weight}a = Conv <kernel_shape = [1, 1]> (xd, wq) {result}", (1, 3, 6, 5)),
        "quantized sum": (
            "p = QuantizeLinear (x, sx, zx) q = DequantizeLinear (p, sx, zx) "
            f"a = Add (q, q) {result}",
            (2, 5, 8),
        ),
    }  # fmt: skip


def network_model(name: str) -> tuple[ModelProto, dict[str, Array]]:
    text, shape = networks()[name]
    constants: dict[str, Array] = {
        **{n: np.array(v, np.float32) for n, v in (("root", 2**0.5), ("one", 1), ("two", 2), ("half", 0.5))},
        **{n: np.array(v, np.float32) for n, v in (("eps", 1e-5), ("zero", 0), ("six", 6))},
        **{n: np.array(v, np.float32) for n, v in (("sx", 0.03), ("sy", 0.05), ("sw", 0.02))},
        "zx": np.array(128, np.uint8),
        "zw": np.array(0, np.int8),
        "i0": np.random.default_rng(1).integers(-99, 99, (4, 3, 1, 1)).astype(np.int8),
        "split": np.array([2, 5, 2, 4]),
        "joined": np.array([2, 5, 8]),
    }
    for word in sorted(set(re.findall(r"\bw\d(?::\d)+", text))):
        weight, *dims = word.split(":")
        constants[weight] = np.random.default_rng(len(word)).standard_normal([int(d) for d in dims]).astype(np.float32)
        text = text.replace(word, weight)
    header = '<ir_version: 8, opset_import: ["" : 13]> net (float[{}] x) => (float[] y) {{ {} }}'
    model = parser.parse_model(header.format(", ".join(map(str, shape)), text))
    model.graph.initializer.extend(
        numpy_helper.from_array(v, k) for k, v in constants.items() if re.search(rf"\b{k}\b", text)
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model, {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}


FUSED_INTO: Final = {
    "convolutions": "FusedConv",
    "clipped convolution": "FusedConv",
    "layers": "FusedGemm",
    "scaled product": "FusedMatMul",
    "gelu with a bias": "Gelu",
    "quick gelu": "QuickGelu",
    "normalization": "LayerNormalization",
    "normalization of a sum": "SkipLayerNormalization",
    "attention": "FusedMatMul",
    "quantized convolution": "QLinearConv",
    "quantized sum": "QLinearAdd",
}
"""An operator that the optimizer writes for each network."""


@pytest.mark.parametrize("name", networks())
def test_networks_that_onnx_runtime_optimized(name: str, tmp_path: Path) -> None:
    """Networks as the optimizer writes them at the level "extended" give the results of the original ones."""
    model, feeds = network_model(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert FUSED_INTO.get(name, "Conv") in found
    (want,) = session.run(None, feeds)
    (got,) = run_model(from_onnx(tmp_path / "optimized.onnx"), feeds)
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)


def test_operators_whose_data_has_the_channels_last() -> None:
    """The domain com.ms.internal.nhwc has operators of the standard, between two transpositions."""
    x = floats(1, 6, 5, 3)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], domain="com.ms.internal.nhwc", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
    )
    model = model_of([node], {"x": x.shape}, ["y"], constants={"w": floats(4, 3, 3, 3)}, opset=13)
    model.opset_import.append(helper.make_opsetid("com.ms.internal.nhwc", 13))
    (got,) = run_model(from_onnx(model), {"x": x})
    model.graph.node[0].domain = ""
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [1, 3, 6, 5]))
    del model.opset_import[1:]
    (want,) = run_model(from_onnx(model), {"x": x.transpose(0, 3, 1, 2)})
    np.testing.assert_array_equal(got, want.transpose(0, 2, 3, 1))


def test_models_for_one_processor_are_refused_with_a_hint() -> None:
    model, _ = node_model("ReorderInput", [floats(*IMAGE)], 1, 13, "com.microsoft.nchwc", {})
    with pytest.raises(AotcError, match=r"for one processor\n.*ORT_ENABLE_EXTENDED"):
        from_onnx(model)
