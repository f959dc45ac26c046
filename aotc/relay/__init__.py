# SPDX-License-Identifier: Apache-2.0
"""The graph IR under Relay's names: expressions, operators, passes, text, and `build`.

from aotc import relay
x = relay.var("x", shape=(1, 3))
lib = relay.build(aotc.IRModule.from_expr(relay.nn.relu(x)), "llvm")
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any as _Any

from aotc.ir.lazy import lazy_names
from aotc.relay.expr import install_printer as _install_printer
from aotc.relay.text import printer as _printer

if TYPE_CHECKING:
    from aotc.ir.types import FuncType as FuncType
    from aotc.ir.types import TensorType as TensorType
    from aotc.ir.types import TupleType as TupleType
    from aotc.ir.types import Type as Type
    from aotc.relay import analysis as analysis
    from aotc.relay import annotation as annotation
    from aotc.relay import build_module as build_module
    from aotc.relay import dataflow_pattern as dataflow_pattern
    from aotc.relay import expr as expr
    from aotc.relay import expr_functor as expr_functor
    from aotc.relay import frontend as frontend
    from aotc.relay import image as image
    from aotc.relay import instrument as instrument
    from aotc.relay import nn as nn
    from aotc.relay import op as op
    from aotc.relay import scope_builder as scope_builder
    from aotc.relay import testing as testing
    from aotc.relay import transform as transform
    from aotc.relay import vm as vm
    from aotc.relay.binding import bind as bind
    from aotc.relay.binding import bind_params_by_name as bind_params_by_name
    from aotc.relay.expr import Call as Call
    from aotc.relay.expr import Constant as Constant
    from aotc.relay.expr import Expr as Expr
    from aotc.relay.expr import Function as Function
    from aotc.relay.expr import GlobalVar as GlobalVar
    from aotc.relay.expr import If as If
    from aotc.relay.expr import Let as Let
    from aotc.relay.expr import Tuple as Tuple
    from aotc.relay.expr import TupleGetItem as TupleGetItem
    from aotc.relay.expr import Var as Var
    from aotc.relay.expr_functor import ExprFunctor as ExprFunctor
    from aotc.relay.expr_functor import ExprMutator as ExprMutator
    from aotc.relay.expr_functor import ExprVisitor as ExprVisitor
    from aotc.relay.op.binary import add as add
    from aotc.relay.op.binary import atan2 as atan2
    from aotc.relay.op.binary import bitwise_and as bitwise_and
    from aotc.relay.op.binary import bitwise_or as bitwise_or
    from aotc.relay.op.binary import bitwise_xor as bitwise_xor
    from aotc.relay.op.binary import divide as divide
    from aotc.relay.op.binary import equal as equal
    from aotc.relay.op.binary import floor_divide as floor_divide
    from aotc.relay.op.binary import floor_mod as floor_mod
    from aotc.relay.op.binary import greater as greater
    from aotc.relay.op.binary import greater_equal as greater_equal
    from aotc.relay.op.binary import left_shift as left_shift
    from aotc.relay.op.binary import less as less
    from aotc.relay.op.binary import less_equal as less_equal
    from aotc.relay.op.binary import logical_and as logical_and
    from aotc.relay.op.binary import logical_or as logical_or
    from aotc.relay.op.binary import logical_xor as logical_xor
    from aotc.relay.op.binary import maximum as maximum
    from aotc.relay.op.binary import minimum as minimum
    from aotc.relay.op.binary import mod as mod
    from aotc.relay.op.binary import multiply as multiply
    from aotc.relay.op.binary import not_equal as not_equal
    from aotc.relay.op.binary import power as power
    from aotc.relay.op.binary import right_shift as right_shift
    from aotc.relay.op.binary import subtract as subtract
    from aotc.relay.op.binary import trunc_divide as trunc_divide
    from aotc.relay.op.binary import trunc_mod as trunc_mod
    from aotc.relay.op.binary import where as where
    from aotc.relay.op.cast import cast as cast
    from aotc.relay.op.cast import clip as clip
    from aotc.relay.op.create import arange as arange
    from aotc.relay.op.create import full as full
    from aotc.relay.op.create import full_like as full_like
    from aotc.relay.op.create import ones as ones
    from aotc.relay.op.create import ones_like as ones_like
    from aotc.relay.op.create import zeros as zeros
    from aotc.relay.op.create import zeros_like as zeros_like
    from aotc.relay.op.elementwise import abs as abs
    from aotc.relay.op.elementwise import acos as acos
    from aotc.relay.op.elementwise import acosh as acosh
    from aotc.relay.op.elementwise import asin as asin
    from aotc.relay.op.elementwise import asinh as asinh
    from aotc.relay.op.elementwise import atan as atan
    from aotc.relay.op.elementwise import atanh as atanh
    from aotc.relay.op.elementwise import bitwise_not as bitwise_not
    from aotc.relay.op.elementwise import ceil as ceil
    from aotc.relay.op.elementwise import copy as copy
    from aotc.relay.op.elementwise import cos as cos
    from aotc.relay.op.elementwise import cosh as cosh
    from aotc.relay.op.elementwise import erf as erf
    from aotc.relay.op.elementwise import exp as exp
    from aotc.relay.op.elementwise import expm1 as expm1
    from aotc.relay.op.elementwise import floor as floor
    from aotc.relay.op.elementwise import isfinite as isfinite
    from aotc.relay.op.elementwise import isinf as isinf
    from aotc.relay.op.elementwise import isnan as isnan
    from aotc.relay.op.elementwise import log as log
    from aotc.relay.op.elementwise import log1p as log1p
    from aotc.relay.op.elementwise import log2 as log2
    from aotc.relay.op.elementwise import log10 as log10
    from aotc.relay.op.elementwise import logical_not as logical_not
    from aotc.relay.op.elementwise import negative as negative
    from aotc.relay.op.elementwise import round as round
    from aotc.relay.op.elementwise import rsqrt as rsqrt
    from aotc.relay.op.elementwise import sigmoid as sigmoid
    from aotc.relay.op.elementwise import sign as sign
    from aotc.relay.op.elementwise import sin as sin
    from aotc.relay.op.elementwise import sinh as sinh
    from aotc.relay.op.elementwise import sqrt as sqrt
    from aotc.relay.op.elementwise import tan as tan
    from aotc.relay.op.elementwise import tanh as tanh
    from aotc.relay.op.elementwise import trunc as trunc
    from aotc.relay.op.fast_math import fast_erf as fast_erf
    from aotc.relay.op.fast_math import fast_exp as fast_exp
    from aotc.relay.op.fast_math import fast_tanh as fast_tanh
    from aotc.relay.op.index import gather as gather
    from aotc.relay.op.index import gather_nd as gather_nd
    from aotc.relay.op.index import one_hot as one_hot
    from aotc.relay.op.index import take as take
    from aotc.relay.op.join import concatenate as concatenate
    from aotc.relay.op.join import repeat as repeat
    from aotc.relay.op.join import split as split
    from aotc.relay.op.join import stack as stack
    from aotc.relay.op.join import tile as tile
    from aotc.relay.op.layout import layout_transform as layout_transform
    from aotc.relay.op.reduce import all as all
    from aotc.relay.op.reduce import any as any
    from aotc.relay.op.reduce import argmax as argmax
    from aotc.relay.op.reduce import argmin as argmin
    from aotc.relay.op.reduce import logsumexp as logsumexp
    from aotc.relay.op.reduce import max as max
    from aotc.relay.op.reduce import mean as mean
    from aotc.relay.op.reduce import min as min
    from aotc.relay.op.reduce import prod as prod
    from aotc.relay.op.reduce import std as std
    from aotc.relay.op.reduce import sum as sum
    from aotc.relay.op.reduce import variance as variance
    from aotc.relay.op.scan import cumprod as cumprod
    from aotc.relay.op.scan import cumsum as cumsum
    from aotc.relay.op.scatter import scatter_elements as scatter_elements
    from aotc.relay.op.scatter import scatter_nd as scatter_nd
    from aotc.relay.op.shape import broadcast_to as broadcast_to
    from aotc.relay.op.shape import expand_dims as expand_dims
    from aotc.relay.op.shape import ndarray_size as ndarray_size
    from aotc.relay.op.shape import reshape as reshape
    from aotc.relay.op.shape import shape_of as shape_of
    from aotc.relay.op.shape import squeeze as squeeze
    from aotc.relay.op.shape import transpose as transpose
    from aotc.relay.op.slice import reverse as reverse
    from aotc.relay.op.slice import reverse_sequence as reverse_sequence
    from aotc.relay.op.slice import strided_slice as strided_slice
    from aotc.relay.op.slice import trilu as trilu
    from aotc.relay.op.sort import argsort as argsort
    from aotc.relay.op.sort import sort as sort
    from aotc.relay.op.sort import topk as topk
    from aotc.relay.scope_builder import ScopeBuilder as ScopeBuilder
    from aotc.relay.text.parser import parse as parse
    from aotc.relay.text.parser import parse_expr as parse_expr
    from aotc.relay.text.printer import astext as astext
    from aotc.relay_api.build import build as build
    from aotc.relay_api.executor import create_executor as create_executor
    from aotc.relay_api.expr import Any as Any
    from aotc.relay_api.expr import const as const
    from aotc.relay_api.expr import fromtext as fromtext
    from aotc.relay_api.expr import scalar_type as scalar_type
    from aotc.relay_api.expr import var as var
    from aotc.runtime.params import load_param_dict as load_param_dict
    from aotc.runtime.params import save_param_dict as save_param_dict


_install_printer(_printer.astext, _printer.to_text)


def _prepare() -> None:
    importlib.import_module("aotc.driver.wiring").install()


def _operators() -> Mapping[str, _Any]:
    found: Mapping[str, _Any] = importlib.import_module("aotc.relay_api.expr").op_namespace("")
    return found


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aotc.relay_api.build": "build",
        "aotc.relay_api.executor": "create_executor",
        "aotc.relay_api.expr": "Any const fromtext scalar_type var",
        "aotc.ir.types": "FuncType TensorType TupleType Type",
        "aotc.relay.binding": "bind bind_params_by_name",
        "aotc.relay.expr": "Call Constant Expr Function GlobalVar If Let Tuple TupleGetItem Var",
        "aotc.relay.expr_functor": "ExprFunctor ExprMutator ExprVisitor",
        "aotc.relay.op.reduce": "logsumexp std",
        "aotc.relay.scope_builder": "ScopeBuilder",
        "aotc.relay.text.parser": "parse parse_expr",
        "aotc.relay.text.printer": "astext",
        "aotc.runtime.params": "load_param_dict save_param_dict",
    },
    submodules="analysis annotation build_module dataflow_pattern expr expr_functor frontend image instrument nn op "
    "scope_builder testing transform vm",
    more=_operators,
    prepare=_prepare,
)
