# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of the operators of ai.onnx.ml that scale and select features, and of linear
models and support vector machines.

Where the standard leaves a case open (which class a score of 0 selects, the scores of a classifier
with one set of coefficients, transforms of a single target), the results are those of ONNX Runtime.

    OPS["Scaler"](x, offset=[1.0], scale=[0.5], node=node)     # (x - 1) * 0.5
    OPS["LinearClassifier"](x, node=node, ...)                 # [labels (N,), scores (N, classes)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import wraps
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Array, did_you_mean_hint, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import Converted, Converter, OnnxNode, Strings, Table, table_by_function_name
from aotc.relay.frontend.recurrent import dense_with_bias
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import select_strings

POST_TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def require_attribute(condition: bool, node: OnnxNode, attribute: str, problem: str) -> None:
    """Raise AotcError (code "onnx-attribute") with the operator and the attribute unless `condition` holds."""
    require("onnx-attribute", condition, lambda: f"attribute {attribute!r} of {node.op_type} {problem}")


def require_known_attribute(node: OnnxNode, attribute: str, value: str, known: Sequence[str]) -> None:
    """Raise AotcError (code "onnx-attribute") unless the text of an attribute is one of `known`."""
    if value not in known:
        text = f"attribute {attribute!r} of {node.op_type} is {value!r}; known: {', '.join(known)}"
        raise AotcError("onnx-attribute", text, hint=did_you_mean_hint(value, known))


def class_labels(node: OnnxNode, ints_attribute: str) -> Array:
    """Return the class labels of a classifier as int64 values: integers, or the positions of strings, which
    `with_string_labels` replaces. Raises AotcError if they are missing or not distinct.
    """
    texts = node.attrs.get("classlabels_strings", ())
    attribute = "classlabels_strings" if texts else ints_attribute
    given = texts or np.asarray(node.attrs.get(ints_attribute, ()), np.int64).tolist()
    require_attribute(len(given) > 0, node, attribute, "is missing: a classifier needs class labels")
    require_attribute(len(set(given)) == len(given), node, attribute, f"repeats a class label: {given[:8]}")
    return np.arange(len(texts)) if texts else np.asarray(given, np.int64)


def with_string_labels(converter: Converter) -> Converter:
    """Return a converter of a classifier whose first result, the labels, are strings if its class labels are."""

    @wraps(converter)
    def convert(*inputs: Expr, node: OnnxNode, **attributes: Any) -> Converted:
        results = converter(*inputs, node=node, **attributes)
        texts = node.attrs.get("classlabels_strings")
        if not texts:
            return results
        assert isinstance(results, Sequence)
        positions, *scores = results
        assert positions is not None and not isinstance(positions, Strings)
        return [Strings(select_strings(texts, positions)), *scores]

    return convert


def feature_rows(x: Expr, node: OnnxNode) -> Expr:
    """Return the input of a model as a matrix (rows, features); a vector is one row. Raises AotcError
    (code "onnx-rank") for other ranks.
    """
    require("onnx-rank", g.rank(x) in (1, 2), f"{node.op_type} needs a matrix (rows, features), got rank {g.rank(x)}")
    return x if g.rank(x) == 2 else g.reshape(x, (1, -1))


def floats_attribute(node: OnnxNode, name: str) -> Array:
    """Return an attribute of floats as a float32 vector; an empty one if it is missing."""
    return np.asarray(node.attrs.get(name, ()), np.float32)


def constant_matrix(values: Array, rows: int, columns: int, node: OnnxNode, attribute: str) -> Expr:
    """Return the values of an attribute as a constant of shape (rows, columns). Raises AotcError if
    their number differs.
    """
    text = f"has {values.size} values; {rows} x {columns} are needed"
    require_attribute(values.size == rows * columns, node, attribute, text)
    return g.constant(values.reshape(rows, columns))


# --- transforms of scores


def _logistic(x: Expr) -> Expr:
    return g.sigmoid(x)


def _softmax(x: Expr) -> Expr:
    return g.call_op("nn.softmax", x, axis=-1)


