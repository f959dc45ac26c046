# SPDX-License-Identifier: Apache-2.0
"""Executables of the virtual machine, saved and loaded; programs in TVM's JSON graph format."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir import load_json, save_json
from aotc.ir.vm_bytecode import Instruction, Opcode
from aotc.runtime import vm
from aotc.runtime.vm import Executable, VirtualMachine

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)


def program() -> relay.Function:
    """A kernel of known shape, and one whose shape comes up."""
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(relay.Any(), 3))
    return relay.Function([x, y], relay.Tuple([relay.exp(x) + relay.const(X), relay.tanh(y)]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    code, kernels = relay.vm.compile(aotc.IRModule.from_expr(program()), "llvm").save()
    assert isinstance(kernels, aotc.runtime.Module)
    path = tmp_path_factory.mktemp("vm") / "kernels.so"
    kernels.export_library(path)
    return bytes(code), path


def test_executables_are_saved(saved: tuple[bytes, Path]) -> None:
    kernels = aotc.runtime.load_module(saved[1])
    loaded = Executable.load_exec(saved[0], kernels)
    for exe in (loaded, Executable.load_exec(*loaded.save())):
        a, b = VirtualMachine(exe, aotc.cpu()).run(X, X[:1])
        np.testing.assert_allclose(a.numpy(), np.exp(X) + X, rtol=1e-6)
        np.testing.assert_allclose(b.numpy(), np.tanh(X[:1]), rtol=1e-6)


def test_damaged_executables(saved: tuple[bytes, Path], tmp_path: Path) -> None:
    code, path = saved
    kernels = aotc.runtime.load_module(path)
    for bad in (b"", code[:-1], code[:60] + b"?" + code[61:], b"x" * 100, "text", None, 5):
        with pytest.raises(aotc.AotcError, match="not the saved code of an executable"):
            Executable.load_exec(bad, kernels)  # type: ignore[arg-type]
    other = relay.vm.compile(aotc.IRModule.from_expr(relay.sin(relay.var("x", shape=(4,)))), "llvm")
    with pytest.raises(aotc.AotcError, match="SHA-256"):
        Executable.load_exec(code, other.save()[1])
    with pytest.raises(aotc.AotcError, match="cannot write"):
        kernels.export_library(tmp_path / "none" / "k.so")


def test_forged_executables(saved: tuple[bytes, Path]) -> None:
    kernels, code = aotc.runtime.load_module(saved[1]), saved[0]
    (size,) = struct.unpack("<Q", code[40:48])
    whole = vm._EXECUTABLE_FORMAT.load_json(code[48 : 48 + size])
    main = whole.functions[0]
    last = main.code[-1]
    forged = [
        {"kernels": whole.kernels[:-1]},
        {"kernels": tuple(replace(k, info=None, text="") for k in whole.kernels)},
        {"functions": (replace(main, registers=1),)},
        {"functions": (replace(main, code=(replace(last, opcode=Opcode.LOAD_CONST, index=9), last)),)},
        {"functions": (replace(main, code=(replace(last, opcode=Opcode.GOTO, index=0), last)),)},
    ]

    def load(**changes: Any) -> Executable:
        text = vm._EXECUTABLE_FORMAT.dump_json(replace(whole, **changes))
        body = struct.pack("<Q", len(text)) + text + code[48 + size :]
        return Executable.load_exec(code[:8] + hashlib.sha256(body).digest() + body, kernels)

    for changes in forged:
        with pytest.raises(aotc.AotcError, match="not the saved code of an executable"):
            load(**changes)
    # values that an instruction cannot read come up when it runs
    kernel = next(k for k, saved in enumerate(whole.kernels) if saved.info is not None)
    pair = Instruction(Opcode.ALLOC_ADT, 0, (0, 1))
    for first in (
        [Instruction(Opcode.GET_FIELD, 0, (0,), index=5)],
        [pair, Instruction(Opcode.GET_FIELD, 0, (0,), index=2)],
        [pair, Instruction(Opcode.IF, args=(0,), index=2)],
        [Instruction(Opcode.INVOKE_CLOSURE, 0, (0,))],
        [Instruction(Opcode.INVOKE_PACKED, 0, (1, 1, 1), index=kernel)],
    ):
        bad = replace(main, code=(*first, Instruction(Opcode.RET, args=(0,))))
        with pytest.raises(aotc.AotcError, match="does not fit the values that it reads"):
            VirtualMachine(load(functions=(bad,))).run(X, X)


def graph(*nodes: dict[str, Any], arrays: tuple[str, ...] = ()) -> str:
    return json.dumps({"root": 1, "nodes": [{"type_key": ""}, *nodes], "b64ndarrays": arrays})


def test_graphs_of_nodes() -> None:
    var = {"_checked_type_": "0", "vid": "3", "type_annotation": "4"}
    tensor = {"type_key": "relay.TensorType", "attrs": {"dtype": "int8", "shape": "5"}}
    body = {"type_key": "relay.Tuple", "attrs": {"fields": "8"}}
    function = load_json(
        graph(
            {"type_key": "relay.Function", "attrs": {"params": "8", "body": "7", "ret_type": "0", "attrs": "0"}},
            {"type_key": "relay.Var", "attrs": var},
            {"type_key": "relay.Id", "attrs": {"name_hint": "9"}},
            tensor,
            {"type_key": "Array", "data": [6]},
            {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": "16"}},
            body,
            {"type_key": "Array", "data": [2]},
            {"type_key": "runtime.String", "repr_str": "a3"},
        )
    )
    a = relay.var("a3", shape=(16,), dtype="int8")
    assert aotc.ir.structural_equal(function, relay.Function([a], relay.Tuple([a])))
    assert [p.name_hint for p in function.params] == ["a3"]
    assert load_json(graph({"type_key": "relay.Op", "global_key": "nn.relu"})) is relay.op.get("nn.relu")
    old = load_json(
        graph(
            {"type_key": "relay.TypeVar", "attrs": {"kind": "0", "var": "2"}},
            {"type_key": "Variable", "attrs": {"dtype": "int32", "name": "in0"}},
        )
    )
    assert (old.name_hint, old.kind) == ("in0", relay.TypeKind.Type)


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [{"type_key": "relay.Unheard"}],
        [{"type_key": "relay.Tuple", "attrs": {"fields": "1"}}],
        [{"type_key": "relay.Var", "attrs": {"vid": "77"}}],
        [{"type_key": "relay.Constant", "attrs": {"data": "0"}}],
        [{"type_key": "IntImm", "attrs": {"dtype": "int8", "value": "300"}}],
        [{}],
        [3],
    ],
)
def test_damaged_graphs_of_nodes(nodes: list[Any]) -> None:
    with pytest.raises(aotc.AotcError):
        load_json(graph(*nodes))


def test_attributes_of_calls_of_functions() -> None:
    x = relay.var("x", shape=(2,))
    attrs = aotc.ir.make_node("attrs.Mine", name="a", padding=(3, 4))
    assert (attrs.name, attrs["padding"]) == ("a", (3, 4)) and attrs == aotc.ir.make_node("attrs.Mine", **attrs)
    call = relay.Call(relay.Function([x], x), [relay.var("y", shape=(2,))], attrs)
    assert aotc.ir.structural_equal(load_json(save_json(call)), call, map_free_vars=True)
    assert relay.dataflow_pattern.wildcard()(None).has_attr({"name": "a"}).match(call)
    with pytest.raises(aotc.AotcError, match="make_node cannot create"):
        aotc.ir.make_node("relay.attrs.Conv2DAttrs", groups=1)
    with pytest.raises(AttributeError):
        attrs.nothing  # noqa: B018
