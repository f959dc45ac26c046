# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions: definitions of the elements of tensors, independent of loops and memory.

An operator's `compute` turns input tensors into output tensors; `aotc.tir.schedule` turns the
outputs of a fused function into one kernel.

    x = placeholder((4, 8), DType("float32"), "x")
    y = compute(x.shape, lambda i, j: maximum(x[i, j], 0.0), "relu")
    s = reduce("sum", (4,), (8,), lambda i, k: y[i, k], "sum")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from aotc.ir import (
    Dim,
    DType,
    SymDim,
    frozen,
    is_static,
    largest_number_of_elements,
    largest_size,
    numel,
    product_of_dims,
    same_dim,
)
from aotc.tir import INDEX, Buffer, Element, Expr, Operand, Stmt, Target, Var, as_expr

#: An extent: an int, or a `SymDim` with a name and an upper bound where it is known at run time only.
#: Type checkers see an int, since both have the same arithmetic. Where an extent is compared, or decides
#: a branch, a SymDim raises TypeError, by which lowering refuses the operator.
Extent: TypeAlias = int
#: A loop variable and its extent; the loop runs from 0.
Axis: TypeAlias = "tuple[Var, Extent]"
#: The shapes and dtypes of several tensors.
ShapesAndDtypes: TypeAlias = Sequence[tuple[Sequence[Dim], str]]


@frozen(eq=False, repr=False, kw_only=True)
class Tensor:
    """A dense row-major tensor.  `x[i, j]` reads an element in an expression."""

    name: str
    shape: tuple[Extent, ...]
    dtype: DType

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Expr:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise TypeError(f"{self.name}: {len(items)} indices for rank {len(self.shape)}")
        return Element(self, tuple(as_expr(i) for i in items))

    def __repr__(self) -> str:
        # the sources are left out: graphs are deep
        return f"{type(self).__name__}({self.name}, {self.shape}, {self.dtype})"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements; TypeError where it is known at run time only."""
        return numel(self.shape)

    @property
    def capacity(self) -> int:
        """The largest number of elements: that of the tensor's buffer."""
        return largest_number_of_elements(self.shape)

    @property
    def live_size(self) -> Extent:
        """The number of elements, known or not."""
        return as_extent(product_of_dims(self.shape))

    def has_live_size_of(self, other: Tensor) -> bool:
        """Return True if another tensor is known to have the same number of elements."""
        # the product of many dimensions may be too long for a formula
        same_shape = len(self.shape) == len(other.shape) and all(map(same_dim, self.shape, other.shape))
        return same_shape or same_dim(product_of_dims(self.shape), product_of_dims(other.shape))

    @property
    def is_static(self) -> bool:
        """True if the shape is known."""
        return is_static(self.shape)

    @property
    def macs(self) -> int:
        """Number of multiply-accumulate operations; those on padding are counted."""
        return 0

    @property
    def macs_of_run(self) -> Dim:
        """`macs` in a run: a formula if the number depends on sizes that are known at run time only."""
        return self.macs


@frozen(eq=False, repr=False, kw_only=True)
class Placeholder(Tensor):
    """An input tensor of a kernel; `finite` is true if it is known to hold neither infinities nor
    NaN.
    """

    finite: bool = False


@frozen(eq=False, repr=False, kw_only=True)
class Compute(Tensor):
    """A tensor defined element by element: `body` is an expression of the axes.

    A compute is inlined into its consumers unless `materialize` asks for it to be stored (an
    expensive value that is used more than once).
    """

    axes: tuple[Axis, ...]
    body: Expr
    materialize: bool = False


@frozen(eq=False, repr=False, kw_only=True)
class View(Tensor):
    """A reshaped view: the elements of `source` in row-major order under another shape."""

    source: Tensor


@frozen(eq=False, repr=False, kw_only=True)
class Reduce(Tensor):
    """A reduction: each element combines `body` over the reduction axes, for which `guard` (if any)
    holds.

    combiner   "sum", "prod", "min", "max", "and" or "or".  `min` and `max` propagate NaN; their identity is the
               highest and the lowest value of the type, an infinity where it has one

    `guard` is a bool expression of the axes: `body` is evaluated and combined only where it holds.
    """

    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    combiner: str
    body: Expr
    guard: Expr | None = None


@frozen(eq=False, repr=False, kw_only=True)
class Contraction(Tensor):
    """out[axes] = sum over reduce_axes of a[a_index] * b[b_index], in the tensor's own dtype.

    The indices are affine in the axes (plus floor division and remainder by constants, for groups
    and packed blocks).  Products with an index outside an operand are left out, which expresses
    zero padding; for integers with a `fill` other than 0, `a` has that value there.  `a` is the
    data operand, `b` the weight operand.  `lane` is the output axis along which `b` is contiguous
    (its last dimension is that axis, or that axis modulo `block` for weights packed at compile
    time); None if there is none.  Packed weights may have `group` neighbors of a reduction axis
    side by side in one further dimension: that axis modulo `group`.
    """

    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    a: Tensor
    a_index: tuple[Expr, ...]
    b: Tensor
    b_index: tuple[Expr, ...]
    lane: Var | None = None
    block: int = 0
    fill: int = 0
    group: int = 0

    @property
    def macs(self) -> int:
        return self.capacity * largest_number_of_elements(extent for _, extent in self.reduce_axes)

    @property
    def macs_of_run(self) -> Dim:
        return product_of_dims((*self.shape, *(extent for _, extent in self.reduce_axes)))


