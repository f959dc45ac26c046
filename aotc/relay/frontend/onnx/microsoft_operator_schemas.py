# SPDX-License-Identifier: Apache-2.0
"""Operator schemas of operators that ONNX Runtime adds to ONNX: quantized and fused ones in the domain
com.microsoft, and in the domain of the standard those that the standard defines later or dropped.

The Python package `onnx` does not define them. Each row of the table describes one operator: its
inputs with their types, and its attributes with their defaults.

    DEFINITIONS["QGemm"].min_input                                  # 6
    DEFINITIONS["QGemm"].attributes["alpha"].default_value.f        # 1.0
    STANDARD_DOMAIN_DEFINITIONS["ImageScaler"].min_input            # 1
"""

from ast import literal_eval
from collections.abc import Mapping
from typing import Any, Final

from onnx import helper
from onnx.defs import OpSchema

DOMAIN: Final = "com.microsoft"
#: The domain of operators of the standard whose data has the channels last.
CHANNELS_LAST_DOMAIN: Final = "com.ms.internal.nhwc"
#: The domain of operators whose weights are in blocks for the vectors of one processor.
PROCESSOR_DOMAIN: Final = "com.microsoft.nchwc"

#: Data types that each type letter of an input admits; inputs with equal letters must have equal
#: types.
_DTYPES_BY_TYPE_LETTER: Final[Mapping[str, str]] = {
    **dict.fromkeys("QWY", "int8 uint8"),
    "B": "bool",
    "C": "float double float16 bfloat16 int8 uint8",
    "D": "int4 uint4 uint8",
    "F": "float float16",
    "G": "float double float16 bfloat16",
    "H": "float float16 bfloat16",
    "I": "int32",
    "J": "int32 int64",
    "K": "int8 uint8 int16 uint16 int4 uint4",
    "L": "int8 uint8 int16 uint16 int32 int4 uint4",
    "N": "int64",
    "P": "uint8 float float16 bfloat16",
    "S": "float",
    "T": "string",
    "U": "uint8",
    "V": "int8 uint8 float",
}
_UNARY_INPUTS: Final = "Q X, S X_scale, Q X_zero_point?, S Y_scale, Q Y_zero_point?"
_POOL_INPUTS: Final = "Q X, S x_scale, Q x_zero_point?, S y_scale, Q y_zero_point?"
_BINARY_INPUTS: Final = "Q A, S A_scale, Q A_zero_point?, Q B, S B_scale, Q B_zero_point?, S C_scale, Q C_zero_point?"
_WINDOW_ATTRIBUTES: Final = "auto_pad='NOTSET' pads:INTS strides:INTS channels_last=0"

