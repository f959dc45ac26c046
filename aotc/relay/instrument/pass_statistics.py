# SPDX-License-Identifier: Apache-2.0
"""Instrument that records statistics of the program before and after each pass, in the order in
which passes begin.

records = PassRecords()
with PassContext(opt_level=3, instruments=[records]):
    module = FoldConstant()(module)
records.passes[0].seconds, records.passes[0].after.flops
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from aotc.ir import FuncType, Op, PassContext, PassInfo, PassObserver, TensorType, frozen, tensor_types
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Let, Tuple, TupleGetItem
from aotc.relay.graph_api import IRModule, children, get_total_mac_number, list_op_freqs, post_order
from aotc.relay.instrument.dump_ir import module_to_text
from aotc.relay.instrument.op_count_changes import operator_count_changes


@frozen
class ProgramStatistics:
    """Operator counts, parameter bytes, FLOPs and peak memory of a program.

    operators    number of calls of each operator, including those inside fused functions
    parameters   bytes of constants; a constant of one repeated value counts as one element
    flops        twice the multiply-adds of convolutions and matrix products by their definitions, so that an
                 algorithm that needs fewer operations does not change it
    live         peak bytes of intermediate results if the program is computed in order

    `flops` and `live` are 0 if a type or a shape is not known.
    """

    operators: Counter[str] = field(default_factory=Counter)
    parameters: int = 0
    flops: int = 0
    live: int = 0

    def __add__(self, other: ProgramStatistics) -> ProgramStatistics:
        operators = self.operators + other.operators
        return ProgramStatistics(
            operators, self.parameters + other.parameters, self.flops + other.flops, self.live + other.live
        )


def program_statistics_of_function(function: Function) -> ProgramStatistics:
    """Return operator counts, parameter bytes, FLOPs and peak memory of a function."""
    nodes = list(post_order(function))
    parameters = sum(n.stored_elements.nbytes for n in nodes if isinstance(n, Constant))
    typed = all(n.checked_type is not None for n in nodes if not isinstance(n, (Op, GlobalVar)))
    known = typed and all(t.is_static for n in nodes for t in _tensor_types_of_node(n))
    flops = 2 * get_total_mac_number(function) if known else 0
    return ProgramStatistics(
        Counter(list_op_freqs(function)), parameters, flops, _peak_live_bytes(function) if known else 0
    )


def _tensor_types_of_node(node: Expr) -> tuple[TensorType, ...]:
    """Return the tensor types of a node's value; an empty tuple for functions."""
    ty = node.checked_type
    return () if ty is None or isinstance(ty, FuncType) else tuple(tensor_types(ty))


def _peak_live_bytes(function: Function) -> int:
    """Return the peak of the total bytes of live results when operators are computed in order."""
    nodes = list(post_order(function.body, lambda n: not isinstance(n, Function)))
    place = {node: k for k, node in enumerate(nodes)}
    last: dict[Expr, int] = {function.body: len(nodes)}
    # users before their operands; a tuple keeps its fields alive
    for node in reversed(nodes):
        passed_on = isinstance(node, (Tuple, TupleGetItem, Let))
        until = last.get(node, place[node]) if passed_on else place[node]
        for child in children(node):
            last[child] = max(last.get(child, 0), until)
    ends: Counter[int] = Counter()
    now = peak = 0
    for k, node in enumerate(nodes):
        if isinstance(node, Call):
            size = sum(t.nbytes for t in _tensor_types_of_node(node))
            now += size
            ends[last.get(node, k)] += size
        peak = max(peak, now)
        now -= ends.pop(k, 0)
    return peak


class RuleFigures(Protocol):
    """Statistics of a rewrite rule: rewrites made, calls not matched, matches refused by reason,
    and seconds.
    """

    hits: int
    misses: int
    refused: Counter[str]
    seconds: float


#: Context manager that collects the statistics of the rules applied inside it, by rule name.
RuleWatch: TypeAlias = "Callable[[], AbstractContextManager[Mapping[str, RuleFigures]]]"


