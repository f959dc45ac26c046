# SPDX-License-Identifier: Apache-2.0
"""Find attention in a kernel: two matrix products, and a computation along rows between them.

Input: the groups of stages of a kernel. Output: an `AttentionChain` for the group of each second product,
whose data is computed, row by row, from the result of the first one, as in softmax(q k^T) v.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import Dim, SymDim, frozen, is_static, product_of_dims, same_dim
from aotc.tir import Buffer, Expr, Load, Var, as_expr, substitute, te, tensor_graph
from aotc.tir.schedule.contraction.contraction_index_analysis import variables_in
from aotc.tir.schedule.contraction.untiled_contraction import tests_of_index_range
from aotc.tir.schedule.stages.stage_grouping import ComputeStage, StageGroup
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan
from aotc.tir.schedule.stages.tensor_element_lowering import ElementLowering, TensorLocation
from aotc.tir.simplify import bounds, linear_form, simplify


@frozen(eq=False)
class HeadProduct:
    """A contraction that is a matrix product per head: (rows, depth) by (depth, columns).

    stage, c             the stage and the contraction
    batch                axes of the heads
    row, column, inner   axes of rows, columns and depth
    """

    stage: ComputeStage
    c: te.Contraction
    batch: tuple[te.Axis, ...]
    row: te.Axis
    column: te.Axis
    inner: te.Axis

    @property
    def head_count(self) -> Dim:
        """Number of attention heads: the product of the batch extents."""
        return product_of_dims(n for _, n in self.batch)


@frozen(eq=False)
class Permutation:
    """A permutation: the elements of `source` in another order in `tensor`.

    place   address in `tensor` of an element, as an expression of the source's axes
    """

    tensor: te.Compute
    source: te.Compute | te.Contraction
    place: Expr

    def permuted_address(self, indices: Sequence[Expr]) -> Expr:
        """Return the address in the permuted tensor of an element of the source, given by its
        indices.
        """
        return substitute(self.place, tensor_graph.substitution_for_axes(self.source.axes, indices))


@frozen(eq=False)
class AttentionChain:
    """Two matrix products and the computation between them, which makes the second one's data from
    the first one's result.

    first, middle, second   the products and the group of stages between them
    scores                  the tensor of the first product's stage that the group reads
    weights                 the tensor of the group that the second product reads
    permutation             the permutation in which the second product's results are stored; None if
                            they are not permuted
    absorbed                groups that the nest replaces, in addition to that of the second product
    """

    first: HeadProduct
    middle: StageGroup
    second: HeadProduct
    scores: te.Tensor
    weights: te.Tensor
    permutation: Permutation | None
    absorbed: tuple[StageGroup, ...]

    @property
    def tensors_held_in_strips(self) -> set[te.Tensor]:
        """The tensors that the attention nest holds in strips, so that they need no memory of their
        own.
        """
        absorbed_tensors = (g.tensors for g in self.absorbed if g is not self.middle)
        strip_tensors = {self.weights}.union(*absorbed_tensors)
        return (
            strip_tensors
            if self.permutation is None
            else strip_tensors - {self.permutation.tensor} | {self.permutation.source}
        )


def find_attention_chains(
    plan: StoragePlan, groups: Sequence[StageGroup], outputs: Sequence[te.Tensor]
) -> dict[StageGroup, AttentionChain]:
    """Return the attention-like chains of a kernel (product, computation along rows, product), by
    the group of the second product.
    """
    finder = _ChainFinder(plan, groups, frozenset(tensor_graph.strip_views(t) for t in outputs))
    chain_of_group = {group: finder.attention_chain_ending_in_group(group) for group in groups}
    return {group: chain for group, chain in chain_of_group.items() if chain is not None}


@frozen
class _ChainFinder:
    """Finds attention-like chains (product, computation along rows, product) among the groups of
    stages of a kernel.
    """

    plan: StoragePlan
    groups: Sequence[StageGroup]
    outputs: frozenset[te.Tensor]

    def attention_chain_ending_in_group(self, second_product_group: StageGroup) -> AttentionChain | None:
        """Return the attention-like chain whose second product is computed by a group of stages,
        None if there is none.
        """
        second = _match_matrix_product_per_head(second_product_group)
        if second is None:
            return None
        weights = tensor_graph.strip_views(second.c.a)
        middle = self._stage_group_computing_tensor(weights)
        if middle is None or len(middle.stages) < 2:
            return None
        scores = self._single_outside_tensor_read(middle)
        before = None if scores is None else self._stage_group_computing_tensor(scores)
        first = None if before is None else _match_matrix_product_per_head(before)
        if scores is None or before is None or first is None:
            return None
        fits = is_static([first.inner[1], second.column[1]]) and _is_second_product_of_first(first, second)
        fits = fits and self._are_rows_independent(middle, first, scores, weights)
        if not fits or not self._are_tensors_between_products_unshared(before, middle, second):
            return None
        permutation = self._permutation_that_is_only_reader(second.stage)
        operand_groups = [self._stage_group_computing_unshared_operand(t) for t in (first.c.a, first.c.b, second.c.b)]
        if permutation is not None:
            operand_groups.append(self._stage_group_computing_tensor(permutation.tensor))
        absorbed = (before, middle, *(g for g in operand_groups if g is not None))
        return AttentionChain(first, middle, second, scores, weights, permutation, absorbed)

    def _stage_group_computing_tensor(self, tensor: te.Tensor) -> StageGroup | None:
        """Return the group of stages that computes a tensor, None if there is none."""
        return next((g for g in self.groups if tensor in g.tensors), None)

    def _stage_group_computing_only_tensor(self, tensor: te.Tensor) -> StageGroup | None:
        """Return the group of stages that computes a tensor and no other one, None if there is
        none.
        """
        group = self._stage_group_computing_tensor(tensor)
        return None if group is None or group.tensors != {tensor} else group

    def _single_outside_tensor_read(self, group: StageGroup) -> te.Tensor | None:
        """Return the single tensor that a group of stages reads from other stages, None if there
        are several or none.
        """
        read = {tensor for group_tensor in group.tensors for tensor, _ in self.plan.needs.get(group_tensor, ())}
        outside = read.intersection(self.plan.stored) - group.tensors
        return outside.pop() if len(outside) == 1 else None

    def _are_tensors_between_products_unshared(
        self, first_group: StageGroup, middle_group: StageGroup, second: HeadProduct
    ) -> bool:
        """Return True if no other stage reads the tensors between two chained matrix products."""
        inner_tensors = first_group.tensors | middle_group.tensors
        readers = {r.stage for t in inner_tensors for r in self.plan.reads.get(t, ())}
        takers = {taker for t in inner_tensors for taker in self.plan.operands.get(t, ())}
        return (
            not inner_tensors & self.outputs
            and readers <= inner_tensors
            and takers <= {second.c}
            and second.c.b not in inner_tensors
        )

    def _are_rows_independent(
        self, middle_group: StageGroup, first: HeadProduct, scores: te.Tensor, weights: te.Tensor
    ) -> bool:
        """Return True if row i of the tensors between two matrix products depends on row i of the
        first one's result only.
        """
        shared = [n for _, n in middle_group.stages[0].anchor_axes[: middle_group.depth]]
        rows, columns = first.row[1], first.column[1]
        if not shared or not same_dim(shared[-1], rows):
            return False
        if not same_dim(product_of_dims(shared), product_of_dims((first.head_count, rows))):
            return False
        if min(scores.rank, weights.rank) < 2:
            return False
        if not all(map(same_dim, (*scores.shape[-2:], *weights.shape[-2:]), (rows, columns) * 2)):
            return False
        reads = self.plan.reads.get(scores, ())
        places = [(r.stage, te.flat_index(scores.shape, r.indices)) for r in reads]
        return all(_is_read_in_same_row(stage, middle_group.depth, place, columns) for stage, place in places)

    def _permutation_that_is_only_reader(self, stage: ComputeStage) -> Permutation | None:
        """Return the permutation that is the only reader of a stage's result, None if there is
        none.
        """
        source = stage.roots[-1]
        reads = self.plan.reads.get(source, ())
        if len(reads) != 1 or source in self.plan.operands:
            return None
        tensor, indices = reads[0].stage, reads[0].indices
        if not self.outputs.isdisjoint(stage.roots) or self._stage_group_computing_only_tensor(tensor) is None:
            return None
        if not isinstance(tensor, te.Compute) or not isinstance(source, (te.Compute, te.Contraction)):
            return None
        if not _is_pure_permutation(tensor, source, self.plan):
            return None
        place = _inverse_permutation_address(tensor, indices, source)
        return None if place is None else Permutation(tensor, source, place)

    def _stage_group_computing_unshared_operand(self, tensor: te.Tensor) -> StageGroup | None:
        """Return the group of stages that computes an operand for one product only, None if there
        is none.

        It is computed while the operand is packed.
        """
        base = tensor_graph.strip_views(tensor)
        if not isinstance(base, te.Compute) or base in self.outputs:
            return None
        product_count = len(self.plan.operands.get(base, ()))
        return (
            self._stage_group_computing_only_tensor(base)
            if product_count == 1 and not self.plan.reads.get(base)
            else None
        )


def _is_pure_permutation(tensor: te.Compute, source: te.Tensor, plan: StoragePlan) -> bool:
    """Return True if every element of a tensor is an unchanged element of another tensor."""
    body = ElementLowering(
        plan,
        {source: TensorLocation(Buffer("source", source.dtype, source.capacity))},
        tensor_graph.inclusive_ranges_of_axes(tensor.axes),
    )
    value = body.lower_definition_of_element(tensor, [var for var, _ in tensor.axes])
    return isinstance(value, Load) and not body.needed_register_declarations


def _inverse_permutation_address(
    tensor: te.Compute, read_indices: Sequence[Expr], source: te.Compute | te.Contraction
) -> Expr | None:
    """Return the address in `tensor` of an element of `source`, if the tensor permutes its axes;
    else None.

    `read_indices` are the indices at which the tensor reads the source.
    """
    if not (tensor.is_static and source.is_static):
        return _inverse_of_index_in_each_dimension(tensor, read_indices, source)
    form = linear_form(te.flat_index(source.shape, read_indices), tensor_graph.inclusive_ranges_of_axes(tensor.axes))
    long = [(form.coefficient(var) or 0, n) for var, n in tensor.axes if n > 1]
    size = 1
    for stride, n in sorted(long):
        if stride != size:
            return None
        size *= n
    if size != source.size or size != tensor.size or form.const or len(form.terms) != len(long):
        return None
    flat = te.flat_index(source.shape, [var for var, _ in source.axes])
    places = [flat // (form.coefficient(var) or 1) % n if n > 1 else as_expr(0) for var, n in tensor.axes]
    return simplify(te.flat_index(tensor.shape, places), tensor_graph.inclusive_ranges_of_axes(source.axes))


def _inverse_of_index_in_each_dimension(
    tensor: te.Compute, read_indices: Sequence[Expr], source: te.Compute | te.Contraction
) -> Expr | None:
    """Return the address in `tensor` of an element of `source`, as an expression of the source's axes; None unless
    each index of the source is the row-major number of some axes of the tensor, which no other index has.

    The inner ones of several axes in one index must have known extents.
    """
    ranges, extents = tensor_graph.inclusive_ranges_of_axes(tensor.axes), dict(tensor.axes)
    places: dict[Var, Expr] = {var: as_expr(0) for var, extent in tensor.axes if extent == 1}
    for index, (var, extent) in zip(read_indices, source.axes, strict=True):
        form = linear_form(index, ranges)
        size: Dim = 1
        position: Expr = var
        for axis, factor in sorted(form.terms.items(), key=lambda term: term[1]):
            if not isinstance(axis, Var) or axis in places or axis not in extents or factor != size:
                return None
            inner = extents[axis]
            size = product_of_dims((size, inner))
            is_outermost = same_dim(size, extent)
            places[axis] = position if is_outermost else position % as_expr(inner)
            position = position // as_expr(inner)
        if form.const or not same_dim(size, extent):
            return None
    if places.keys() != extents.keys():
        return None
    return simplify(
        te.flat_index(tensor.shape, [places[var] for var, _ in tensor.axes]),
        tensor_graph.inclusive_ranges_of_axes(source.axes),
    )


def _is_read_in_same_row(reader: te.Tensor, row_axis_count: int, read_address: Expr, columns: te.Extent) -> bool:
    """Return True if the element at address `read_address` of a matrix is in the row that the reader's
    first axes count.
    """
    axes = tensor_graph.output_and_reduction_axes(reader)
    ranges = tensor_graph.inclusive_ranges_of_axes(axes)
    column = linear_form(read_address - _row_major_index_of_axis_vars(axes[:row_axis_count]) * columns, ranges)
    if variables_in(*column.terms) & {v for v, _ in axes[:row_axis_count]}:
        return False
    if isinstance(columns, SymDim):
        return not tests_of_index_range(column.to_expr(), columns, dict(axes))
    low, high = bounds(column.to_expr(), ranges)
    return 0 <= low <= high < columns


def _row_major_index_of_axis_vars(axes: Sequence[te.Axis]) -> Expr:
    """Return the row-major number of the point given by the variables of some axes."""
    return te.flat_index([n for _, n in axes], [v for v, _ in axes])


def _match_matrix_product_per_head(group: StageGroup) -> HeadProduct | None:
    """Return the contraction of a group as a matrix product of floats per head; None if it is
    anything else.
    """
    stage, *rest_stages = group.stages
    c = stage.anchor
    if (
        rest_stages
        or not isinstance(c, te.Contraction)
        or len(c.axes) < 2
        or len(c.reduce_axes) != 1
        or c.capacity == 0
    ):
        return None
    if not c.dtype.is_float or {c.a.dtype, c.b.dtype} != {c.dtype}:
        return None
    *batch, row, column = c.axes
    ((k, depth),) = c.reduce_axes
    if column[0] in variables_in(*c.a_index) or row[0] in variables_in(*c.b_index) or depth == 0:
        return None
    return HeadProduct(stage, c, tuple(batch), row, column, (k, depth))


def _is_second_product_of_first(first: HeadProduct, second: HeadProduct) -> bool:
    """Return True if row i of the second product's data is row i of the first product's result."""
    c, (k, depth) = second.c, second.inner
    product_sizes = first.head_count, first.row[1], first.column[1]
    if not all(map(same_dim, product_sizes, (second.head_count, second.row[1], depth))):
        return False
    ranges = tensor_graph.inclusive_ranges_of_axes(tensor_graph.output_and_reduction_axes(c))
    expected_address = _row_major_index_of_axis_vars(c.axes[:-1]) * depth + k
    distance = te.flat_index(c.a.shape, c.a_index) - expected_address
    return simplify(distance, ranges) == as_expr(0)