#: Schema of each operator: inputs as "LETTER name" ("?": optional, "*": variadic), and attributes
#: with their defaults or, without a default, their kinds ("!": required). Operators with more than
#: one output are in `_OUTPUT_COUNTS`.
_OPERATOR_SPECS: Final[Mapping[str, tuple[str, str]]] = {
    "Attention": (
        "G input, G weights, G bias?, I mask_index?, G past?, G attention_bias?, I past_sequence_length?",
        "num_heads:INT! unidirectional=0 qkv_hidden_sizes:INTS scale:FLOAT mask_filter_value:FLOAT do_rotary:INT "
        "rotary_embedding_dim:INT past_present_share_buffer:INT",
    ),
    "BiasAdd": ("G X, G bias, G skip", ""),
    "BiasDropout": ("G data, G bias, G residual?, G ratio?, B training_mode?", "seed:INT"),
    "BiasGelu": ("G A, G B", ""),
    "BiasSoftmax": ("G data, G bias", "axis=1 is_inner_broadcast:INT!"),
    "DequantizeLinear": ("L x, F x_scale, L x_zero_point?", "axis:INT"),
    "DecoderMaskedMultiHeadAttention": (
        "G query, G key?, G value?, I mask_index?, G attention_bias?, G past_key?, G past_value?, "
        "I past_sequence_length?, I beam_width?, I cache_indirection?, G bias?",
        "num_heads:INT! past_present_share_buffer:INT scale:FLOAT mask_filter_value:FLOAT output_qk:INT",
    ),
    "DynamicQuantizeLSTM": (
        "S X, Q W, Q R, S B?, I sequence_lens?, S initial_h?, S initial_c?, S P?, "
        "S W_scale, Q W_zero_point, S R_scale, Q R_zero_point",
        "activations:STRINGS activation_alpha:FLOATS activation_beta:FLOATS clip:FLOAT direction='forward' "
        "hidden_size:INT input_forget=0",
    ),
    "DynamicQuantizeMatMul": ("S A, Q B, S b_scale, Q b_zero_point?, S bias?", ""),
    "EmbedLayerNormalization": (
        "I input_ids, I segment_ids?, G word_embedding, G position_embedding, G segment_embedding?, G gamma, G beta, "
        "I mask?, I position_ids?",
        "epsilon=1e-12 mask_index_type:INT",
    ),
    "FastGelu": ("G X, G bias?", ""),
    "FusedConv": (
        "G X, G W, G B?, G Z?",
        "activation:STRING activation_params:FLOATS auto_pad='NOTSET' kernel_shape:INTS dilations:INTS strides:INTS "
        "pads:INTS group=1",
    ),
    "FusedGemm": (
        "G A, G B, G C?",
        "alpha=1.0 beta=1.0 transA=0 transB=0 activation:STRING activation_alpha:FLOAT activation_beta:FLOAT "
        "activation_gamma:FLOAT",
    ),
    "FusedMatMul": ("G A, G B", "alpha=1.0 transA=0 transB=0 transBatchA=0 transBatchB=0"),
    "Gelu": ("G X", ""),
    "GatherBlockQuantized": (
        "D data, J indices, H scales, D zero_points?",
        "bits=4 block_size=128 gather_axis=0 quantize_axis=1",
    ),
    "GroupQueryAttention": (
        "G query, G key?, G value?, C past_key?, C past_value?, I seqlens_k, I total_sequence_length, G cos_cache?, "
        "G sin_cache?, N position_ids?, G attention_bias?, G head_sink?, S k_scale?, S v_scale?, G q_norm_weight?, "
        "G k_norm_weight?, I query_seqlens?",
        "num_heads:INT! kv_num_heads:INT! scale:FLOAT softcap:FLOAT local_window_size=-1 do_rotary:INT "
        "rotary_interleaved:INT smooth_softmax=-1 qk_output=0 causal=1 k_quant_type='NONE' v_quant_type='NONE' "
        "kv_cache_bit_width:INT sliding_window_cache=0 q_norm_epsilon:FLOAT k_norm_epsilon:FLOAT "
        "qk_norm_epsilon=1e-6",
    ),
    "MatMulIntegerToFloat": ("Q A, W B, F a_scale, F b_scale, Q a_zero_point?, W b_zero_point?, F bias?", ""),
    "MatMulNBits": (
        "H A, U B, H scales, P zero_points?, I g_idx?, H bias?",
        "K:INT! N:INT! block_size:INT! bits=4 accuracy_level=0 weight_prepacked=0",
    ),
    "MultiHeadAttention": (
        "G query, G key?, G value?, G bias?, I key_padding_mask?, G attention_bias?, G past_key?, G past_value?, "
        "I past_sequence_length?, I cache_indirection?",
        "num_heads:INT! unidirectional=0 scale:FLOAT mask_filter_value:FLOAT",
    ),
    "NhwcMaxPool": ("Q x", "kernel_shape:INTS! ceil_mode=0 dilations:INTS auto_pad='NOTSET' pads:INTS strides:INTS"),
    "QAttention": (
        "Q input, W weight, F bias, F input_scale, F weight_scale, I mask_index?, Q input_zero_point?, "
        "W weight_zero_point?, F past?",
        "num_heads:INT! unidirectional=0 scale:FLOAT mask_filter_value:FLOAT do_rotary:INT "
        "past_present_share_buffer:INT",
    ),
    "QGemm": (
        "Q A, S a_scale, Q a_zero_point, W B, S b_scale, W b_zero_point, I C?, S y_scale?, Y y_zero_point?",
        "alpha=1.0 transA=0 transB=0",
    ),
    "QLinearAdd": (_BINARY_INPUTS, ""),
    "QLinearAveragePool": (_POOL_INPUTS, f"kernel_shape:INTS! ceil_mode=0 count_include_pad=0 {_WINDOW_ATTRIBUTES}"),
    "QLinearConcat": ("S Y_scale, Q Y_zero_point, V inputs*", "axis:INT!"),
    "QLinearConv": (
        "Q x, S x_scale, Q x_zero_point, W w, S w_scale, W w_zero_point, S y_scale, Y y_zero_point, I B?",
        f"kernel_shape:INTS dilations:INTS group=1 {_WINDOW_ATTRIBUTES}",
    ),
    "QLinearGlobalAveragePool": ("Q X, S x_scale, Q x_zero_point, S y_scale, Q y_zero_point", "channels_last=0"),
    "QLinearLeakyRelu": (_UNARY_INPUTS, "alpha=0.01"),
    "QLinearMul": (_BINARY_INPUTS, ""),
    "QLinearReduceMean": (
        "Q data, S data_scale, Q data_zero_point?, S reduced_scale, Q reduced_zero_point?",
        "axes:INTS! keepdims:INT!",
    ),
    "QLinearSigmoid": (_UNARY_INPUTS, ""),
    "QLinearSoftmax": ("Q X, S X_scale, Q x_zero_point?, S y_scale, Q y_zero_point", "opset:INT! axis=-1"),
    "QLinearWhere": (
        "B condition, Q X, S x_scale, Q x_zero_point, Q Y, S y_scale, Q y_zero_point, S z_scale, Q z_zero_point",
        "",
    ),
    "QuantizeLinear": ("F x, F y_scale, K y_zero_point?", "axis:INT"),
    "QuickGelu": ("G X", "alpha=1.702"),
    "RotaryEmbedding": (
        "G input, N position_ids, G cos_cache, G sin_cache",
        "num_heads:INT rotary_embedding_dim:INT interleaved:INT is_packed_batching:INT scale:FLOAT",
    ),
    "SkipLayerNormalization": ("G input, G skip, G gamma, G beta?, G bias?", "epsilon=1e-12"),
    "SkipSimplifiedLayerNormalization": ("G input, G skip, G gamma, G bias?", "epsilon=1e-12"),
    "Tokenizer": ("T X", "mark:INT! mincharnum:INT! pad_value:STRING! separators:STRINGS tokenexp:STRING"),
    "TransposeMatMul": ("G A, G B", "alpha=1.0 transA=0 transB=0"),
}
#: The same for operators of the standard's domain that ONNX Runtime knows in operator sets in which the standard
#: has none of the name: normalization before operator set 17, and experimental operators of set 1.
_STANDARD_DOMAIN_SPECS: Final[Mapping[str, tuple[str, str]]] = {
    "Affine": ("G X", "alpha=1.0 beta=0.0"),
    "Crop": ("G input", "border:INTS scale:INTS"),
    "ImageScaler": ("G input", "bias:FLOATS scale=1.0"),
    "LayerNormalization": ("G X, G Scale, G B?", "axis=-1 epsilon=1e-05 stash_type=1"),
    "ParametricSoftplus": ("G X", "alpha:FLOAT beta:FLOAT"),
    "Scale": ("G input", "scale=1.0"),
    "ScaledTanh": ("G input", "alpha:FLOAT beta:FLOAT"),
    "SimplifiedLayerNormalization": ("G X, G scale", "axis=-1 epsilon=1e-05 stash_type=1"),
    "ThresholdedRelu": ("G X", "alpha=1.0"),
}
_OUTPUT_COUNTS: Final = {
    "Attention": 2,
    "BiasDropout": 2,
    "DecoderMaskedMultiHeadAttention": 4,
    "DynamicQuantizeLSTM": 3,
    "EmbedLayerNormalization": 3,
    "GroupQueryAttention": 4,
    "LayerNormalization": 3,
    "MultiHeadAttention": 4,
    "QAttention": 2,
    "SimplifiedLayerNormalization": 2,
    "SkipLayerNormalization": 4,
    "SkipSimplifiedLayerNormalization": 4,
}


