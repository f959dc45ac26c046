# SPDX-License-Identifier: Apache-2.0
"""Programs with type variables, algebraic data types, matches and references: text, types, results, passes, errors."""

import pytest

import aotc
from aotc import relay
from aotc.ir import assert_structural_equal, structural_equal, structural_hash
from aotc.relay import analysis, transform
from aotc.relay.interpreter import evaluate

VERSION = '#[version = "0.0.5"]\n'
LIST = "type List[A] { Cons(A, List[A]), Nil, }\n"
SUM = """
def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil }
}
def @sum(%xs: List[int32]) -> int32 {
  match (%xs) { Cons(%x, %rest) => { let %y = %x * 2; %y + @sum(%rest) }, Nil => 0 }
}
def @main(%a: int32) -> int32 {
  let %r = ref(%a);
  ref_write(%r, ref_read(%r) + 1);
  @sum(@map(fn (%x: int32) -> int32 { %x + ref_read(%r) }, Cons(1, Cons(2, Nil))))
}
"""


def program() -> aotc.IRModule:
    return relay.parse(VERSION + LIST + SUM)


def expect_error(text: str, message: str) -> None:
    with pytest.raises(aotc.AotcError, match=message):
        transform.InferType()(relay.parse(VERSION + text))


def test_a_program_reads_back_and_keeps_its_meaning() -> None:
    typed = transform.InferType()(program())
    assert evaluate(typed, 5) == 2 * (1 + 6 + 2 + 6)
    again = relay.parse(typed.astext())
    assert_structural_equal(typed, again)
    assert structural_hash(typed) == structural_hash(again)


@pytest.mark.parametrize(
    "name",
    ["DeadCodeElimination", "ToANormalForm", "ToBasicBlockNormalForm", "FoldConstant", "LambdaLift", "Inline",
     "EliminateCommonSubexpr", "SimplifyExpr", "FuseOps", "RemoveUnusedFunctions"],
)  # fmt: skip
def test_passes_keep_matches_and_references(name: str) -> None:
    result = getattr(transform, name)()(transform.InferType()(program()))
    assert evaluate(result, 5) == 30


def test_a_reference_that_a_function_writes_to_is_not_dead() -> None:
    text = """
    def @set(%r: ref(int32)) -> () { ref_write(%r, 7) }
    def @main() -> int32 { let %r = ref(1); let %u = @set(%r); let %dead = 1 + 2; ref_read(%r) }
    """
    module = transform.DeadCodeElimination()(relay.parse(VERSION + text))
    assert evaluate(module) == 7
    assert "add" not in module.astext()


INC = "def @inc(%r: ref(int32)) -> int32 { ref_write(%r, ref_read(%r) + 1); ref_read(%r) }\n"
EFFECTS = {
    "a counter that a closure holds": (
        """
    def @make() -> fn () -> int32 { let %r = ref(0); fn () -> int32 { ref_write(%r, ref_read(%r) + 1); ref_read(%r) } }
    def @main() -> int32 { let %f = @make(); let %u = %f(); %f() }""",
        2,
    ),
    "an argument read before the function writes": (
        """
    def @f(%r: ref(int32), %v: int32, Inline=1) -> int32 { ref_write(%r, 5); %v }
    def @main() -> int32 { let %r = ref(1); @f(%r, ref_read(%r)) }""",
        1,
    ),
    "an argument that the function does not use": (
        """
    def @f(%r: ref(int32), %v: (), Inline=1) -> int32 { ref_read(%r) }
    def @main() -> int32 { let %r = ref(1); @f(%r, ref_write(%r, 5)) }""",
        5,
    ),
    "a place of its own for each call": (
        """
    def @mk(Inline=1) -> ref(int32) { let %z = ref(0); %z }
    def @main() -> int32 { let %a = @mk(); let %b = @mk(); ref_write(%a, 5); ref_read(%b) * 10 + ref_read(%a) }""",
        5,
    ),
    "calls that look alike": (INC + "def @main() -> int32 { let %r = ref(1); @inc(%r) * 10 + @inc(%r) }", 23),
    "operands in their order": (
        "def @main() { let %r = ref(1); ref_read(%r) * 10 + (let %u = ref_write(%r, 3); ref_read(%r)) }",
        13,
    ),
    "a field that nobody takes": (
        "def @main() { let %r = ref(1); let %a = (ref_write(%r, 4), 7).1; %a + ref_read(%r) }",
        11,
    ),
    "a branch in a field that nobody takes": (
        INC + "def @main() { let %r = ref(1); let %a = (if (True) { @inc(%r) } else { 2 }, 3).1; %a + ref_read(%r) }",
        5,
    ),
    "a let in a field that nobody takes": (
        "def @main() { let %r = ref(1); let %a = ((let %u = ref_write(%r, 4); 7), 3).1; %a + ref_read(%r) }",
        7,
    ),
    "a loop": (
        """
    def @main() -> int32 {
      let %r = ref(0);
      let %loop = fn (%i: int32) -> int32 {
        if (%i == 0) { ref_read(%r) } else { ref_write(%r, ref_read(%r) * 2 + %i); %loop(%i - 1) }
      };
      %loop(3) * 100 + %loop(2)
    }""",
        1773,
    ),
}
PASSES = {
    **{name: getattr(transform, name)() for name in (
        "DeadCodeElimination", "ToANormalForm", "ToBasicBlockNormalForm", "FoldConstant", "LambdaLift", "Inline",
        "EliminateCommonSubexpr", "SimplifyExpr", "FuseOps")},
    "Inline all": transform.Inline(everything=True),
}  # fmt: skip


