# SPDX-License-Identifier: Apache-2.0
"""Relay's prelude: algebraic data types (List, Option, Tree, nat) and functions on them, written in
Relay's text format.

mod = aotc.IRModule()
prelude = Prelude(mod)                           # or mod.import_from_std("prelude.rly")
_, cons, nil = mod.get_type("List")
prelude.hd(prelude.map(f, cons(x, nil())))
"""

from functools import cache
from typing import Final

from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.ir import AotcError, require_known_name
from aotc.relay.graph_api import GlobalVar, IRModule, infer_module
from aotc.relay.text.parser import parse

install_operators_and_passes()

_PRELUDE_TEXT: Final = """#[version = "0.0.5"]
type List[A] { Cons(A, List[A]), Nil, }
type Option[A] { Some(A), None, }
type Tree[A] { Rose(A, List[Tree[A]]), }
type nat { Z, S(nat), }
def @id[A](%x: A) -> A { %x }
def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C {
  fn (%x: A) -> C { %f(%g(%x)) }
}
def @flip[A, B, C](%f: fn (A, B) -> C) -> fn (B, A) -> C {
  fn (%b: B, %a: A) -> C { %f(%a, %b) }
}
def @iterate[A](%f: fn (A) -> A, %n: int32) -> fn (A) -> A {
  if (%n == 0) { fn (%x: A) -> A { %x } } else { @compose(%f, @iterate(%f, %n - 1)) }
}
def @hd[A](%l: List[A]) -> A { match? (%l) { Cons(%x, _) => %x } }
def @tl[A](%l: List[A]) -> List[A] { match? (%l) { Cons(_, %rest) => %rest } }
def @nth[A](%l: List[A], %n: int32) -> A { if (%n == 0) { @hd(%l) } else { @nth(@tl(%l), %n - 1) } }
def @update[A](%l: List[A], %n: int32, %x: A) -> List[A] {
  if (%n == 0) { Cons(%x, @tl(%l)) } else { Cons(@hd(%l), @update(@tl(%l), %n - 1, %x)) }
}
def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil }
}
def @foldl[A, B](%f: fn (A, B) -> A, %start: A, %l: List[B]) -> A {
  match (%l) { Cons(%x, %rest) => @foldl(%f, %f(%start, %x), %rest), Nil => %start }
}
def @foldr[A, B](%f: fn (A, B) -> B, %end: B, %l: List[A]) -> B {
  match (%l) { Cons(%x, %rest) => %f(%x, @foldr(%f, %end, %rest)), Nil => %end }
}
def @foldr1[A](%f: fn (A, A) -> A, %l: List[A]) -> A {
  match? (%l) { Cons(%last, Nil) => %last, Cons(%x, %rest) => %f(%x, @foldr1(%f, %rest)) }
}
def @sum(%l: List[int32]) -> int32 {
  @foldl(fn (%a: int32, %b: int32) -> int32 { %a + %b }, 0, %l)
}
def @concat[A](%l: List[A], %more: List[A]) -> List[A] {
  match (%l) { Cons(%x, %rest) => Cons(%x, @concat(%rest, %more)), Nil => %more }
}
def @filter[A](%f: fn (A) -> bool, %l: List[A]) -> List[A] {
  match (%l) {
    Cons(%x, %rest) => { if (%f(%x)) { Cons(%x, @filter(%f, %rest)) } else { @filter(%f, %rest) } },
    Nil => Nil
  }
}
def @zip[A, B](%l: List[A], %m: List[B]) -> List[(A, B)] {
  match ((%l, %m)) { (Cons(%x, %xs), Cons(%y, %ys)) => Cons((%x, %y), @zip(%xs, %ys)), _ => Nil }
}
def @rev[A](%l: List[A]) -> List[A] {
  @foldl(fn (%done: List[A], %x: A) -> List[A] { Cons(%x, %done) }, Nil, %l)
}
def @map_accumr[A, B, C](%f: fn (A, B) -> (A, C), %start: A, %l: List[B]) -> (A, List[C]) {
  match (%l) {
    Cons(%x, %rest) => {
      let %after = @map_accumr(%f, %start, %rest);
      let %made = %f(%after.0, %x);
      (%made.0, Cons(%made.1, %after.1))
    },
    Nil => (%start, Nil)
  }
}
def @map_accuml[A, B, C](%f: fn (A, B) -> (A, C), %start: A, %l: List[B]) -> (A, List[C]) {
  match (%l) {
    Cons(%x, %rest) => {
      let %made = %f(%start, %x);
      let %after = @map_accuml(%f, %made.0, %rest);
      (%after.0, Cons(%made.1, %after.1))
    },
    Nil => (%start, Nil)
  }
}
def @unfoldr[A, B](%f: fn (A) -> Option[(A, B)], %seed: A) -> List[B] {
  match (%f(%seed)) { Some(%made) => Cons(%made.1, @unfoldr(%f, %made.0)), None => Nil }
}
def @unfoldl[A, B](%f: fn (A) -> Option[(A, B)], %seed: A) -> List[B] { @rev(@unfoldr(%f, %seed)) }
def @size[A](%tree: Tree[A]) -> int32 {
  match (%tree) { Rose(_, %below) => 1 + @sum(@map(fn (%t: Tree[A]) -> int32 { @size(%t) }, %below)) }
}
def @tmap[A, B](%f: fn (A) -> B, %tree: Tree[A]) -> Tree[B] {
  match (%tree) {
    Rose(%x, %below) => Rose(%f(%x), @map(fn (%t: Tree[A]) -> Tree[B] { @tmap(%f, %t) }, %below))
  }
}
def @nat_double(%n: nat) -> nat { match (%n) { Z => Z, S(%m) => S(S(@nat_double(%m))) } }
def @nat_add(%n: nat, %m: nat) -> nat { match (%n) { Z => %m, S(%k) => S(@nat_add(%k, %m)) } }
def @nat_iterate[A](%f: fn (A) -> A, %n: nat) -> fn (A) -> A {
  match (%n) { Z => fn (%x: A) -> A { %x }, S(%m) => @compose(%f, @nat_iterate(%f, %m)) }
}
"""
_CORE_TEXT: Final = '#[version = "0.0.5"]\nextern type Storage\n'
#: The files of Relay's standard library; the data type nat of nat.rly is part of the prelude here.
_TEXT_BY_FILE_NAME: Final = {"prelude.rly": _PRELUDE_TEXT, "nat.rly": _PRELUDE_TEXT, "core.rly": _CORE_TEXT}


@cache
def _parse_and_infer_types(text: str) -> IRModule:
    return infer_module(parse(text))


class Prelude:
    """A module into which the prelude is imported; the attribute `prelude.NAME` is the prelude's
    function NAME.
    """

    def __init__(self, mod: IRModule | None = None) -> None:
        self.mod = IRModule() if mod is None else mod
        import_from_std(self.mod, "prelude.rly")

    def __getattr__(self, name: str) -> GlobalVar:
        """Return a function of the module as a global variable. Raises AttributeError if there is
        none of this name.
        """
        try:
            return self.mod.get_global_var(name)
        except AotcError as error:
            raise AttributeError(f"the prelude has no function {name!r}") from error


def import_from_std(module: IRModule, name: str) -> None:
    """Add the data types and functions of a file of the standard library to a module, in place;
    existing definitions of equal names are not replaced.

    Raises AotcError (code "type") for an unknown file.
    """
    require_known_name("type", "part of the prelude", name, _TEXT_BY_FILE_NAME)
    source_module = _parse_and_infer_types(_TEXT_BY_FILE_NAME[name])
    for header, data in source_module.type_definitions.items():
        if header not in module.type_definitions:
            module[header] = data
    module.update({n: f for n, f in source_module.functions.items() if n not in module})
