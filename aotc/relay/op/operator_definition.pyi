# SPDX-License-Identifier: Apache-2.0
from aotc.ir.dimension_conditions import may_be_equal_dims as may_be_equal_dims
from aotc.relay.op.builder_signature import builder_function_of as builder_function_of
from aotc.relay.op.builder_signature import builder_signature_of as builder_signature_of
from aotc.relay.op.builder_signature import number_converter_with_dtype_of as number_converter_with_dtype_of
from aotc.relay.op.builder_signature import number_to_constant_converter as number_to_constant_converter
from aotc.relay.op.builder_signature import to_int_tuple as to_int_tuple
from aotc.relay.op.contraction_accumulator_types import accumulator_dtype as accumulator_dtype
from aotc.relay.op.contraction_accumulator_types import cast_array as cast_array
from aotc.relay.op.contraction_accumulator_types import cast_tensor as cast_tensor
from aotc.relay.op.contraction_accumulator_types import widen_narrow_float_array as widen_narrow_float_array
from aotc.relay.op.contraction_accumulator_types import widen_narrow_float_tensor as widen_narrow_float_tensor
from aotc.relay.op.elementwise_op_constructors import ScalarFn as ScalarFn
from aotc.relay.op.elementwise_op_constructors import choose as choose
from aotc.relay.op.elementwise_op_constructors import (
    element_function_of_scalar_function as element_function_of_scalar_function,
)
from aotc.relay.op.elementwise_op_constructors import element_of_broadcast_tensor as element_of_broadcast_tensor
from aotc.relay.op.elementwise_op_constructors import elementwise_numpy_reference as elementwise_numpy_reference
from aotc.relay.op.elementwise_op_constructors import greater as greater
from aotc.relay.op.elementwise_op_constructors import (
    intrinsic_for_scalars_and_arrays as intrinsic_for_scalars_and_arrays,
)
from aotc.relay.op.elementwise_op_constructors import lesser as lesser
from aotc.relay.op.elementwise_op_constructors import op_with_vector_along_axis as op_with_vector_along_axis
from aotc.relay.op.elementwise_op_constructors import replace_item as replace_item
from aotc.relay.op.elementwise_op_constructors import same as same
from aotc.relay.op.elementwise_op_constructors import select_constant_at_index as select_constant_at_index
from aotc.relay.op.elementwise_op_constructors import to_numpy_computable_dtype as to_numpy_computable_dtype
from aotc.relay.op.opdef import Accuracy as Accuracy
from aotc.relay.op.opdef import Array as Array
from aotc.relay.op.opdef import Index as Index
from aotc.relay.op.opdef import OpDef as OpDef
from aotc.relay.op.opdef import Sample as Sample
from aotc.relay.op.opdef import Samples as Samples
from aotc.relay.op.opdef import Scalar as Scalar
from aotc.relay.op.opdef import reference_from_element_function as reference_from_element_function
from aotc.relay.op.opdef import tensor_types_of_values as tensor_types_of_values
from aotc.relay.op.operator_test_inputs import ANY_DTYPE_KIND as ANY_DTYPE_KIND
from aotc.relay.op.operator_test_inputs import BOOL_KIND as BOOL_KIND
from aotc.relay.op.operator_test_inputs import FLOAT_KIND as FLOAT_KIND
from aotc.relay.op.operator_test_inputs import INTEGER_OR_BOOL_KIND as INTEGER_OR_BOOL_KIND
from aotc.relay.op.operator_test_inputs import NUMBER_KIND as NUMBER_KIND
from aotc.relay.op.operator_test_inputs import NUMBER_WITH_ZERO_KIND as NUMBER_WITH_ZERO_KIND
from aotc.relay.op.operator_test_inputs import exact_sample as exact_sample
from aotc.relay.op.operator_test_inputs import exact_samples_from_rows as exact_samples_from_rows
from aotc.relay.op.operator_test_inputs import random_array as random_array
from aotc.relay.op.operator_test_inputs import random_sample as random_sample
from aotc.relay.op.operator_test_inputs import random_samples_from_rows as random_samples_from_rows
from aotc.relay.op.operator_test_inputs import sample_accuracy as sample_accuracy
from aotc.relay.op.operator_test_inputs import special_values as special_values
from aotc.relay.op.type_rules import axis_map_excluding_axis_attribute as axis_map_excluding_axis_attribute
from aotc.relay.op.type_rules import broadcast_dim as broadcast_dim
from aotc.relay.op.type_rules import infer_float_along_axis_type as infer_float_along_axis_type
from aotc.relay.op.type_rules import normalize_axes as normalize_axes
from aotc.relay.op.type_rules import normalize_axis as normalize_axis
from aotc.relay.op.type_rules import require_dtype as require_dtype
from aotc.relay.op.type_rules import require_float_tensor as require_float_tensor
from aotc.relay.op.type_rules import require_known_name as require_known_name
from aotc.relay.op.type_rules import require_same_dtype as require_same_dtype
from aotc.relay.op.type_rules import require_tensor_fields as require_tensor_fields
from aotc.relay.op.type_rules import require_tensor_of_rank as require_tensor_of_rank
from aotc.relay.op.type_rules import require_tensor_type as require_tensor_type
from aotc.relay.op.type_rules import shape_text as shape_text
from aotc.relay.op.type_rules import static_shape_of as static_shape_of
from aotc.relay.op.window_attributes import DATA_LAYOUT_BY_RANK as DATA_LAYOUT_BY_RANK
from aotc.relay.op.window_attributes import canonical_axis_positions as canonical_axis_positions
from aotc.relay.op.window_attributes import canonical_to_layout_order as canonical_to_layout_order
from aotc.relay.op.window_attributes import layout_to_canonical_order as layout_to_canonical_order
from aotc.relay.op.window_attributes import parse_layout_with_up_to_two_blocks as parse_layout_with_up_to_two_blocks
from aotc.relay.op.window_attributes import repeat_for_each_axis as repeat_for_each_axis
from aotc.relay.op.window_attributes import window_count as window_count
from aotc.relay.op.window_attributes import window_counts_of_axes as window_counts_of_axes