@dataclass(slots=True)
class PassRecord:
    """Record of one run of a pass: times, and statistics and text of the program before and after
    it.

    depth      nesting depth; 0 for the outermost pass
    seconds    time including the passes inside it; `own` excludes them
    after      statistics after the pass; None if it failed
    text_*     program text before and after, without the values of large constants; `text_after` is None if the
               text did not change
    drawn_*    data for diagrams of the program before and after
    rules      statistics of its rewrite rules by name; passes inside it have their own
    """

    name: str
    depth: int
    before: ProgramStatistics
    text_before: str
    drawn_before: Any = None
    seconds: float = 0.0
    own: float = 0.0
    after: ProgramStatistics | None = None
    text_after: str | None = None
    drawn_after: Any = None
    rules: Mapping[str, RuleFigures] = field(default_factory=dict)

    @property
    def op_call_count_changes(self) -> dict[str, int]:
        """The change that the pass made to the number of calls of each operator."""
        return {} if self.after is None else operator_count_changes(self.before.operators, self.after.operators)


class PassRecords(PassObserver):
    """Instrument that records every pass, and the stages of the compilation around them.

    The instrument's own time is excluded from all times. Records are cleared when a context is
    entered.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, watch_rules: RuleWatch = lambda: nullcontext({})
    ) -> None:
        """Create the instrument.

        clock          returns the time in seconds
        watch_rules    returns a context manager that collects statistics of rewrite rules
        """
        super().__init__()
        self._clock = clock
        self._watch_rules = watch_rules
        self.stages: list[tuple[str, float]] = []
        self._hidden = 0.0
        self._measures: dict[Function, ProgramStatistics] = {}
        self._texts: dict[tuple[object, ...], tuple[str, Any]] = {}
        self._stage: tuple[str, float] | None = None
        self.reset_observations()

    def reset_observations(self) -> None:
        self.passes: list[PassRecord] = []
        #: The pass context in which the first pass ran.
        self.context: PassContext | None = None
        self._innermost: PassRecord | None = None  # the innermost pass that is running

    def exit_pass_ctx(self) -> None:
        super().exit_pass_ctx()
        if self._contexts == 0:
            self._measures, self._texts = {}, {}

    def begin_stage(self, stage_name: str) -> None:
        """Begin the compilation stage `stage_name` and end the previous one; "" only ends it."""
        now = self._time_without_instrument_overhead()
        if self._stage is not None:
            self.stages.append((self._stage[0], now - self._stage[1]))
        self._stage = (stage_name, now) if stage_name else None

    def observe_pass(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
        with self._exclude_with_block_from_times():
            record = PassRecord(
                info.name,
                len(self.running),
                self.program_statistics_of_module(module),
                *self._text_and_diagram_data(module),
            )
        self.context = self.context or PassContext.current()
        self.passes.append(record)
        with self._watch_rules() as record.rules, self._time_pass_into_record(record):
            new_module = yield
        with self._exclude_with_block_from_times():
            record.after = self.program_statistics_of_module(new_module)
            text, record.drawn_after = self._text_and_diagram_data(new_module)
            record.text_after = None if text == record.text_before else text

    @contextmanager
    def _time_pass_into_record(self, record: PassRecord) -> Iterator[None]:
        start, outer = self._time_without_instrument_overhead(), self._innermost
        self._innermost = record
        try:
            yield
        finally:
            self._innermost = outer
            record.seconds = self._time_without_instrument_overhead() - start
            record.own += record.seconds
            if outer is not None:
                outer.own -= record.seconds

    def _time_without_instrument_overhead(self) -> float:
        """Return the clock's time in seconds minus the time spent in this instrument."""
        return self._clock() - self._hidden

    @contextmanager
    def _exclude_with_block_from_times(self) -> Iterator[None]:
        start = self._clock()
        yield
        self._hidden += self._clock() - start

    def program_statistics_of_module(self, module: Any) -> ProgramStatistics:
        """Return the statistics of a pass's input or output, summed over its functions."""
        for function in module.functions.values():
            if function not in self._measures:
                self._measures[function] = program_statistics_of_function(function)
        return sum((self._measures[f] for f in module.functions.values()), ProgramStatistics())

    def program_data_for_diagrams(self, module: Any) -> Any:
        """Return the data of a program for diagrams: None here; subclasses override it."""

    def _text_and_diagram_data(self, module: Any) -> tuple[str, Any]:
        """Return the text of a program and its data for diagrams, from a cache if the program is
        known.
        """
        key = tuple(module.functions.values()) if isinstance(module, IRModule) else (module,)
        if key not in self._texts:
            self._texts[key] = module_to_text(module), self.program_data_for_diagrams(module)
        return self._texts[key]
