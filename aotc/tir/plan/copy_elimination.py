# SPDX-License-Identifier: Apache-2.0
"""Copy elimination: let kernels read views of tensors in place and write directly to outputs.

Input: a Program where every tensor is written once. Output: a Program whose kernels read parts of
tensors without copying them, and write results directly into the caller's outputs:

    t0 = conv2d(x); v0 = copy(t0 + 12); t1 = relu(v0); output = copy(t1)
    ->  t0 = conv2d(x); output = relu(t0 + 12)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from aotc.ir import DType, SymDim, same_dim
from aotc.tir import (
    INDEX,
    Branch,
    Buffer,
    Const,
    Define,
    For,
    Kernel,
    Leave,
    Load,
    Loop,
    Program,
    ProgramNode,
    Step,
    Stmt,
    Storage,
    Store,
    TierChoice,
    Var,
    View,
    forall,
    map_nodes,
    nodes_with_step_numbers,
)
from aotc.tir.stmt import Number


def make_copy_kernel(dtype: DType, size: int, is_largest: bool = False) -> Kernel:
    """Return a kernel that copies `size` elements, or, if that is the largest size only, as many as its
    number says.
    """
    source, target = (Buffer(name, dtype, size) for name in ("source", "target"))
    i, count = Var("i"), Var("count")
    body = forall(i, count if is_largest else size, Store(target, i, Load(source, i)))
    numbers = (Number(count, 0, size),) if is_largest else ()
    return Kernel(name="copy", inputs=(source,), outputs=(target,), body=body, numbers=numbers)


def make_copy_step(source: View, target: View) -> Step:
    """Return a step that copies elements of the view `source` to the whole storage of `target`."""
    count = target.storage.element_count
    is_largest = isinstance(count, SymDim)
    kernel = make_copy_kernel(target.storage.dtype, target.storage.size, is_largest)
    return Step(kernel, (source, target), numbers=(count,) if isinstance(count, SymDim) else ())


def make_fill_step(value: Const, target: View) -> Step:
    """Return a step that sets all elements of the storage of `target` to a value."""
    storage, i = Buffer("target", target.storage.dtype, target.storage.size), Var("i")
    body = forall(i, storage.size, Store(storage, i, value))
    return Step(Kernel(name="fill", inputs=(), outputs=(storage,), body=body), (target,))


def is_copy_kernel(kernel: Kernel) -> bool:
    """Return True if a kernel was made by `make_copy_kernel`."""
    match kernel:
        case Kernel(name="copy", inputs=(source,), outputs=(target,), body=body):
            return _is_copy_loop(body, source, target)
    return False


def _is_copy_loop(stmt: Stmt, source: Buffer, target: Buffer) -> bool:
    match stmt:
        case For(var=i, body=Store() as store):
            value = Load(source, i)
            return store.buffer is target and store.index is i and store.value == value and source.size == target.size
    return False


def is_copy_of_whole_buffer(stmt: Stmt, source: Buffer, target: Buffer) -> bool:
    """Return True if a statement copies all elements of a buffer to another one of the same size, or the
    first ones, whose number is known at run time only.
    """
    if not isinstance(stmt, For) or not _is_copy_loop(stmt, source, target):
        return False
    is_whole = stmt.end == Const(source.size, INDEX) or not isinstance(stmt.end, Const)
    return stmt.begin == Const(0, INDEX) and is_whole and stmt.step == 1


def eliminate_copies(program: Program) -> Program:
    """Return the program without copies to temporaries, and without copies of whole temporaries to
    outputs.
    """
    loops = [node for node, _ in nodes_with_step_numbers(program.body) if isinstance(node, Loop)]
    copies = _CopyElimination(carried={storage for loop in loops for storage in (*loop.carried, *loop.held)})
    body, _ = copies.nodes_without_copies(program.body)
    targets = {storage: copies.final_target(storage) for storage in copies.targets}
    return replace(
        program,
        body=map_nodes(
            body,
            lambda step: (_replace_storages_by_views(step, targets),),
            lambda view: _replace_storage_by_view(view, targets),
        ),
    )


@dataclass
class _CopyElimination:
    """Copies that need not be made, found so far.

    places    temporaries that are copies: where the copied elements are
    targets   temporaries that are copied as a whole: the storage that kernels write instead
    results   results of branches and loops, which several steps write
    carried   values that loops carry from one iteration to the next one, and values held meanwhile
    """

    places: dict[Storage, View] = field(default_factory=dict)
    targets: dict[Storage, View] = field(default_factory=dict)
    results: set[Storage] = field(default_factory=set)
    carried: set[Storage] = field(default_factory=set)

    def nodes_without_copies(self, nodes: Iterable[ProgramNode]) -> tuple[tuple[ProgramNode, ...], set[Storage]]:
        """Return a sequence without the copies that need not be made, and the storages that it
        writes.
        """
        kept: list[ProgramNode] = []
        written: set[Storage] = set()
        for node in nodes:
            # tiers are joined after all passes
            if isinstance(node, (Leave, TierChoice)):
                kept.append(node)
                continue
            if isinstance(node, Loop):
                self.results.update(node.results)
                kept.append(replace(node, body=self.nodes_without_copies(node.body)[0]))
                written.update(node.results)
                continue
            if isinstance(node, Branch):
                self.results.update(node.results)
                condition = _replace_storage_by_view(node.condition, self.places)
                yes, no = (self.nodes_without_copies(arm)[0] for arm in node.arms)
                kept.append(replace(node, condition=condition, arms=(yes, no)))
                written.update(node.results)
                continue
            if isinstance(node, Define):
                kept.append(replace(node, value=_replace_storage_by_view(node.value, self.places)))
                continue
            step = _replace_storages_by_views(node, self.places)
            if not is_copy_kernel(step.kernel) or not self._takes_over_copy(step, written):
                kept.append(step)
                written.update(view.storage for view in step.outputs)
        return tuple(kept), written

    def _takes_over_copy(self, step: Step, written: set[Storage]) -> bool:
        """Return True if a copy need not be made, and note what replaces it.

        written    storages that earlier steps of the same arm write
        """
        source, target = step.args[0], step.args[-1].storage
        if target in self.carried:
            # later steps of the iteration may read the value before
            return False
        if target.kind == "temp" and target not in self.results and _has_room(source, target):
            self.places[target] = source
            return True
        # the result of a branch may take the place only of what the arm itself computes
        is_own = target not in self.results or source.storage in written
        if is_own and _covers_whole_temporary(source, target) and source.storage not in self.targets:
            self.targets[source.storage] = View(target)
            return True
        return False

    def final_target(self, storage: Storage) -> View:
        """Return what kernels write instead of a temporary: the result of an inner branch may be the
        result of an outer one, and that an output.
        """
        view = View(storage)
        while view.storage in self.targets:
            view = self.targets[view.storage]
        return view


def _covers_whole_temporary(view: View, other: Storage) -> bool:
    """Return True if a view (part of a storage) covers a whole temporary, with as many elements as
    another storage has, at all sizes.
    """
    return view.storage.kind == "temp" and view.offset == 0 and have_equal_sizes(view.storage, other)


def have_equal_sizes(one: Storage, other: Storage) -> bool:
    """Return True if two storages have equal numbers of elements, at all sizes."""
    return one.size == other.size and same_dim(one.element_count, other.element_count)


def _has_room(view: View, copy: Storage) -> bool:
    """Return True if the storage of a view has room for the largest copy of the view."""
    return view.offset + copy.size <= view.storage.size


def _replace_storage_by_view(view: View, view_of_storage: Mapping[Storage, View]) -> View:
    at = view_of_storage.get(view.storage, View(view.storage))
    return View(at.storage, at.offset + view.offset)


def _replace_storages_by_views(step: Step, view_of_storage: Mapping[Storage, View]) -> Step:
    """Return a kernel call with the arguments in `view_of_storage` replaced by views of other
    storages.
    """
    return replace(step, args=tuple(_replace_storage_by_view(view, view_of_storage) for view in step.args))