def check_kept(text: str, expected: int, name: str, *args: int) -> None:
    """A pass, and the text of what it made, keep the meaning of a program."""
    module = transform.InferType()(relay.parse(VERSION + text))
    assert evaluate(module, *args) == expected
    result = PASSES[name](module)
    assert evaluate(result, *args) == expected
    again = transform.InferType()(relay.parse(result.astext()))
    assert_structural_equal(result, again)
    assert evaluate(again, *args) == expected


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("case", EFFECTS)
def test_passes_keep_effects_in_place_and_in_number(case: str, name: str) -> None:
    check_kept(*EFFECTS[case], name)


POLYMORPHIC = {
    "variables": """
    def @id[A](%x: A, Inline=1) -> A { let %y = %x; let %z = (%y, %y); %z.0 }
    def @main(%x: int32) -> int32 { @id(%x) + @id((%x, 1f)).0 + 9 }""",
    "patterns": LIST
    + """
    def @hd[A](%l: List[A], %d: A, Inline=1) -> A {
      match (%l) { Cons(%x, _) => { let %f = fn (%q: A) -> A { %q }; %f(%x) }, Nil => %d }
    }
    def @main(%x: int32) -> int32 { @hd(Cons(%x, Nil), 4) + @hd(Nil, 4) * @hd(Cons((%x, 1f), Nil), (2, 2f)).0 }""",
    "closures": """
    def @f[A](%x: A) -> fn (A) -> (A, A) { fn (%y: A) -> (A, A) { (%x, %y) } }
    def @main(%x: int32) -> int32 { let %g = @f(%x); %g(2).0 + %g(12).1 }""",
    "references": """
    def @swap[A](%a: ref(A), %b: ref(A)) -> () { let %t = ref_read(%a); ref_write(%a, ref_read(%b)); ref_write(%b, %t) }
    def @main(%x: int32) { let %r = ref(%x); let %s = ref(6); @swap(%r, %s); ref_read(%r) * 2 + ref_read(%s) }""",
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("case", POLYMORPHIC)
def test_passes_keep_polymorphic_programs(case: str, name: str) -> None:
    check_kept(POLYMORPHIC[case], 15, name, 3)


SHADOWED = {
    "a parameter": LIST
    + """
    def @main(%x: int32) -> int32 { match (Cons(%x + 1, Nil)) { Cons(%x, _) => %x, Nil => 0 } * 10 + %x }""",
    "a pattern": LIST
    + """
    def @main(%x: int32) -> int32 {
      match (Cons(%x + 1, Cons(%x, Nil))) {
        Cons(%a, %l) => { (match (%l) { Cons(%a, %l) => %a * match (%l) { %l => 2 }, Nil => 0 }) - %a + 41 },
        Nil => 0
      }
    }""",
    "an argument": LIST
    + """
    def @f(%l: List[int32], %a: int32, Inline=1) -> int32 {
      match (%l) { Cons(%x, %l) => %x * 10 + %a + match (%l) { Cons(%a, _) => %a, Nil => 0 }, %l => %a }
    }
    def @main(%x: int32) -> int32 {
      match (Cons(4, Nil)) { Cons(%a, %l) => @f(%l, 0) + @f(Cons(%a, Nil), %x), _ => 7 }
    }""",
    "a let": LIST
    + """
    def @main(%x: int32) -> int32 {
      let %y = %x + 1;
      let %z = match (Cons(%y, Nil)) { Cons(%y, _) => { let %y = %y * 5; let %y = %y * 2; %y }, Nil => %y };
      %z + %y - 1
    }""",
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("case", SHADOWED)
def test_variables_of_patterns_may_hide_others(case: str, name: str) -> None:
    check_kept(SHADOWED[case], 43, name, 3)


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_compilers_refuse_what_only_the_interpreter_computes(executor: str) -> None:
    text = LIST + "def @main(%a: int32) -> int32 { match (Cons(%a, Nil)) { Cons(%x, _) => %x, Nil => 0 } }"
    module = transform.InferType()(relay.parse(VERSION + text))
    assert evaluate(module, 5) == 5
    with pytest.raises(aotc.AotcError, match="cannot be compiled"):
        relay.create_executor(executor, mod=module).evaluate()(5)
    with pytest.raises(aotc.AotcError, match="cannot be compiled"):
        relay.build(module, "c")


def test_graphs_without_lets_refuse_writes() -> None:
    with pytest.raises(aotc.AotcError, match="when references are written"):
        transform.ToGraphNormalForm()(program())


def test_polymorphic_functions_are_typed_at_each_call() -> None:
    text = "def @id[A](%x: A) -> A { %x }\ndef @main(%f: float32) { (@id(%f), @id((1, %f))) }"
    module = transform.InferType()(relay.parse(VERSION + text))
    assert str(module["main"].ret_type) == "(float32, (int32, float32))"


def test_type_variables_of_functions_have_no_names_when_compared() -> None:
    def identity(name: str) -> relay.Function:
        a = relay.TypeVar(name)
        x = relay.Var("x", a)
        return relay.Function([x], x, a, [a])

    assert structural_equal(identity("a"), identity("b"))
    assert structural_hash(identity("a")) == structural_hash(identity("b"))
    a, b = aotc.runtime.convert([relay.TypeVar("a"), relay.TypeVar("b")])
    assert relay.FuncType([a], a, [a]) == relay.FuncType([b], b, [b])
    assert relay.FuncType([a], a, [a]) != relay.FuncType([b], a, [b])
    assert not structural_equal(a, b)
    assert structural_equal(a, b, map_free_vars=True)
    assert analysis.free_type_vars(relay.FuncType([a], b, [a])) == [b]
    assert structural_hash(a, map_free_vars=True) == structural_hash(b, map_free_vars=True)
    inside = [relay.TupleType([relay.FuncType([v], v, [v])]) for v in (a, b)]
    assert structural_equal(*inside)
    assert structural_hash(inside[0]) == structural_hash(inside[1])


def test_patterns_of_other_data_types_differ() -> None:
    text = "type {0} {{ A, B, }}\ndef @f[T](%x: T) {{ match? (%x) {{ A => 0 }} }}"
    first, second = (relay.parse(VERSION + text.format(name))["f"] for name in "PQ")
    assert not structural_equal(first, second)
    assert structural_hash(first) != structural_hash(second)


def test_modules_take_data_types_of_others() -> None:
    module = aotc.IRModule()
    module.update(program())
    assert_structural_equal(module, program())


def test_matches_say_what_they_leave_out() -> None:
    module = relay.parse(VERSION + LIST)
    _, cons, nil = module.get_type("List")
    any_ = relay.PatternWildcard()
    two = relay.PatternConstructor(cons, [any_, relay.PatternConstructor(cons, [any_, any_])])
    v = relay.Var("v")
    some = relay.Clause(relay.PatternConstructor(cons, [any_, relay.PatternVar(v)]), v)
    assert analysis.well_formed(program())
    assert not analysis.well_formed(relay.Match(nil(), [some, some]))
    assert not analysis.well_formed(relay.Tuple([relay.Match(nil(), [some]), v]))
    missing = analysis.unmatched_cases(relay.Match(v, [relay.Clause(two, v)]))
    heads = sorted(p.constructor.name_hint for p in missing)
    assert heads == ["Cons", "Nil"]
    whole = relay.Match(v, [relay.Clause(two, v), relay.Clause(any_, v)])
    assert not analysis.unmatched_cases(whole)
    assert nil.tag == relay.parse(VERSION + LIST).get_type("List")[2].tag != cons.tag


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST + "def @f(%x: List[int32]) { match (%x) { Nil => 0 } }", "does not cover all values"),
        (LIST + "def @f(%x: int32) { match (%x) { Nil => 0, _ => 1 } }", "does not match values of type int32"),
        (LIST + "def @f(%x: List[int32]) { match (%x) { Nil(_) => 0, _ => 1 } }", "does not match values"),
        (LIST + "def @f(%x: int32) { Cons(%x, %x) }", "argument 1 is int32"),
        (LIST + "def @f(%x: List[int32]) { match (%x) { Nill => 0 } }", "no constructor is called Nill"),
        (LIST + LIST, "type List is defined twice"),
        ("type A { B }\ntype C { B }", "B is defined twice"),
        ("def @f(%x: int32) { ref_read(%x) }", "is no reference"),
        ("def @f(%x: ref(int32)) { ref_write(%x, 1f) }", "is written to a reference of type int32"),
        ("def @f[A](%x: A) { %x + %x }", "must be a tensor, got A"),
        ("def @f(%x: ref(int32)) { ref_write(%x) }", "takes 2 arguments, got 1"),
    ],
)
def test_ill_formed_programs(text: str, message: str) -> None:
    expect_error(text, message)


