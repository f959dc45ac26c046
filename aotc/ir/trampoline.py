# SPDX-License-Identifier: Apache-2.0
"""Recursion without the call stack: generators that yield the calls they wait for.

def depth(node):                       # reads like recursion, works at any depth
    return 1 + (yield depth(node.body)) if isinstance(node, Let) else 0

run(depth(chain))
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
#: A suspended function that returns a T; `result = yield other_task` runs another one.
Task: TypeAlias = "Generator[Task[Any], Any, T]"


def run(task: Task[T]) -> T:
    """The result of `task`, whatever it waits for having been run in turn.  Exceptions propagate."""
    stack: list[Task[Any]] = [task]
    value: Any = None
    while stack:
        try:
            awaited = stack[-1].send(value)
        except StopIteration as done:
            stack.pop()
            value = done.value
        else:
            stack.append(awaited)
            value = None
    result: T = value
    return result
