# SPDX-License-Identifier: Apache-2.0
"""Pass contexts: gating, nesting, threads, configuration; pass objects: sequences, decorators, reprs."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest

from aotc.ir import pass_context
from aotc.ir.compilation_work_and_memory_limits import DEFAULT_COMPILE_LIMITS
from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import PassInstrument, pass_instrument
from aotc.ir.pass_context import registered_config_keys
from aotc.ir.transform import (
    ModulePass,
    Pass,
    PassContext,
    PassInfo,
    Sequential,
    get_pass,
    module_pass,
    register_config_key,
)
from aotc.relay.constant_evaluation import MAX_FOLDED_CONSTANT_BYTES
from aotc.relay.transform.fuse_ops import MAX_GROUP_NODES
from aotc.tir.target import get_target

MODULE: dict[str, Any] = {"main": object()}


def logging_pass(log: list[str], name: str, opt_level: int = 0, required: tuple[str, ...] = ()) -> ModulePass[Any]:
    def body(module: Any, ctx: PassContext) -> Any:
        log.append(name)
        return module

    made = module_pass(body, opt_level=opt_level, name=name, required=list(required))
    assert isinstance(made, ModulePass)
    return made


def run_levels(levels: dict[str, int], **context: Any) -> list[str]:
    log: list[str] = []
    with PassContext(**context):
        Sequential([logging_pass(log, name, level) for name, level in levels.items()])(MODULE)
    return log


LEVELS = {"zero": 0, "two": 2, "three": 3}


@pytest.mark.parametrize(
    ("context", "ran"),
    [
        ({}, ["zero", "two"]),
        ({"opt_level": 3}, ["zero", "two", "three"]),
        ({"opt_level": 0}, ["zero"]),
        ({"opt_level": -1}, []),
        ({"opt_level": 0, "required_pass": ["three"]}, ["zero", "three"]),
        ({"opt_level": 3, "disabled_pass": ["two"]}, ["zero", "three"]),
        ({"opt_level": 3, "required_pass": ["two"], "disabled_pass": ["two"]}, ["zero", "three"]),
    ],
)
def test_a_sequence_runs_what_the_context_enables(context: dict[str, Any], ran: list[str]) -> None:
    assert run_levels(LEVELS, **context) == ran


def test_a_direct_call_ignores_level_and_disabling() -> None:
    log: list[str] = []
    with PassContext(opt_level=0, disabled_pass=["p"]):
        assert logging_pass(log, "p", opt_level=4)(MODULE) is MODULE
    assert log == ["p"]


def test_a_nested_sequence_is_gated_by_its_own_level() -> None:
    log: list[str] = []
    inner = Sequential([logging_pass(log, "p")], opt_level=3, name="inner")
    with PassContext(opt_level=2):
        Sequential([inner])(MODULE)
    assert log == []
    with PassContext(opt_level=3):
        Sequential([inner])(MODULE)
    assert log == ["p"]


def test_required_passes_run_before_and_must_exist() -> None:
    log: list[str] = []
    sequence = Sequential([logging_pass(log, "p", required=("NoSuchPass",))])
    with pytest.raises(AotcError, match="Cannot use NoSuchPass to create the pass"):
        sequence(MODULE)
    assert log == []
    assert get_pass("InferType").info.name == "InferType"


def test_contexts_nest_without_inheriting() -> None:
    outside = PassContext.current()
    assert outside.opt_level == 2
    with PassContext(opt_level=3, config={"relay.FuseOps.max_depth": 5}) as outer:
        with PassContext() as inner:
            assert PassContext.current() is inner
            assert (inner.opt_level, inner.get_config("relay.FuseOps.max_depth", 256)) == (2, 256)
        assert PassContext.current() is outer
        with outer:
            assert PassContext.current() is outer
        assert PassContext.current() is outer
    assert PassContext.current() is outside


def test_a_thread_has_its_own_contexts() -> None:
    seen: list[PassContext] = []
    with PassContext(opt_level=0) as here:
        thread = threading.Thread(target=lambda: seen.append(PassContext.current()))
        thread.start()
        thread.join()
        assert PassContext.current() is here
    assert seen[0] is not here
    assert seen[0].opt_level == 2


def test_leaving_out_of_order_is_an_error() -> None:
    first, second = PassContext(), PassContext()
    with pytest.raises(RuntimeError), first:
        second.__enter__()
        try:
            first.__exit__(None, None, None)
        finally:
            second.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"opt_level": "3"}, TypeError, "expected int but got str"),
        ({"required_pass": "FuseOps"}, TypeError, "must be a list"),
        ({"disabled_pass": "FuseOps"}, TypeError, "must be a list"),
        ({"disabled_pass": [3]}, TypeError, "pass names"),
        ({"instruments": [object()]}, TypeError, "is not a pass instrument"),
        ({"instruments": PassInstrument()}, TypeError, "must be a list of pass instruments"),
        ({"config": {"relay.FuseOps.max_depht": 1}}, AttributeError, "Invalid config option 'relay.FuseOps.max_depht'"),
        ({"config": {"relay.AlterOpLayout.max_growth": True}}, AttributeError, "to have type float but get bool"),
        ({"config": {"relay.FuseOps.max_depth": "1"}}, AttributeError, "to have type int but get str"),
        ({"config": {"relay.FuseOps.max_depth": None}}, AttributeError, "to have type int but get NoneType"),
    ],
)
def test_wrong_arguments(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        PassContext(**kwargs)
    assert isinstance(caught.value, error)


def test_hints_for_misspelt_names() -> None:
    with pytest.raises(AotcError, match=r"did you mean 'relay\.FuseOps\.max_depth'"):
        PassContext(config={"relay.FuseOps.max_depht": 1})
    with pytest.warns(UserWarning, match="did you mean 'FuseOps'") as warned:
        PassContext(disabled_pass=["FuseOp"])
    assert warned[0].filename == __file__


def test_config_keys_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_context._REGISTRY, "config", registered_config_keys())  # other tests list the keys
    key = "test.config_keys_are_registered_once"
    register_config_key(key, bool)
    assert PassContext.list_configs()[key] == {"type": "bool"}
    assert PassContext(config={key: 1}).config[key] == 1
    with pytest.raises(ValueError, match="registered already"):
        register_config_key(key, bool)


def test_stated_defaults_are_those_in_effect() -> None:
    budget = get_target("x86-64-v3").budget
    defaults = {
        **DEFAULT_COMPILE_LIMITS,
        "relay.AlterOpLayout.max_growth": budget.parameter_growth,
        "relay.AlterOpLayout.min_saving": budget.parameter_saving,
        "relay.FoldConstant.max_bytes": MAX_FOLDED_CONSTANT_BYTES,
        "relay.FuseOps.max_depth": MAX_GROUP_NODES,
    }
    assert {key: registered_config_keys()[key].default for key in defaults} == {k: str(d) for k, d in defaults.items()}


def test_reprs() -> None:
    info = PassInfo(3, "P", ("InferType", "CanonicalizeOps"))
    assert repr(info) == (
        "The meta data of the pass - pass name: P, opt_level: 3, required passes: [\nInferType, CanonicalizeOps, ]\n"
    )
    assert repr(PassInfo(0, "Q")) == "The meta data of the pass - pass name: Q, opt_level: 0, required passes: []\n"
    log: list[str] = []
    p = logging_pass(log, "P", 1)
    assert repr(p) == "Run Module pass: P at the optimization level 1"
    assert repr(Sequential([p, p], opt_level=2, name="S")) == (
        "Run Sequential pass: S at the optimization level 2. The passes will be executed are: [P P ]"
    )
    context = PassContext(3, ["FoldConstant"], ["FuseOps"], config={"relay.FuseOps.max_depth": 10})
    assert repr(context) == (
        'Pass context information: \n\topt_level: 3\n\trequired passes: ["FoldConstant"]'
        '\n\tdisabled passes: ["FuseOps"]\n\tinstruments: []\n\tconfig: {"relay.FuseOps.max_depth": 10}'
    )


def test_decorating_functions() -> None:
    @module_pass(opt_level=1)
    def renamed(module: Any, ctx: PassContext) -> Any:
        return {**module, "level": ctx.opt_level}

    assert renamed.info == PassInfo(1, "renamed", ())
    assert renamed(MODULE)["level"] == 2
    assert module_pass(lambda m, c: m, opt_level=0).info.name == "<lambda>"
    with pytest.raises(ValueError, match="Please provide opt_level for the module pass"):
        module_pass(lambda m, c: m)
    with pytest.raises(TypeError, match="list/tuple"):
        module_pass(lambda m, c: m, opt_level=0, required="InferType")
    with pytest.raises(TypeError, match="function or a class"):
        module_pass(3, opt_level=0)


def test_decorating_classes() -> None:
    @module_pass(opt_level=2, name="Tagger")
    class Tag:
        """Adds a tag."""

        def __init__(self, tag: str) -> None:
            self.tag = tag

        def transform_module(self, module: Any, ctx: PassContext) -> Any:
            return {**module, self.tag: 1}

    tagger = Tag("x")
    assert (tagger.info.name, tagger.info.opt_level, tagger.tag, Tag.__doc__) == ("Tagger", 2, "x", "Adds a tag.")
    assert set(tagger(MODULE)) == {"main", "x"}
    with pytest.raises(AttributeError):
        _ = tagger.missing
    with pytest.raises(TypeError, match="no method transform_module"):
        module_pass(opt_level=0)(dict)


def test_bad_modules_and_results() -> None:
    @module_pass(opt_level=0)
    def nothing(module: Any, ctx: PassContext) -> Any:
        return None

    with pytest.raises(TypeError, match="expected a module, got int"):
        nothing(3)
    with pytest.raises(TypeError, match="got None"):
        nothing(MODULE)
    with pytest.raises(TypeError, match="must be a list of Pass objects"):
        Sequential("abc")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a list of Pass objects"):
        Sequential([print])  # type: ignore[list-item]


def test_mutation_is_found_on_request() -> None:
    @module_pass(opt_level=0)
    def mutate(module: Any, ctx: PassContext) -> Any:
        module["more"] = 1
        return module

    assert "more" in mutate(dict(MODULE))
    with (
        PassContext(config={"testing.immutable_module": True}),
        pytest.raises(AotcError, match="mutate: the pass changed the module"),
    ):
        mutate(dict(MODULE))


def test_should_run_must_answer() -> None:
    @pass_instrument
    class Silent:
        def should_run(self, module: Any, info: PassInfo) -> Any:
            return None

    with PassContext(instruments=[Silent()]), pytest.raises(TypeError, match="returned None"):
        logging_pass([], "p")(MODULE)


@dataclass(frozen=True, repr=False)
class Repeat(Pass[Any]):
    opt_level = 2
    times: int = 3

    def run(self, module: Any, ctx: PassContext) -> Any:
        return module


def test_options_of_a_pass_are_its_fields() -> None:
    assert [f.name for f in fields(Repeat)] == ["times"]  # type: ignore[arg-type]
    assert (Repeat(4).times, Repeat(4) == Repeat(4), Repeat(4) == Repeat()) == (4, True, False)
    with pytest.raises(FrozenInstanceError):
        Repeat().times = 5  # type: ignore[misc]


def test_a_pass_may_have_an_init_of_its_own() -> None:
    class Named(Repeat):
        def __init__(self, title: str) -> None:
            self.title = title

    assert (Named("x").title, Named("x").times) == ("x", 3)