def test_what_match_with_a_question_mark_leaves_out_fails_when_it_comes() -> None:
    text = LIST + "def @main(%x: int32) -> int32 { match? (Cons(%x, Nil)) { Nil => 0 } }"
    module = transform.InferType()(relay.parse(VERSION + text))
    with pytest.raises(aotc.AotcError, match="no clause"):
        evaluate(module, 1)


def test_the_prelude_has_types_with_tags() -> None:
    module = aotc.IRModule()
    module.import_from_std("prelude.rly")
    for name in ("List", "Option", "Tree", "nat"):
        first, *others = module.get_type(name)[1:]
        assert module.get_constructor(first.tag) is first
        assert [c.tag - first.tag for c in others] == [*range(1, len(others) + 1)]
    with pytest.raises(aotc.AotcError, match="unknown part of the prelude"):
        module.import_from_std("gradient.rly")
    with pytest.raises(aotc.AotcError, match="no constructor"):
        module.get_constructor(1)
    with pytest.raises(aotc.AotcError, match="no data type"):
        module.get_type("Lists")


def test_annotated_programs_know_their_places() -> None:
    x = relay.var("x", shape=(3,))
    module = aotc.IRModule.from_expr(relay.add(x, relay.const([1.0, 2.0, 3.0], "float32")))
    result = transform.AnnotateSpans()(module)
    assert_structural_equal(transform.InferType()(module), transform.InferType()(result))
    assert str(result["main"].body.span).startswith("GeneratedSource:3:")
    assert transform.InferTypeLocal(relay.exp(x)) == relay.TensorType((3,), "float32")


