# SPDX-License-Identifier: Apache-2.0
"""Program files that try to execute code: each would write a file, and none does.

Such a file is either read as if the code were not there, or refused with one diagnostic.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import aotc
from aotc import AotcError
from aotc.checking.verify import verify
from aotc.driver.import_model import import_exported_program, load_exported_program
from aotc.relay.frontend.pytorch.pt2_validation import Refused, _validate_dim_expression

Records = dict[str, Any]
MODEL, WEIGHTS, CONSTANTS = "models/model.json", "data/weights/", "data/constants/"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.offset = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: Tensor, mode: str) -> Tensor:
        with torch.no_grad():
            y = self.layer(x)
        return torch.relu(y + self.offset) * x.shape[0]


@pytest.fixture(scope="module")
def saved() -> bytes:
    """An honest file."""
    program = torch.export.export(
        Net().eval(), (torch.ones(3, 4), "plain"), dynamic_shapes=({0: torch.export.Dim("rows", max=64)}, None)
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """What code that runs makes."""
    return tmp_path / "proof"


@pytest.fixture
def code(proof: Path) -> str:
    """Code in one expression."""
    return f"__import__('pathlib').Path('{proof}').touch()"


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self.code,)


def torch_saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def rewritten(
    saved: bytes, path: Path, change: Callable[[Records], object], compression: int = zipfile.ZIP_STORED
) -> Path:
    """A file whose records were changed; those in JSON are given and taken as what they say."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        records: Records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    for name in records:
        if name.endswith(".json"):
            records[name] = json.loads(records[name])
    change(records)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in records.items():
            archive.writestr(f"net/{name}", value if isinstance(value, bytes) else json.dumps(value))
    return path


def graph(records: Records) -> Any:
    return records[MODEL]["graph_module"]["graph"]


def refused(path: Path) -> str:
    """The one diagnostic of a file that is refused."""
    with pytest.raises(AotcError) as caught:
        import_exported_program(path, {})
    assert len(caught.value.diagnostics) == 1 and "Error" not in str(caught.value)
    return str(caught.value)


def test_an_honest_file_is_read(saved: bytes, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "net.pt2", lambda records: None)
    program = load_exported_program(path)
    x = torch.randn(5, 4)
    expected = torch.export.load(io.BytesIO(saved)).module()(x, "plain")
    np.testing.assert_array_equal(program.module()(x, "plain")[0], expected)
    assert program.example_inputs is None
    ((symbol, bounds),) = program.range_constraints.items()
    assert bounds.upper == 64 and program.graph_signature.user_inputs == ("x", "plain")
    assert import_exported_program(program, {str(symbol): 3}).main.params[0].name == "x"


# --- read as if it were not there


def in_the_sample_inputs(records: Records, code: str) -> None:
    records["data/sample_inputs/model.pt"] = torch_saved(((Bomb(code),), {}))


def in_the_guards(records: Records, code: str) -> None:
    records[MODEL]["guards_code"] = [f"{code} is None"]


