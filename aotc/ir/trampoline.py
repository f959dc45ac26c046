# SPDX-License-Identifier: Apache-2.0
"""Recursion of unlimited depth: generators that yield their recursive calls, run by a loop with its
own stack.

def depth(node):                       # reads like recursion, works at any depth
    return 1 + (yield depth(node.body)) if isinstance(node, Let) else 0

run_recursive_task(depth(chain))
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
#: A generator that returns a T; `result = yield other_task` runs another task.
Task: TypeAlias = "Generator[Task[Any], Any, T]"


def run_recursive_task(task: Task[T]) -> T:
    """Run a task and all tasks that it yields, without recursion; return its result.  Exceptions
    propagate.
    """
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
