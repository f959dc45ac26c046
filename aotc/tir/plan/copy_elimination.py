# SPDX-License-Identifier: Apache-2.0
"""Copy elimination: let kernels read views of tensors in place and write directly to outputs.

Input: a Program where every tensor is written once. Output: a Program whose kernels read parts of
tensors without copying them, and write results directly into the caller's outputs:

    t0 = conv2d(x); v0 = copy(t0 + 12); t1 = relu(v0); output = copy(t1)
    ->  t0 = conv2d(x); output = relu(t0 + 12)
"""

from dataclasses import replace

from aotc.ir import DType
from aotc.tir import Buffer, For, Kernel, Load, Program, Step, Storage, Store, Var, View, forall


def make_copy_kernel(dtype: DType, size: int) -> Kernel:
    """Return a kernel that copies `size` elements."""
    source, target = (Buffer(name, dtype, size) for name in ("source", "target"))
    i = Var("i")
    body = forall(i, size, Store(target, i, Load(source, i)))
    return Kernel(name="copy", inputs=(source,), outputs=(target,), body=body)


def make_copy_step(source: View, target: View) -> Step:
    """Return a step that copies elements of the view `source` to the whole storage of `target`."""
    return Step(make_copy_kernel(target.storage.dtype, target.storage.size), (source, target))


def is_copy_kernel(kernel: Kernel) -> bool:
    """Return True if a kernel was made by `make_copy_kernel`."""
    match kernel:
        case Kernel(name="copy", inputs=(source,), outputs=(target,), body=For(var=i, body=Store() as store)):
            value = Load(source, i)
            return store.buffer is target and store.index is i and store.value == value and source.size == target.size
    return False


def eliminate_copies(program: Program) -> Program:
    """Return the program without copies to temporaries, and without copies of whole temporaries to
    outputs.
    """
    places: dict[Storage, View] = {}
    outputs: dict[Storage, View] = {}
    steps: list[Step] = []
    for step in program.steps:
        step = _replace_storages_by_views(step, places)
        if not is_copy_kernel(step.kernel):
            steps.append(step)
            continue
        source, target = step.args[0], step.args[-1].storage
        if target.kind == "temp":
            places[target] = source
        elif _covers_whole_temporary(source, target.size) and source.storage not in outputs:
            outputs[source.storage] = View(target)
        else:
            steps.append(step)
    return replace(program, steps=tuple(_replace_storages_by_views(step, outputs) for step in steps))


def _covers_whole_temporary(view: View, element_count: int) -> bool:
    """Return True if a view (part of a storage) covers a whole temporary."""
    return view.storage.kind == "temp" and view.offset == 0 and view.storage.size == element_count


def _replace_storages_by_views(step: Step, view_of_storage: dict[Storage, View]) -> Step:
    """Return a kernel call with the arguments in `view_of_storage` replaced by views of other
    storages.
    """
    view_pairs = [(view, view_of_storage.get(view.storage, View(view.storage))) for view in step.args]
    return replace(step, args=tuple(View(at.storage, at.offset + view.offset) for view, at in view_pairs))