def _softmax_zero(x: Expr) -> Expr:
    """Return the softmax over those scores of each row (rows, classes) whose absolute values exceed 1e-7.

    A score x of at most 1e-7 in absolute value gives x * exp(-greatest score) / sum, which is nearly 0.
    """
    tiny = g.less_equal(g.absolute(x), 1e-7)
    greatest = g.call_reduction("max", x, (1,), True)
    terms = g.exp(g.sub(x, greatest))
    total = g.call_reduction("sum", g.where(tiny, 0.0, terms), (1,), True)
    return g.div(g.where(tiny, g.mul(x, g.exp(g.negative(greatest))), terms), total)


def _probit(x: Expr) -> Expr:
    """Return the inverse of the normal distribution function, by Winitzki's approximation of the inverse error
    function ("A handy approximation for the error function and its inverse", 2008).
    """
    a, pi = 0.147, 3.14159
    y = g.sub(g.mul(x, 2.0), 1.0)
    log = g.log(g.mul(g.sub(1.0, y), g.add(y, 1.0)))
    v = g.add(g.mul(log, 0.5), 2.0 / (pi * a))
    root = g.sqrt(g.sub(g.sqrt(g.sub(g.mul(v, v), g.mul(log, 1.0 / a))), v))
    return g.mul(g.where(g.less(y, 0.0), g.negative(root), root), 1.41421356)