def test_kinds() -> None:
    kind = relay.TypeKind
    shape, a = relay.TypeVar("s", kind.ShapeVar), relay.TypeVar("a")
    box = relay.GlobalTypeVar("Box")
    module = aotc.IRModule()
    module[box] = relay.TypeData(box, [a], [relay.Constructor("Full", [a], box)])
    assert analysis.check_kind(relay.TupleType([a, relay.RefType(box(a))]), module) == kind.Type
    assert analysis.check_kind(shape) == kind.ShapeVar
    assert analysis.check_kind(box) == kind.AdtHandle
    for ty in (relay.TupleType([shape]), relay.FuncType([], shape, [shape]), relay.RefType(shape), box(), box(a, a)):
        with pytest.raises(aotc.AotcError):
            analysis.check_kind(ty, module)


def test_walks_over_types() -> None:
    class Floats(relay.TypeMutator):
        def visit_tensor_type(self, typ: relay.TensorType) -> relay.TensorType:
            return relay.TensorType(typ.shape, "float32")

    ints = relay.TensorType((2,), "int8")
    deep = relay.FuncType([relay.TupleType([ints]), relay.RefType(ints)], ints)
    assert "int8" not in str(Floats().visit(deep))
    relay.TypeVisitor().visit(deep)
    with pytest.raises(NotImplementedError):
        relay.TypeFunctor().visit(deep)