@frozen(eq=False, repr=False, kw_only=True)
class Winograd(Tensor):
    """A 3x3 convolution of stride 1 by Winograd's minimal filtering, F(tile x tile, 3x3).

    out[n, o, y, x] of shape (N, O, H, W), from `a` (N, C, IH, IW) and the transformed weights `b`
    ((tile+2)**2, groups * ceil(O/groups/block), C/groups, block).  `pads` are the zeros before the
    first row and column; what lies outside `a` counts as zero.  With `channels_last`, out is (N, H, W, O),
    `a` is (N, IH, IW, C), the height and width may be known at run time only, and there is one group.
    """

    axes: tuple[Axis, ...]
    a: Tensor
    b: Tensor
    tile: int
    pads: tuple[int, int]
    channels_last: bool = False

    @property
    def packed_weight_block_size(self) -> int:
        return self.b.shape[-1]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the convolution as it is defined, padding counted as work."""
        return self.capacity * self.b.shape[2] * 9

    @property
    def macs_of_run(self) -> Dim:
        return product_of_dims((*self.shape, self.b.shape[2], 9))

    @property
    def groups(self) -> int:
        """Number of groups of channels that are convolved separately."""
        return 1 if self.channels_last else self.a.shape[1] // self.b.shape[2]


BuildFn: TypeAlias = Callable[[Sequence[Buffer], Sequence[Buffer], Sequence[Buffer]], Stmt]


class Scratch(NamedTuple):
    """A temporary buffer; `private` as in Buffer, `scope` for kernels whose threads and blocks have
    their own.
    """

    dtype: DType
    elements: int
    private: bool = False
    scope: str = ""


@frozen(eq=False)
class ExternProgram:
    """`build(inputs, outputs, scratch) -> Stmt`, and the temporary buffers that it wants."""

    build: BuildFn
    scratch: tuple[Scratch, ...] = ()


ProgramFn: TypeAlias = Callable[[Target], ExternProgram]


@frozen(eq=False, kw_only=True)
class ExternGroup:
    """A hand-written tensor program, built for each target; `macs` is its number of
    multiply-accumulates.
    """

    name: str
    inputs: tuple[Tensor, ...]
    program: ProgramFn
    macs: int = 0
    outputs: list[Extern] = field(default_factory=list)

    def __reduce__(self) -> str:
        raise TypeError(f"{self.name} holds code, which is no data")


@frozen(eq=False, repr=False, kw_only=True)
class Extern(Tensor):
    """One output of a tensor program written by hand."""

    group: ExternGroup
    index: int

    @property
    def macs(self) -> int:
        return self.group.macs


def as_extent(dim: Dim) -> Extent:
    """Return a dimension as an extent; TypeError if it has no name or no upper bound."""
    largest_size(dim)
    return dim  # type: ignore[return-value]


def extents_of(shape: Iterable[Dim]) -> tuple[Extent, ...]:
    """Return a shape as extents; TypeError for a dimension without a name or an upper bound."""
    return tuple(map(as_extent, shape))


def placeholder(shape: Sequence[Dim], dtype: str, name: str, *, finite: bool = False) -> Placeholder:
    """Return an input tensor of a kernel."""
    return Placeholder(name=name, shape=extents_of(shape), dtype=DType(dtype), finite=finite)


def _new_axes(extents: Sequence[Dim], prefix: str) -> tuple[Axis, ...]:
    return tuple((Var(f"{prefix}{k}", INDEX), as_extent(extent)) for k, extent in enumerate(extents))


def compute(
    shape: Sequence[Dim], body: Callable[..., Operand], name: str = "t", *, materialize: bool = False
) -> Compute:
    """Return the tensor whose element at (i, j, ...) is body(i, j, ...)."""
    axes = _new_axes(shape, "i")
    value = as_expr(body(*(v for v, _ in axes)))
    extents = extents_of(shape)
    return Compute(name=name, shape=extents, dtype=value.dtype, axes=axes, body=value, materialize=materialize)


def view(source: Tensor, shape: Sequence[Dim], name: str = "view") -> View:
    """Return `source` reshaped to a shape with an equal number of elements."""
    if not same_dim(product_of_dims(shape), source.live_size):
        raise TypeError(f"{name}: {source.shape} has not as many elements as {tuple(shape)}")
    return View(name=name, shape=extents_of(shape), dtype=source.dtype, source=source)


def reduce(
    combiner: str,
    shape: Sequence[Dim],
    extents: Sequence[Dim],
    body: Callable[..., Expr],
    name: str = "r",
    *,
    guard: Callable[..., Expr] | None = None,
) -> Reduce:
    """Return the tensor whose elements reduce body(*axes, *reduction axes) over the extents."""
    facts, variables = _fields_and_vars_of_reducing_tensor(name, shape, extents)
    value = body(*variables)
    condition = None if guard is None else guard(*variables)
    return Reduce(**facts, dtype=value.dtype, combiner=combiner, body=value, guard=condition)


def _fields_and_vars_of_reducing_tensor(
    name: str, shape: Sequence[Dim], extents: Sequence[Dim]
) -> tuple[dict[str, Any], list[Var]]:
    """Return the fields that all tensors with reduction axes share, and the variables of all axes."""
    axes, reduce_axes = _new_axes(shape, "i"), _new_axes(extents, "k")
    facts = {"name": name, "shape": extents_of(shape), "axes": axes, "reduce_axes": reduce_axes}
    return facts, [v for v, _ in (*axes, *reduce_axes)]


def contraction(
    shape: Sequence[Dim],
    extents: Sequence[Dim],
    a: Tensor,
    a_index: Callable[..., Sequence[Operand]],
    b: Tensor,
    b_index: Callable[..., Sequence[Operand]],
    *,
    dtype: str,
    name: str = "dot",
    lane: int | None = None,
    block: int = 0,
    fill: int = 0,
    group: int = 0,
) -> Contraction:
    """Return a contraction over `extents`; the index functions take (*axes, *reduction axes).

    lane    position of the output axis that is contiguous in `b`
    block   block size of packed weights, 0 where `b` is not packed
    fill    value of `a` outside its bounds
    group   neighbors of a reduction axis that are contiguous in packed weights, 0 if there are none
    """
    facts, variables = _fields_and_vars_of_reducing_tensor(name, shape, extents)
    of_a, of_b = (tuple(map(as_expr, index(*variables))) for index in (a_index, b_index))
    along = None if lane is None else variables[lane]
    facts |= {"dtype": DType(dtype), "lane": along, "block": block, "fill": fill, "group": group}
    return Contraction(a=a, a_index=of_a, b=b, b_index=of_b, **facts)


def winograd(
    shape: Sequence[Dim], a: Tensor, b: Tensor, *, tile: int, pads: tuple[int, int], channels_last: bool = False
) -> Winograd:
    """Return a 3x3 convolution with stride 1 that Winograd's algorithm computes.

    shape                shape (N, O, H, W) of the result, or (N, H, W, O)
    a, b, tile, pads, channels_last     as the fields of `Winograd`

    Raises TypeError for a shape (N, O, H, W) that is known at run time only.
    """
    if not channels_last:
        _require_static_tensors("winograd", shape, (a, b))
    return Winograd(
        name="winograd",
        shape=extents_of(shape),
        dtype=a.dtype,
        axes=_new_axes(shape, "i"),
        a=a,
        b=b,
        tile=tile,
        pads=pads,
        channels_last=channels_last,
    )


def extern(
    name: str,
    outputs: ShapesAndDtypes,
    inputs: Sequence[Tensor],
    build: BuildFn,
    *,
    scratch: Sequence[tuple[str, int]] = (),
    takes_sizes: bool = False,
) -> tuple[Extern, ...]:
    """Tensors of the given (shape, dtype) that the hand-written program `build` fills.

    takes_sizes   True if the program is correct for extents that are known at run time only
    """
    program = ExternProgram(build, tuple(Scratch(DType(d), n) for d, n in scratch))
    return extern_for_target(name, outputs, inputs, lambda _: program, takes_sizes=takes_sizes)


def extern_for_target(
    name: str,
    outputs: ShapesAndDtypes,
    inputs: Sequence[Tensor],
    program: ProgramFn,
    *,
    macs: int = 0,
    takes_sizes: bool = False,
) -> tuple[Extern, ...]:
    """Tensors of the given (shape, dtype) that a hand-written program fills: `program(target)`.

    Raises TypeError for shapes that are known at run time only, unless the program takes such sizes.
    """
    if not takes_sizes:
        _require_static_tensors(name, [extent for shape, _ in outputs for extent in shape], inputs)
    group = ExternGroup(name=name, inputs=tuple(inputs), program=program, macs=macs)
    for k, (shape, dtype) in enumerate(outputs):
        tensor = Extern(name=f"{name}{k}", shape=extents_of(shape), dtype=DType(dtype), group=group, index=k)
        group.outputs.append(tensor)
    return tuple(group.outputs)


def _require_static_tensors(name: str, shape: Sequence[Dim], inputs: Sequence[Tensor]) -> None:
    symbolic = [d for d in (*shape, *(d for t in inputs for d in t.shape)) if isinstance(d, SymDim)]
    if symbolic:
        raise TypeError(f"{name} has no program for {symbolic[0]}")


def flat_index(shape: Sequence[Dim], indices: Sequence[Any]) -> Expr:
    """Return the row-major offset of an element."""
    offset: Expr = as_expr(0)
    for extent, index in zip(shape, indices, strict=True):
        offset = offset * extent + index
    return offset