def in_the_containers(records: Records, code: str) -> None:
    """What calls a program with a defaultdict names a module to import, which here is a file beside the model."""
    leaf = {"type": None, "context": None, "children_spec": []}
    context = json.dumps({"default_factory_module": "hostile_module", "default_factory_name": "f", "dict_context": []})
    made = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, made]}
    records[MODEL]["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, pair])


def in_the_metadata(records: Records, code: str) -> None:
    for node in graph(records)["nodes"]:
        node["metadata"] |= {"source_fn_stack": "relu,torch.os.system", "from_node": "[]", "custom": "[]"}


def in_a_library(records: Records, code: str) -> None:
    records["data/aotinductor/model/model.so"] = b"no library"


def in_another_program(records: Records, code: str) -> None:
    records["models/other.json"] = records[MODEL]
    records["data/sample_inputs/other.pt"] = torch_saved(((Bomb(code),), {}))


HARMLESS = [
    in_the_sample_inputs, in_the_guards, in_the_containers, in_the_metadata, in_a_library, in_another_program,
]  # fmt: skip


@pytest.mark.parametrize("place", HARMLESS, ids=lambda f: f.__name__)
def test_code_is_left_out(
    place: Callable[[Records, str], None],
    saved: bytes,
    tmp_path: Path,
    proof: Path,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "hostile_module.py").write_text(f"{code}\nf = list\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = rewritten(saved, tmp_path / "net.pt2", lambda records: place(records, code))
    load_exported_program(path).module()(torch.ones(3, 4), "plain")
    assert not proof.exists()


def test_verify_draws_inputs_itself(saved: bytes, tmp_path: Path, proof: Path, code: str) -> None:
    path = rewritten(saved, tmp_path / "net.pt2", lambda records: [place(records, code) for place in HARMLESS])
    pins = {str(symbol): 3 for symbol in load_exported_program(path).range_constraints}
    report = verify(path, seeds=2, dims=pins, cflags=["-O1"])
    assert report.ok and len(report.cases) >= 2 and not proof.exists()


def test_nothing_unpickles(saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No function of any unpickler is called, not even for pickles without code."""
    (tmp_path / "net.pt2").write_bytes(saved)

    def opened(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle was opened")

    for place, name in ((torch, "load"), (torch.jit, "load"), (torch._C, "_pickle_load_obj"), (pickle, "Unpickler")):
        monkeypatch.setattr(place, name, opened)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, opened)
    assert len(load_exported_program(tmp_path / "net.pt2").state_dict) == 2


# --- refused


def in_a_weight(records: Records, code: str) -> None:
    records[WEIGHTS + "weight_0"] = torch_saved(Bomb(code))
    records[WEIGHTS + "model_weights_config.json"]["config"]["layer.weight"]["use_pickle"] = True


def in_all_weights(records: Records, code: str) -> None:
    records[WEIGHTS + "model.pt"] = torch_saved({"layer.weight": Bomb(code)})


def in_a_constant(records: Records, code: str) -> None:
    records[CONSTANTS + "tensor_0"] = torch_saved(Bomb(code))
    records[CONSTANTS + "model_constants_config.json"]["config"]["offset"]["use_pickle"] = True


def in_an_object(records: Records, code: str) -> None:
    records[CONSTANTS + "opaque_obj_0"] = pickle.dumps(Bomb(code))
    config = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    records[CONSTANTS + "model_constants_config.json"]["config"]["thing"] = config


def in_all_constants(records: Records, code: str) -> None:
    records[CONSTANTS + "model.pt"] = torch_saved({"offset": Bomb(code)})


def in_a_size(records: Records, code: str) -> None:
    graph(records)["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = code


def in_a_number(records: Records, code: str) -> None:
    numbers = graph(records)["sym_int_values"]
    numbers[next(iter(numbers))]["as_expr"]["expr_str"] = f"Add(Integer(1), {code})"


def in_the_name_of_a_dimension(records: Records, code: str) -> None:
    sizes = graph(records)["tensor_values"]["x"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = f"Symbol({code!r}, positive=True, integer=True)"


def in_an_operator(records: Records, code: str) -> None:
    node = graph(records)["nodes"][-1]
    command = {"name": "", "arg": {"as_string": f"touch {code.split(chr(39))[3]}"}, "kind": 1}
    node |= {"target": "torch.os.system", "inputs": [command]}


def in_an_operator_that_saves(records: Records, code: str) -> None:
    node = graph(records)["nodes"][-1]
    node["target"] = "torch.ops.aten.save.default"
    node["inputs"] = [{"name": "filename", "arg": {"as_string": code.split("'")[3]}, "kind": 1}]


def in_the_attributes_of_operators(records: Records, code: str) -> None:
    graph(records)["nodes"][-1]["target"] = "torch.ops.aten._dir.append"


def in_an_operator_as_argument(records: Records, code: str) -> None:
    graph(records)["nodes"][-1]["inputs"][0]["arg"] = {"as_operator": "torch.os.system"}


def in_the_name_of_an_input(records: Records, code: str) -> None:
    """Names become Python source: this one would be an argument with a default."""
    text = json.dumps(records[MODEL]).replace('"x"', json.dumps(f"x={code}"))
    records[MODEL] = json.loads(text)


def in_the_name_of_a_node(records: Records, code: str) -> None:
    node = graph(records)["nodes"][-1]
    old = node["outputs"][0]["as_tensor"]["name"]
    text = json.dumps(records[MODEL]).replace(f'"{old}"', json.dumps(f"_; {code}; {old}"))
    records[MODEL] = json.loads(text)


def in_the_name_of_a_parameter(records: Records, code: str) -> None:
    name = f'layer.a" + str({code}) + "'
    spec = next(s for s in records[MODEL]["graph_module"]["signature"]["input_specs"] if "parameter" in s)
    config = records[WEIGHTS + "model_weights_config.json"]["config"]
    config[name] = config.pop(spec["parameter"]["parameter_name"])
    spec["parameter"]["parameter_name"] = name


def in_the_value_of_an_input(records: Records, code: str) -> None:
    value = f"' + str({code}) + '"
    graph(records)["inputs"][-1]["as_string"] = value
    records[MODEL]["graph_module"]["signature"]["input_specs"][-1]["constant_input"]["value"]["as_string"] = value


PLACES = {
    in_a_weight: "kept as a pickle",
    in_all_weights: "an older torch",
    in_a_constant: "kept as a pickle",
    in_an_object: "kept as a pickle",
    in_all_constants: "an older torch",
    in_a_size: "no expression on dimensions",
    in_a_number: "no expression on dimensions",
    in_the_name_of_a_dimension: "not the name of a dynamic dimension",
    in_an_operator: "operator torch.os.system is not supported",
    in_an_operator_that_saves: "operator aten.save.default is not supported",
    in_the_attributes_of_operators: "operator aten._dir.append is not supported",
    in_an_operator_as_argument: "not supported",
    in_the_name_of_an_input: "not a name",
    in_the_name_of_a_node: "not a name",
    in_the_name_of_a_parameter: "not the name of a parameter",
    in_the_value_of_an_input: "a text without quotes",
}


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_code_is_refused(
    place: Callable[[Records, str], None], saved: bytes, tmp_path: Path, proof: Path, code: str
) -> None:
    path = rewritten(saved, tmp_path / "net.pt2", lambda records: place(records, code))
    assert PLACES[place] in refused(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("serialized_exported_program.json", "serialized_state_dict.pt", "version"), "torch 2.7 or older"),
        (("net/data.pkl", "net/constants.pkl", "net/code/net.py"), "a TorchScript archive"),
        (("net/data.pkl", "net/version"), "a pickle that torch.save wrote"),
        (("net/else",), "no archive of torch.export.save"),
    ],
)
def test_archives_of_other_kinds(names: tuple[str, ...], message: str, tmp_path: Path, proof: Path, code: str) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        for name in names:
            archive.writestr(name, pickle.dumps(Bomb(code)))
    assert message in refused(tmp_path / "net.pt2")
    assert not proof.exists()


def test_torchscript_is_not_opened(tmp_path: Path, proof: Path, code: str) -> None:
    torch.jit.save(torch.jit.trace(nn.ReLU(), torch.ones(2)), tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt", "a") as archive:
        archive.writestr("net/more.pkl", pickle.dumps(Bomb(code)))
    for name in ("net.pt", "net.pt2"):
        (tmp_path / "net.pt").replace(tmp_path / name)
        with pytest.raises(AotcError, match="TorchScript"):
            aotc.compile(tmp_path / name, build=False)
        (tmp_path / name).replace(tmp_path / "net.pt")
    assert not proof.exists()


def nested(records: Records) -> None:
    for _ in range(5):
        inner = {"name": "", "arg": {"as_graph": {"name": "g", "graph": graph(records)}}, "kind": 1}
        node = {"target": "torch.ops.higher_order.wrap_with_set_grad_enabled", "outputs": [], "metadata": {}}
        outer = {**graph(records), "nodes": [{**node, "inputs": [inner]}]}
        records[MODEL]["graph_module"]["graph"] = outer


DAMAGE: dict[str, Callable[[Records], object]] = {
    "no record 'models/model.json'": lambda r: r.pop(MODEL),
    "is no JSON": lambda r: r.update({MODEL: b"{" * 100_000}),
    "has no graph_module": lambda r: r[MODEL].pop("graph_module"),
    "is no list": lambda r: graph(r).update(nodes=7),
    "is not of one kind": lambda r: graph(r)["inputs"].append({}),
    "is of the kind 'as_custom_obj'": lambda r: graph(r)["inputs"].append({"as_custom_obj": {}}),
    "an integer of 64 bits": lambda r: r[MODEL]["schema_version"].update(major=1 << 80),
    "reads 8.": lambda r: r[MODEL]["schema_version"].update(major=99),
    "contradicts itself": lambda r: graph(r)["nodes"].pop(),
    "nested too deeply": nested,
    "no record 'data/weights/weight_0'": lambda r: r.pop(WEIGHTS + "weight_0"),
    "does not fit its 5 bytes": lambda r: r.update({WEIGHTS + "weight_0": bytes(5)}),
    "does not fit its 44 bytes": lambda r: r.update({WEIGHTS + "weight_0": bytes(44)}),
    "another order of bytes": lambda r: r.update(byteorder=b"big"),
    "not the name of a dynamic dimension": lambda r: r[MODEL]["range_constraints"].update(
        u999999999={"min_val": 0, "max_val": 1}
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named(message: str, saved: bytes, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "net.pt2", DAMAGE[message])
    assert message in refused(path)


def test_programs_that_torch_cannot_follow(saved: bytes, tmp_path: Path) -> None:
    def change(records: Records) -> None:
        region = next(n for n in graph(records)["nodes"] if "set_grad" in n["target"])
        region["inputs"].append({"name": "", "arg": {"as_bool": True}, "kind": 1})

    assert "do not fit one another" in refused(rewritten(saved, tmp_path / "net.pt2", change))


def test_archives_that_grow_when_they_are_read(saved: bytes, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "net.pt2", lambda records: None, zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(path)
    (tmp_path / "net.pt2").write_bytes(saved[: len(saved) // 2])
    assert "incomplete" in refused(tmp_path / "net.pt2")
    damaged = saved.replace(np.array([1, 2, 3], np.float32).tobytes(), bytes(12))
    (tmp_path / "net.pt2").write_bytes(damaged)
    assert "is damaged" in refused(tmp_path / "net.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s0', positive=True, integer=True)",
        "Add(Mul(Integer(-1), Symbol('s0')), Pow(Symbol('s1'), Integer(2)), FloorDiv(Symbol('s0'), Integer(2)))",
        "Mul(Rational(1, 2), Float('1.5', precision=53))",
        "LessThan(Integer(0), Symbol('u0', integer=True))",
    ],
)
def test_expressions(text: str) -> None:
    assert _validate_dim_expression(text, "x").replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        "", "s0", "1", "print(1)", "Symbol", "Symbol('s0').name", "Add(*[Integer(1)])", "Integer(9**9**9)",
        "Pow(Integer(9), Integer(99))", "Pow(Pow(Symbol('a'), Integer(8)), Integer(8))", "Pow(Integer(2), Symbol('a'))",
        "Integer('1')", "Float('1e99999')", "(lambda: Integer(1))()", "Symbol('s0', cls=print)", "Symbol('u99999')",
        "Add(Integer(1), evaluate=print(1))", "Symbol(**{'name': 's0'})", "Integer(1) if Integer(1) else Integer(2)",
        "(" * 5000, "Not(" * 4000 + ")" * 4000, f"Integer({'9' * 5000})",
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(Refused):
        _validate_dim_expression(text, "x")
