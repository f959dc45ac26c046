# SPDX-License-Identifier: Apache-2.0
"""The runner of `.test` files: accepted files, reported errors, and files written by --update-golden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.relay.expr import Constant
from tests.passes.case_check import check_case
from tests.passes.case_constants import ConstantTable
from tests.passes.case_file import CaseFileError, read_cases

SUM = """[case sum_folds]
# The sum of two constants folds.
[pass FoldConstant]
[before]
def @main(%x: Tensor[(2), float32]) {
  add(%x, add(1f, 2f))
}
[after]
def @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] {
  add(%x, 3f)
}
"""
FAST = """[case tanh]
# FastMath gives other values than tanh.
[pass FastMath]
[before]
def @main(%x: Tensor[(2), float32]) { tanh(%x) }
[after]

# the end
"""


def checked(tmp_path: Path, text: str, update: bool = False) -> str:
    """Run the only case of a file with this text; return the file's text afterwards."""
    path = tmp_path / "sample.test"
    path.write_text(text, encoding="utf-8")
    (case,) = read_cases(path)
    check_case(case, update)
    return path.read_text(encoding="utf-8")


def problem(tmp_path: Path, text: str) -> str:
    """Return the error of a file, without its folder."""
    with pytest.raises(CaseFileError) as caught:
        checked(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_a_case_passes_and_is_not_rewritten(tmp_path: Path) -> None:
    assert checked(tmp_path, SUM) == checked(tmp_path, SUM, update=True) == SUM


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SUM, "", "sample.test:1: the file has no case; begin one with [case NAME]"),
        ("[case sum_folds]\n", "", "sample.test:2: [pass] belongs to no case; begin with [case NAME]"),
        ("[case sum_folds]", "text\n[case a]", "sample.test:1: 'text' belongs to no case"),
        ("sum_folds", "Sum folds", "sample.test:1: the name 'Sum folds' of a case must be words in lower case"),
        ("# The sum of two constants folds.\n", "", "sample.test:1: say in comment lines"),
        ("[pass FoldConstant]\n", "", "sample.test:1: the case has no section [pass]"),
        ("[pass FoldConstant]", "[pas FoldConstant]", "sample.test:3: there is no section [pas]; did you mean 'pass'?"),
        ("[pass FoldConstant]", "[pass]", "sample.test:3: [pass] needs an argument"),
        ("[pass FoldConstant]", "[pass FoldConst]", "sample.test:3: there is no pass 'FoldConst'; did you mean"),
        ("[pass FoldConstant]", "[pass FoldConstant(]", "sample.test:3: '(' was never closed"),
        ("[pass FoldConstant]", "[pass FoldConstant(depth=1)]", "sample.test:3: FoldConstant.__init__() got an unexp"),
        ("[pass FoldConstant]", "[pass FoldConst", "sample.test:3: malformed heading '[pass FoldConst': write [name]"),
        ("[before]", "[context level]\n[before]", "sample.test:4: [context] takes arguments such as opt_level=4"),
        ("[before]", "[compiler one expp]\n[before]", "sample.test:4: operator `expp` not found"),
        ("[before]", "[tolerance steps=1]\n[before]", "sample.test:4: [tolerance] takes rtol, atol, of_largest"),
        ("[before]", "[idempotent]\ntext\n[before]", "sample.test:5: [idempotent] is one line"),
        ("[before]", "[idempotent now]\n[before]", "sample.test:4: [idempotent] takes no argument"),
        ("[before]", "[inputs]\n%x is 1\n[before]", "sample.test:5: an input is written %name = $normal(2, 3), found"),
        ("[before]", "[inputs]\n%y = $full(1, 2)\n[before]", "sample.test:4: no function has the parameters y"),
        ("[before]", "[before]\n[before]", "sample.test:5: the case has a second section [before]"),
        (
            "[before]",
            "[inputs]\n%x = $full(1, 2)\n[not_executed why]\n[before]",
            "sample.test:4: [inputs] has no effect in a case with [not_executed]; remove one of them",
        ),
        (
            "[after]",
            "[unchanged]\n[after]",
            "sample.test:1: the case needs one of [after], [unchanged] and [error], and",
        ),
        (
            "[before]\ndef @main(%x: Tensor[(2), float32]) {\n  add(%x, add(1f, 2f))\n}\n",
            "",
            "sample.test:1: the case has no section [before]",
        ),
        ("add(1f, 2f)", "add(1f, 2f", "sample.test:7: [before] is not a valid module"),
        ("add(1f, 2f)", "sum_of(1f)", "sample.test:6: [before] is not a valid module"),
        ("add(1f, 2f)", "add(1f, $norm(2))", "sample.test:6: there is no generator $norm; generators are normal"),
        ("add(1f, 2f)", "$normal(2, sed=1)", "sample.test:6: wrong arguments of $normal(2, sed=1)"),
        ("add(1f, 2f)", "$array([1, 2, dtype=int8)", "sample.test:6: malformed constant"),
        ("add(1f, 2f))", "$normal(2", "sample.test:6: the parenthesis after $normal is not closed"),
        ("3f", "4f", "sample.test:8: [after] differs from the result (-, +):\n"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SUM
    assert problem(tmp_path, SUM.replace(old, new)).startswith(message)


def test_names_of_cases_are_unique(tmp_path: Path) -> None:
    assert problem(tmp_path, SUM + SUM).startswith("sample.test:12: a case called sum_folds begins on line 1, too")


def test_a_case_in_which_nothing_happens_fails(tmp_path: Path) -> None:
    text = SUM.replace("add(1f, 2f)", "3f")
    assert problem(tmp_path, text).startswith("sample.test:8: the passes change nothing; write [unchanged]")
    assert checked(tmp_path, text.split("[after]")[0] + "[unchanged]\n")
    assert "the passes raise no error" in problem(tmp_path, text.split("[after]")[0] + "[error]\n")


def test_unchanged_means_the_same_object(tmp_path: Path) -> None:
    message = problem(tmp_path, SUM.split("[after]")[0] + "[unchanged]\n")
    assert message.startswith("sample.test:8: the passes return another module:") and "+  add(%x, 3f)" in message


def test_an_update_writes_the_module_and_keeps_comments(tmp_path: Path) -> None:
    text = FAST.replace("[before]", "[tolerance rtol=1e-3, atol=1e-3]\n[before]")
    after = checked(tmp_path, text, update=True)
    assert after.startswith(text.split("\n\n")[0]) and "fast_tanh(%x)" in after and after.endswith("}\n\n# the end\n")
    assert checked(tmp_path, after) == after


def test_an_update_never_writes_other_results(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError, match=r"sample.test:1: @main computes other results after the passes: element"):
        checked(tmp_path, FAST, update=True)
    assert (tmp_path / "sample.test").read_text(encoding="utf-8") == FAST


def test_inputs_without_a_static_type_must_be_given(tmp_path: Path) -> None:
    text = SUM.replace("(2), float32]) {", "(n), float32]) {").replace("(2)", "(n)")
    assert "no value of type Tensor[(n), float32] can be drawn; set %x in [inputs]" in problem(tmp_path, text)
    assert checked(tmp_path, text.replace("[before]", "[inputs]\n%x = $arange(5)\n[before]"))
    assert checked(tmp_path, text.replace("[before]", "[not_executed the shape is unknown]\n[before]"))


def test_errors_of_passes(tmp_path: Path) -> None:
    text = SUM.split("[after]")[0].replace("FoldConstant", "SplitArgs(1)") + "[error]\n"
    after = checked(tmp_path, text, update=True)
    assert after.endswith("[error]\nsplit-args: max_function_args is 1: two tensors and their concatenation take 3\n")
    assert "-split-args: max_function_args is 2" in problem(tmp_path, after.replace("is 1:", "is 2:"))


@pytest.mark.parametrize(
    ("text", "shape", "first"),
    [
        ("$full(7, 2, 3, dtype=int8)", (2, 3), 7),
        ("$array(-5, dtype=int8)", (), -5),
        ("$array([[1.5], [-inf]])", (2, 1), 1.5),
        ("$arange(6, 2, 3)", (2, 3), 0),
        ("$linspace(0.5, 1, 3)", (3,), 0.5),
        ("$repeated(2, 5, 6)", (4,), 5),
        ("$integers(4, 4, 2, seed=3)", (2,), 4),
        ("$uniform(2, 2, 1, 2)", (1, 2), 2),
        ("$normal(0, 3, dtype=float16)", (0, 3), None),
    ],
)
def test_generators(text: str, shape: tuple[int, ...], first: float | None) -> None:
    table = ConstantTable()
    data = table.constant(text).data
    assert data.shape == shape and (first is None or data.reshape(-1)[0] == first)
    assert table.constant(text.replace(", ", " ,")) is table.constant(text), "one text is one constant"
    assert table.text_of(Constant(data)) == text


def test_texts_of_computed_constants() -> None:
    table = ConstantTable()
    for data, text in [
        (np.float32([1, 2.5]), "$array([1, 2.5])"),
        (np.int8([[1], [-2]]), "$array([[1], [-2]], dtype=int8)"),
        (np.zeros((0, 3), np.float32), "$full(0, 0, 3)"),
        (np.broadcast_to(np.float32(2), (1 << 20, 1 << 20)), "$full(2, 1048576, 1048576)"),
        (np.arange(9, dtype=np.float32), "$computed(float32, 9)"),
    ]:
        assert table.text_of(Constant(np.asarray(data))) == text
