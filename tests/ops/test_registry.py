# SPDX-License-Identifier: Apache-2.0
"""Every operator is consistent: type rule, reference, axis map and tensor program agree on its samples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aotc.ir.attrs import Attrs
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.op import OpPattern
from aotc.ir.types import TensorType, TupleType, Type, tensor_types
from aotc.relay.op import OPERATOR_MODULES, OPERATORS_BY_NAME, operators_defined_in
from aotc.relay.op.opdef import OpDef, Sample
from aotc.tir.target import TARGETS
from tests.ops.harness import EXECUTORS, assert_agrees, flat, kernel_job, type_of_value


def each_operator(test: Callable[[OpDef], None]) -> Any:
    """Run a test for each operator, none of which is left to the draw of `make test`: the test is about what an
    operator says of itself, and takes milliseconds.
    """
    cases = pytest.mark.parametrize("op", OPERATORS_BY_NAME.values(), ids=OPERATORS_BY_NAME.keys())
    return pytest.mark.always(cases(test))


COMPILED = {name: op for name, op in OPERATORS_BY_NAME.items() if op.static is None}


def types_of(sample: Sample) -> list[Type]:
    return [type_of_value(a) for a in sample.args]


def reference(op: OpDef, sample: Sample, args: Any = None) -> Any:
    return op.reference(sample.attrs, *(sample.args if args is None else args))


@each_operator
def test_facets_are_complete(op: OpDef) -> None:
    assert re.fullmatch(r"([a-z]+\.)*[a-z0-9_]+", op.name)
    assert issubclass(op.attrs, Attrs)
    given = [op.compute, op.expand, op.static]
    assert given.count(None) == 2 or None not in given[:2]  # a program for devices, a composition for processors
    several = any(isinstance(reference(op, s), tuple) for s in op.samples())
    assert op.axes is not None or several  # an axis map describes one result
    assert isinstance(op.pattern, OpPattern)
    samples = list(op.samples())
    assert samples
    for sample in samples:
        assert isinstance(sample.attrs, op.attrs)
        assert len(sample.args) == op.arity


def test_names_are_unique() -> None:
    names = [op.name for family in OPERATOR_MODULES for op in operators_defined_in(family)]
    assert sorted(names) == sorted(OPERATORS_BY_NAME)


@each_operator
def test_has_a_function_under_its_name(op: OpDef) -> None:
    (family,) = (f for f in OPERATOR_MODULES if op in operators_defined_in(f))
    assert callable(getattr(family, op.name.rpartition(".")[2]))


@each_operator
def test_attributes_print_and_read_back(op: OpDef) -> None:
    for sample in op.samples():
        changed = sample.attrs.non_default_fields()
        assert op.attrs(**changed) == sample.attrs
        hash(sample.attrs)
        for field in dataclasses.fields(op.attrs):
            default = field.default is not dataclasses.MISSING and getattr(sample.attrs, field.name) == field.default
            assert (field.name in changed) != default


@each_operator
def test_type_rule_agrees_with_reference(op: OpDef) -> None:
    for sample in op.samples():
        result = reference(op, sample)
        promised = op.infer(sample.attrs, types_of(sample))
        if op.static is None:
            assert type_of_value(result) == promised
        for known, found in zip(tensor_types(promised), map(type_of_value, flat(result)), strict=True):
            assert isinstance(found, TensorType) and known.dtype == found.dtype
            assert all(holds(claim, d) for claim, d in zip(known.shape, found.shape, strict=True))


@each_operator
def test_reference_leaves_arguments_alone(op: OpDef) -> None:
    for sample in op.samples():
        arrays = flat(tuple(sample.args))
        before = [a.copy() for a in arrays]
        reference(op, sample)
        for now, then in zip(arrays, before, strict=True):
            assert now.tobytes() == then.tobytes()


@pytest.mark.parametrize("target", ["x86-64-v4"])
@pytest.mark.parametrize("op", COMPILED.values(), ids=COMPILED.keys())
def test_kernel_agrees_with_reference(op: OpDef, target: str) -> None:
    samples = list(op.samples())
    results = EXECUTORS["interpreter"]([kernel_job(op, sample, TARGETS[target]) for sample in samples])
    for sample, outputs in zip(samples, results, strict=True):
        for actual, expected in zip(outputs, flat(reference(op, sample)), strict=True):
            assert_agrees(actual, expected, sample.accuracy)


# --- axis maps


def part(value: Any, axis: int | None) -> Any:
    """All but the first element along an axis."""
    if axis is None:
        return value
    if isinstance(value, tuple):
        return tuple(part(v, axis) for v in value)
    return value[(slice(None),) * axis + (slice(1, None),)]


@each_operator
def test_axis_map_slices(op: OpDef) -> None:
    """Leaving out the first element along a mapped axis of the arguments leaves it out of the result."""
    for sample in op.samples():
        axis_map = op.axes(sample.attrs, types_of(sample)) if op.axes is not None else None
        if axis_map is None:
            continue
        assert len(axis_map.inputs) == op.arity
        whole = reference(op, sample)
        first = flat(whole)[0]
        assert all(len(row) == first.ndim for row in axis_map.inputs)
        for k in range(first.ndim):
            axes = [row[k] for row in axis_map.inputs]
            if first.shape[k] < 3 or all(a is None for a in axes):
                continue
            cut = reference(op, sample, [part(v, a) for v, a in zip(sample.args, axes, strict=True)])
            for actual, expected in zip(flat(cut), flat(whole), strict=True):
                if expected.ndim == first.ndim:
                    assert_agrees(actual, part(expected, k), sample.accuracy)


# --- type rules on other types than the samples'


def symbolic(ty: Type) -> Type:
    """`ty` with every dimension from 2 unknown; equal extents get one name."""
    if isinstance(ty, TupleType):
        return TupleType(map(symbolic, ty.fields))
    assert isinstance(ty, TensorType)
    dims = (SymDim(f"d{d}", upper=d, lower=d) if isinstance(d, int) and d > 1 else d for d in ty.shape)
    return TensorType(dims, ty.dtype)


@each_operator
def test_type_rule_with_unknown_dimensions(op: OpDef) -> None:
    """What the rule says of unknown dimensions holds for the known ones; or it says that it must know."""
    for sample in op.samples():
        static = tensor_types(op.infer(sample.attrs, types_of(sample)))
        try:
            dynamic = tensor_types(op.infer(sample.attrs, [symbolic(t) for t in types_of(sample)]))
        except AotcError:
            continue
        for known, unknown in zip(static, dynamic, strict=True):
            assert known.rank == unknown.rank
            assert known.dtype == unknown.dtype
            for d, s in zip(known.shape, unknown.shape, strict=True):
                assert holds(s, d), f"{op.name}: {d} is not {s} for {sample.attrs} of {types_of(sample)}"


def holds(claim: Any, extent: Any) -> bool:
    """Whether what the rule says of a dimension is true of its extent."""
    if not isinstance(claim, SymDim):
        return bool(claim == extent)
    # the names are sums, products and quotients of those of `symbolic`
    named = claim.name == "" or eval(re.sub(r"\bd(\d+)", r"\1", claim.name)) == extent
    if isinstance(extent, SymDim):
        return named and claim.upper is None
    return named and claim.lower <= extent and (claim.upper is None or extent <= claim.upper)


def mutations(ty: Type) -> Iterator[Type]:
    """Other types in the place of `ty`."""
    if isinstance(ty, TupleType):
        yield ty.fields[0] if ty.fields else TensorType((), "float32")
        yield TupleType(())
        yield TupleType((*ty.fields, TensorType((9,) * 9, "bool")))
        return
    assert isinstance(ty, TensorType)
    yield TupleType((ty,))
    yield TensorType(ty.shape, "bool" if ty.dtype != "bool" else "float16")
    yield TensorType(ty.shape, "int16")
    yield TensorType((), ty.dtype)
    yield TensorType((*ty.shape, 3), ty.dtype)
    yield TensorType(ty.shape[1:], ty.dtype)
    yield TensorType((13,) * ty.rank, ty.dtype)
    yield TensorType((0,) * ty.rank, ty.dtype)
    yield TensorType((1,) * 7, ty.dtype)


@each_operator
def test_type_rule_accepts_or_explains(op: OpDef) -> None:
    """No types make the rule fail in any other way than with an AotcError."""
    for sample in op.samples():
        types = types_of(sample)
        for position, ty in enumerate(types):
            for other in mutations(ty):
                try:
                    op.infer(sample.attrs, [*types[:position], other, *types[position + 1 :]])
                except AotcError as error:
                    assert error.code and error.diagnostics[0].message


@each_operator
def test_refine_agrees_with_rule(op: OpDef) -> None:
    """What is solved for an unknown argument is what the sample has, up to dimensions that remain unknown."""
    if op.refine is None:
        return
    solved = 0
    for sample in op.samples():
        types = types_of(sample)
        for position in range(1, op.arity):
            partial: list[Type | None] = [None if k >= position else t for k, t in enumerate(types)]
            refined = op.refine(sample.attrs, partial)
            assert len(refined) == op.arity
            for found, real in zip(refined, types, strict=True):
                if isinstance(found, TensorType) and isinstance(real, TensorType):
                    solved += 1
                    assert found.rank == real.rank and found.dtype == real.dtype
                    assert all(isinstance(f, SymDim) or f == r for f, r in zip(found.shape, real.shape, strict=True))
    assert solved


def test_view_operators_keep_elements_in_order() -> None:
    views = [op for op in OPERATORS_BY_NAME.values() if op.view]
    assert len(views) >= 4
    for op in views:
        for sample in op.samples():
            np.testing.assert_array_equal(reference(op, sample).reshape(-1), sample.args[0].reshape(-1))