_TRANSFORMS: Final[dict[str, Any]] = {
    "NONE": lambda x: x,
    "LOGISTIC": _logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transform_scores(scores: Expr, post_transform: str) -> Expr:
    """Return scores (rows, classes or targets) after a post-transform. As in ONNX Runtime, a single
    target is transformed by PROBIT only.
    """
    single = g.dim(scores, 1) == 1 and post_transform != "PROBIT"
    result: Expr = scores if single else _TRANSFORMS[post_transform](scores)
    return result


def scores_of_both_classes(score: Expr, post_transform: str, negate: bool, node: OnnxNode) -> Expr:
    """Return the scores (rows, 2) of a binary classifier that computes the score of its second class
    only, `score` (rows, 1). The score of the first class is 1 - score, or -score if `negate` is True.
    """
    require_attribute(post_transform != "PROBIT", node, "post_transform", "is PROBIT, which is not defined for 1 score")
    if post_transform == "LOGISTIC":
        return g.concat([g.sigmoid(g.negative(score)), g.sigmoid(score)], 1)
    return g.concat([g.negative(score) if negate else g.sub(1.0, score), score], 1)


def labels_of_greatest_scores(scores: Expr, labels: Array) -> Expr:
    """Return the int64 label of the first class with the greatest score, for each row."""
    best = g.call_op("argmax", scores, axis=(1,), keepdims=False)
    return gather_slices(g.constant(labels), best, 0)


# --- features


def _scaler(x: Expr, *, node: OnnxNode) -> Expr:
    offset, scale = floats_attribute(node, "offset"), floats_attribute(node, "scale")
    features = g.dim(x, g.rank(x) - 1) if g.rank(x) else 1
    for name, values in (("offset", offset), ("scale", scale)):
        text = f"has {values.size} values for {features} features; 1 or {features} are needed"
        require_attribute(values.size in (1, features), node, name, text)
    wide = "float64" if g.dtype(x) == "float64" else "float32"
    shifted = g.sub(g.cast(x, wide), g.constant(offset, wide))
    return g.cast(g.mul(shifted, g.constant(scale, wide)), "float32")


def _normalizer(x: Expr, *, norm: str, node: OnnxNode) -> Expr:
    require_known_attribute(node, "norm", norm, ("MAX", "L1", "L2"))
    require("onnx-rank", g.rank(x) in (1, 2), f"Normalizer needs a vector or a matrix, got rank {g.rank(x)}")
    axis = (g.rank(x) - 1,)
    values = g.cast(x, "float32")
    if norm == "L2":
        wide = g.cast(x, "float64") if g.dtype(x) == "float64" else values
        squares = g.cast(g.mul(wide, wide), "float32")
        total = g.call_reduction("sum", squares, axis, True)
        root = g.sqrt(g.div(squares, total))
        scaled = g.where(g.less(values, 0.0), g.negative(root), root)
    else:
        kind, terms = ("max", values) if norm == "MAX" else ("sum", g.absolute(values))
        total = g.call_reduction(kind, terms, axis, True)
        scaled = g.div(values, total)
    return g.where(g.equal(total, 0.0), values, scaled)


def _binarizer(x: Expr, *, threshold: float) -> Expr:
    # an integer is above a threshold exactly if it is above its integer part
    bound = threshold if g.dtype(x).is_float else math.floor(threshold)
    return g.cast(g.greater(x, bound), str(g.dtype(x)))


def _imputer(x: Expr, *, node: OnnxNode) -> Expr:
    kind = "float" if g.dtype(x).is_float else "int64"
    values = np.asarray(node.attrs.get(f"imputed_value_{kind}s", ()), g.dtype(x).numpy)
    missing = node.attrs.get(f"replaced_value_{kind}", 0)
    features = g.dim(x, g.rank(x) - 1) if g.rank(x) else 1
    text = f"has {values.size} values for {features} features; 1 or {features} are needed"
    require_attribute(values.size in (1, features), node, f"imputed_value_{kind}s", text)
    is_missing = g.call_op("isnan", x) if math.isnan(missing) else g.equal(x, missing)
    return g.where(is_missing, g.constant(values), x)


def _feature_vectorizer(*parts: Expr, node: OnnxNode) -> Expr:
    matrices = [feature_rows(part, node) for part in parts]
    given, found = node.attrs.get("inputdimensions"), [g.dim(m, 1) for m in matrices]
    text = f"is {given}, but the inputs have {found} features"
    require_attribute(given is None or list(given) == found, node, "inputdimensions", text)
    return g.concat([g.cast(m, "float32") for m in matrices], 1)


def _array_feature_extractor(x: Expr, indices: Expr) -> Expr:
    picked = gather_slices(x, g.flatten(indices), g.rank(x) - 1)
    return g.reshape(picked, (1, -1)) if g.rank(x) == 1 else picked


def _zip_map(scores: Expr, *, node: OnnxNode) -> Expr:
    """Convert ZipMap: the scores (rows, classes) stay a tensor, of which column k belongs to class label k."""
    labels = node.attrs.get("classlabels_int64s") or node.attrs.get("classlabels_strings") or ()
    require("onnx-rank", g.rank(scores) in (1, 2), f"ZipMap needs a vector or a matrix, got rank {g.rank(scores)}")
    columns = g.dim(scores, g.rank(scores) - 1)
    text = f"has {len(labels)} labels for {columns} columns of scores"
    require_attribute(len(labels) == columns, node, "classlabels_*", text)
    return scores


# --- linear models


def _linear_scores(x: Expr, targets: int, node: OnnxNode) -> Expr:
    """Return x * coefficients + intercepts, (rows, targets), in float32."""
    rows = g.cast(feature_rows(x, node), "float32")
    weight = constant_matrix(floats_attribute(node, "coefficients"), targets, g.dim(rows, 1), node, "coefficients")
    intercepts = floats_attribute(node, "intercepts")
    if not intercepts.size:
        return dense_with_bias(rows, weight, None)
    require_attribute(
        intercepts.size == targets, node, "intercepts", f"has {intercepts.size} values; {targets} are needed"
    )
    return dense_with_bias(rows, weight, g.constant(intercepts))


def _linear_regressor(x: Expr, *, targets: int, post_transform: str, node: OnnxNode) -> Expr:
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    require_attribute(targets > 0, node, "targets", f"is {targets}; at least 1 is needed")
    return transform_scores(_linear_scores(x, targets, node), post_transform)


def _linear_classifier(x: Expr, *, post_transform: str, node: OnnxNode) -> Converted:
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    labels = class_labels(node, "classlabels_ints")
    count = floats_attribute(node, "intercepts").size or len(labels)
    scores = _linear_scores(x, count, node)
    if count == 1:
        named = len(labels) == 2 or not node.attrs.get("classlabels_strings")
        require_attribute(named, node, "classlabels_strings", f"has {len(labels)} labels; 2 are needed for 1 score")
        negative, positive = labels if len(labels) == 2 else (0, 1)
        is_positive = g.greater(g.reshape(scores, (g.dims(scores)[0],)), 0.0)
        label = g.where(is_positive, g.constant(positive, "int64"), g.constant(negative, "int64"))
        if len(labels) != 2:
            return [label, transform_scores(scores, post_transform)]
        return [label, scores_of_both_classes(scores, post_transform, False, node)]
    text = f"has {len(labels)} labels for {count} sets of coefficients"
    require_attribute(len(labels) == count, node, "classlabels_ints", text)
    return [labels_of_greatest_scores(scores, labels), transform_scores(scores, post_transform)]


# --- support vector machines


def _kernel_values(rows: Expr, vectors: Expr, kernel: str, node: OnnxNode) -> Expr:
    """Return the kernel function of each row and each support vector, (rows, support vectors)."""
    given = floats_attribute(node, "kernel_params")
    require_attribute(given.size in (0, 3), node, "kernel_params", f"has {given.size} values; 3 are needed")
    gamma, coef0, degree = map(float, given if given.size else (0.0, 0.0, 0.0))
    if kernel == "RBF":
        difference = g.sub(g.unsqueeze(rows, (1,)), g.unsqueeze(vectors, (0,)))
        distance = g.call_reduction("sum", g.mul(difference, difference), (2,), False)
        return g.exp(g.mul(distance, -gamma))
    product = matmul(rows, g.transpose(vectors, (1, 0)))
    if kernel == "LINEAR":
        return product
    inner = g.add(g.mul(product, gamma), coef0)
    if kernel == "SIGMOID":
        return g.tanh(inner)
    if degree in (2.0, 3.0):
        square = g.mul(inner, inner)
        return square if degree == 2.0 else g.mul(square, inner)
    return g.call_op("power", inner, g.constant(degree, "float32"))


def _svm_kernel(node: OnnxNode, kernel_type: str) -> str:
    require_known_attribute(node, "kernel_type", kernel_type, ("LINEAR", "POLY", "RBF", "SIGMOID"))
    return kernel_type


def _rho(node: OnnxNode, count: int) -> Array:
    rho = floats_attribute(node, "rho")
    require_attribute(rho.size >= count, node, "rho", f"has {rho.size} values; {count} are needed")
    return rho[:count]


def _svm_regressor(
    x: Expr, *, kernel_type: str, n_supports: int, one_class: int, post_transform: str, node: OnnxNode
) -> Expr:
    """Convert SVMRegressor. Its single target has no post-transform, as in ONNX Runtime."""
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    kernel = _svm_kernel(node, kernel_type)
    rows = g.cast(feature_rows(x, node), "float32")
    features, coefficients = g.dim(rows, 1), floats_attribute(node, "coefficients")
    if n_supports > 0:
        vectors = floats_attribute(node, "support_vectors")
        matrix = constant_matrix(vectors, n_supports, features, node, "support_vectors")
        rows = _kernel_values(rows, matrix, kernel, node)
        features = n_supports
    weight = constant_matrix(coefficients, 1, features, node, "coefficients")
    y = dense_with_bias(rows, weight, g.constant(_rho(node, 1)))
    if not one_class:
        return y
    return g.where(g.greater(y, 0.0), g.constant(1.0, "float32"), g.constant(-1.0, "float32"))


def _pairwise_weights(counts: Sequence[int], node: OnnxNode) -> Array:
    """Return the weights (pairs of classes, support vectors) of a support vector classifier.

    The pair (i, j) takes the support vectors of class i with row j - 1 of the coefficients, and those
    of class j with row i.
    """
    total, classes = sum(counts), len(counts)
    coefficients = floats_attribute(node, "coefficients")
    text = f"has {coefficients.size} values; {classes - 1} x {total} are needed"
    require_attribute(coefficients.size == (classes - 1) * total, node, "coefficients", text)
    table = coefficients.reshape(classes - 1, total)
    ends = np.cumsum([0, *counts])
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = np.zeros((len(pairs), total), np.float32)
    for row, (i, j) in zip(weights, pairs, strict=True):
        row[ends[i] : ends[i + 1]] = table[j - 1, ends[i] : ends[i + 1]]
        row[ends[j] : ends[j + 1]] = table[i, ends[j] : ends[j + 1]]
    return weights


def _class_votes(is_first: Expr, classes: int) -> Expr:
    """Return the number of pairs of classes that each class wins, (rows, classes), from which of both
    wins in each pair, (rows, pairs).
    """
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    first, second = np.zeros((2, classes, len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        first[i, k] = second[j, k] = 1
    # small integers in float32: the sums are exact
    votes = dense_with_bias(g.cast(is_first, "float32"), g.constant(first - second), None)
    return g.add(votes, g.constant(second.sum(1)))


def _svm_classifier(x: Expr, *, kernel_type: str, post_transform: str, node: OnnxNode) -> Converted:
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    kernel = _svm_kernel(node, kernel_type)
    labels = class_labels(node, "classlabels_ints")
    rows = g.cast(feature_rows(x, node), "float32")
    counts = [int(n) for n in node.attrs.get("vectors_per_class", ())]
    require_attribute(min(counts, default=0) >= 0, node, "vectors_per_class", f"is negative: {counts[:8]}")
    if not sum(counts):
        return _linear_svm_classifier(rows, labels, post_transform, node)
    text = f"has {len(counts)} values for {len(labels)} class labels"
    require_attribute(len(counts) == len(labels) > 1, node, "vectors_per_class", text)
    vectors = constant_matrix(
        floats_attribute(node, "support_vectors"), sum(counts), g.dim(rows, 1), node, "support_vectors"
    )
    kernels = g.cast(_kernel_values(rows, vectors, kernel, node), "float64")
    weights = _pairwise_weights(counts, node)
    sums = dense_with_bias(kernels, g.constant(weights, "float64"), g.constant(_rho(node, len(weights)), "float64"))
    label = labels_of_greatest_scores(_class_votes(g.greater(sums, 0.0), len(labels)), labels)
    scores = g.cast(sums, "float32")
    if node.attrs.get("prob_a"):
        return [label, transform_scores(_class_probabilities(scores, len(labels), node), post_transform)]
    if len(labels) == 2:
        return [label, scores_of_both_classes(scores, post_transform, post_transform == "NONE", node)]
    return [label, transform_scores(scores, post_transform)]


def _linear_svm_classifier(rows: Expr, labels: Array, post_transform: str, node: OnnxNode) -> Converted:
    coefficients = floats_attribute(node, "coefficients")
    weight = constant_matrix(coefficients, len(labels), g.dim(rows, 1), node, "coefficients")
    bias = np.repeat(_rho(node, 1), len(labels))
    scores = dense_with_bias(rows, weight, g.constant(bias))
    label = labels_of_greatest_scores(scores, labels)
    if len(labels) == 2:
        positive = (coefficients >= 0).all()
        greatest = g.call_reduction("max", scores, (1,), False)
        wins = g.greater_equal(greatest, 0.5) if positive else g.greater(greatest, 0.0)
        label = g.where(wins, g.constant(labels[1], "int64"), label)
    return [label, transform_scores(scores, post_transform)]


def _class_probabilities(scores: Expr, classes: int, node: OnnxNode) -> Expr:
    """Return the probability of each class, (rows, classes), from the scores of pairs of classes."""
    pairs = classes * (classes - 1) // 2
    a, b = floats_attribute(node, "prob_a"), floats_attribute(node, "prob_b")
    for name, values in (("prob_a", a), ("prob_b", b)):
        text = f"has {values.size} values for {pairs} pairs of classes"
        require_attribute(values.size == pairs, node, name, text)
    value = g.add(g.mul(scores, g.constant(a)), g.constant(b))
    wins = g.clip(g.sub(1.0, g.sigmoid(value)), 1e-7, 1 - 1e-7)
    return g.call_op("ml.couple_probabilities", wins, classes=classes)


OPS: Table = {
    **table_by_function_name(_array_feature_extractor, _binarizer, _feature_vectorizer, _imputer),
    **table_by_function_name(_linear_regressor, _normalizer, _scaler, _zip_map),
    "LinearClassifier": with_string_labels(_linear_classifier),
    "SVMClassifier": with_string_labels(_svm_classifier),
    "SVMRegressor": _svm_regressor,
}