def _parse_input_spec(text: str) -> OpSchema.FormalParameter:
    kinds = OpSchema.FormalParameterOption
    letter, name = text.split()
    kind = {"?": kinds.Optional, "*": kinds.Variadic}.get(name[-1], kinds.Single)
    return OpSchema.FormalParameter(name.rstrip("?*"), letter, param_option=kind, is_homogeneous=name[-1] != "*")


def _parse_attribute_spec(text: str) -> OpSchema.Attribute:
    name, default, value = text.partition("=")
    if default:
        return OpSchema.Attribute(name, helper.make_attribute(name, literal_eval(value)))
    name, _, kind = name.partition(":")
    return OpSchema.Attribute(name, getattr(OpSchema.AttrType, kind.rstrip("!")), required=kind[-1] == "!")


def _build_operator_schema(domain: str, name: str, inputs: str, attributes: str) -> OpSchema:
    types = [(letter, [f"tensor({t})" for t in names.split()], "") for letter, names in _DTYPES_BY_TYPE_LETTER.items()]
    return OpSchema(
        name,
        domain,
        1,
        inputs=[_parse_input_spec(part) for part in inputs.split(", ")],
        outputs=[OpSchema.FormalParameter(f"Y{k}", "S") for k in range(_OUTPUT_COUNTS.get(name, 1))],
        type_constraints=types,
        attributes=[_parse_attribute_spec(part) for part in attributes.split()],
    )


DEFINITIONS: Final[Mapping[str, Any]] = {
    name: _build_operator_schema(DOMAIN, name, *row) for name, row in _OPERATOR_SPECS.items()
}
STANDARD_DOMAIN_DEFINITIONS: Final[Mapping[str, Any]] = {
    name: _build_operator_schema("", name, *row) for name, row in _STANDARD_DOMAIN_SPECS.items()
}
