# SPDX-License-Identifier: Apache-2.0
"""Classical pipelines of scikit-learn, XGBoost and LightGBM, exported to ONNX with the rows that they are tried on.

python -m tests.zoo.classical_pipelines        # writes tests/frontend/classical_pipelines.zip

Needs the optional extra `zoo`. The archive has NAME/model.onnx, and NAME/INPUT.pb for each input, a TensorProto.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

ARCHIVE: Final = Path(__file__).parents[1] / "frontend" / "classical_pipelines.zip"
ROWS: Final = 24
_TRAINING_ROWS: Final = 150
_FEATURES: Final = 5
_CITIES: Final = ("Lima", "Oslo", "Zürich", "東京", "New York")
_WORDS: Final = (
    "the", "a", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "émile", "42", "won't", "up-to-date", "naïve",
)  # fmt: skip
#: The date of files in the archive, the same for each run.
_DATE: Final = (2026, 1, 1, 0, 0, 0)


def numbers(rows: int, missing: float = 0) -> Any:
    """Return features (rows, 5) as float32, of which a part is NaN."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, _FEATURES)).astype(np.float32) * np.float32([1, 10, 0.1, 1, 3])
    x[rng.random(x.shape) < missing] = np.nan
    return x


def classes(x: Any, count: int = 3) -> Any:
    """Return class numbers of features, in about equal parts."""
    score = np.nan_to_num(x) @ np.float32([1, 0.2, -3, 0.5, -0.3])
    return np.searchsorted(np.quantile(score, np.arange(1, count) / count), score)


def columns(rows: int) -> Any:
    """Return a table of columns of pandas' types: numbers, integers, truth values and categories."""
    import pandas

    rng = np.random.default_rng(rows + 7)
    return pandas.DataFrame(
        {
            "age": rng.integers(18, 90, rows).astype(np.int64),
            "income": rng.normal(30_000, 9_000, rows).astype(np.float32),
            "city": np.array(_CITIES, object)[rng.integers(0, len(_CITIES), rows)],
            "kind": np.array(["a", "b", "c"], object)[rng.integers(0, 3, rows)],
            "member": rng.random(rows) < 0.5,
        }
    )


def texts(rows: int) -> Any:
    rng = np.random.default_rng(rows + 3)
    return np.array([" ".join(rng.choice(_WORDS, rng.integers(1, 9))) for _ in range(rows)], object)


def _estimators() -> dict[str, Callable[[], Any]]:
    """Return constructors of estimators on numbers, by name of the pipeline."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neighbors, neural_network, svm, tree
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.cluster import KMeans
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.multioutput import MultiOutputRegressor
    from xgboost import XGBClassifier, XGBRegressor

    few = {"n_estimators": 8, "max_depth": 4}
    return {
        "logistic regression": linear_model.LogisticRegression,
        "logistic regression of two classes": linear_model.LogisticRegression,
        "ridge classifier": linear_model.RidgeClassifier,
        "stochastic gradient classifier": lambda: linear_model.SGDClassifier(random_state=0, loss="log_loss"),
        "perceptron": lambda: linear_model.Perceptron(random_state=0),
        "support vectors": lambda: svm.SVC(kernel="rbf"),
        "support vectors with probabilities": lambda: svm.SVC(kernel="poly", probability=True, random_state=0),
        "nu support vectors": lambda: svm.NuSVC(nu=0.3, kernel="sigmoid", gamma=0.05),
        "decision tree classifier": lambda: tree.DecisionTreeClassifier(max_depth=5, random_state=0),
        "random forest classifier": lambda: ensemble.RandomForestClassifier(random_state=0, **few),
        "extra trees classifier": lambda: ensemble.ExtraTreesClassifier(random_state=0, **few),
        "gradient boosting classifier": lambda: ensemble.GradientBoostingClassifier(random_state=0, **few),
        "ada boost classifier": lambda: ensemble.AdaBoostClassifier(n_estimators=6, random_state=0),
        "bagging classifier": lambda: ensemble.BaggingClassifier(n_estimators=4, random_state=0),
        "voting classifier": lambda: ensemble.VotingClassifier(
            [("l", linear_model.LogisticRegression()), ("t", tree.DecisionTreeClassifier(max_depth=3, random_state=0))],
            voting="soft",
            flatten_transform=False,
        ),
        "stacking classifier": lambda: ensemble.StackingClassifier(
            [("l", linear_model.LogisticRegression()), ("t", tree.DecisionTreeClassifier(max_depth=3, random_state=0))]
        ),
        "Gaussian naive Bayes": naive_bayes.GaussianNB,
        "nearest neighbors classifier": lambda: neighbors.KNeighborsClassifier(3),
        "linear discriminant analysis": discriminant_analysis.LinearDiscriminantAnalysis,
        "quadratic discriminant analysis": discriminant_analysis.QuadraticDiscriminantAnalysis,
        "neural network classifier": lambda: neural_network.MLPClassifier(
            hidden_layer_sizes=(8,), max_iter=60, random_state=0
        ),
        "calibrated classifier": lambda: CalibratedClassifierCV(linear_model.LogisticRegression(), cv=2),
        "one against the rest": lambda: OneVsRestClassifier(linear_model.LogisticRegression()),
        "XGBoost classifier": lambda: XGBClassifier(random_state=0, **few),
        "LightGBM classifier": lambda: LGBMClassifier(random_state=0, verbose=-1, **few),
        "linear regression": linear_model.LinearRegression,
        "elastic net": lambda: linear_model.ElasticNet(alpha=0.01),
        "Bayesian ridge": linear_model.BayesianRidge,
        "support vector regression": svm.SVR,
        "decision tree regressor": lambda: tree.DecisionTreeRegressor(max_depth=5, random_state=0),
        "random forest regressor": lambda: ensemble.RandomForestRegressor(random_state=0, **few),
        "gradient boosting regressor": lambda: ensemble.GradientBoostingRegressor(random_state=0, **few),
        "nearest neighbors regressor": lambda: neighbors.KNeighborsRegressor(3),
        "neural network regressor": lambda: neural_network.MLPRegressor(
            hidden_layer_sizes=(8,), max_iter=60, random_state=0
        ),
        "several targets": lambda: MultiOutputRegressor(linear_model.Ridge()),
        "Poisson regression": lambda: linear_model.PoissonRegressor(max_iter=50),
        "XGBoost regressor": lambda: XGBRegressor(random_state=0, **few),
        "LightGBM regressor": lambda: LGBMRegressor(random_state=0, verbose=-1, **few),
        "k means": lambda: KMeans(4, n_init=2, random_state=0),
    }


def _transformers() -> dict[str, Callable[[], Any]]:
    """Return constructors of transformers of numbers, each of which precedes a logistic regression."""
    from sklearn import decomposition, feature_selection, impute, preprocessing
    from sklearn.pipeline import make_union

    return {
        "standard scaler": preprocessing.StandardScaler,
        "scaler to a range": preprocessing.MinMaxScaler,
        "robust scaler": preprocessing.RobustScaler,
        "scaler by the largest value": preprocessing.MaxAbsScaler,
        "normalizer": preprocessing.Normalizer,
        "binarizer": preprocessing.Binarizer,
        "bins": lambda: preprocessing.KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform"),
        "polynomial features": lambda: preprocessing.PolynomialFeatures(2),
        "power transform": preprocessing.PowerTransformer,
        "principal components": lambda: decomposition.PCA(3),
        "truncated singular values": lambda: decomposition.TruncatedSVD(3, random_state=0),
        "best features": lambda: feature_selection.SelectKBest(k=3),
        "features of variance": lambda: feature_selection.VarianceThreshold(0.5),
        "union of features": lambda: make_union(preprocessing.StandardScaler(), decomposition.PCA(2)),
        "missing values by the mean": impute.SimpleImputer,
        "missing values by the median": lambda: impute.SimpleImputer(strategy="median"),
        "missing values by the most frequent": lambda: impute.SimpleImputer(strategy="most_frequent"),
    }


def _pipelines_of_numbers() -> Iterator[tuple[str, Any, Any]]:
    from sklearn.base import is_regressor
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = numbers(_TRAINING_ROWS)
    for name, make in _estimators().items():
        estimator = make()
        y = classes(x, 2 if "two classes" in name else 3)
        if name == "several targets":
            y = np.stack([y, -y], 1).astype(np.float32)
        elif is_regressor(estimator):
            y = (np.abs(x[:, 0]) + y).astype(np.float32)
        elif name in ("support vectors", "random forest classifier", "nearest neighbors classifier"):
            y = np.array(["low", "middle", "hoch"])[y]
        yield name, make_pipeline(StandardScaler(), estimator).fit(x, y), numbers(ROWS)
    for name, make in _transformers().items():
        missing = 0.2 if "missing" in name else 0
        x = numbers(_TRAINING_ROWS, missing)
        yield name, make_pipeline(make(), LogisticRegression(max_iter=300)).fit(x, classes(x)), numbers(ROWS, missing)


def _pipelines_of_columns() -> Iterator[tuple[str, Any, Any]]:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    table = columns(_TRAINING_ROWS)
    y = np.array(["no", "yes"])[(table["age"] + 20 * (table["kind"] == "a") > 60).astype(int)]
    encoders = {
        "categories as flags": OneHotEncoder(handle_unknown="ignore"),
        "categories as numbers": OrdinalEncoder(),
        "frequent categories": OneHotEncoder(drop="first"),
    }
    for name, encoder in encoders.items():
        rest = (StandardScaler(), ["age", "income"])
        transformer = make_column_transformer((encoder, ["city", "kind"]), rest)
        yield name, make_pipeline(transformer, LogisticRegression(max_iter=300)).fit(table, y), columns(ROWS)
    transformer = make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["age", "income"]))
    forest = RandomForestClassifier(n_estimators=8, max_depth=4, random_state=0)
    yield "forest of a table", make_pipeline(transformer, forest).fit(table, y), columns(ROWS)


def _pipelines_of_texts() -> Iterator[tuple[str, Any, Any]]:
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
    from sklearn.pipeline import make_pipeline

    x = texts(_TRAINING_ROWS)
    y = np.array([len(text.split()) % 3 for text in x])
    pairs = {
        "counted words": (CountVectorizer(token_pattern="[a-zA-Zé]+"), MultinomialNB()),
        "weighted words": (TfidfVectorizer(token_pattern="[a-zA-Z0-9]+"), LogisticRegression()),
        "pairs of words": (TfidfVectorizer(ngram_range=(1, 2), token_pattern="[a-z]+"), ComplementNB()),
        "words that occur": (
            CountVectorizer(binary=True, token_pattern="[a-z]+", stop_words=["the", "a"]),
            BernoulliNB(),
        ),
        "letters": (TfidfVectorizer(analyzer="char"), LogisticRegression()),
    }
    for name, (vectorizer, estimator) in pairs.items():
        yield name, make_pipeline(vectorizer, estimator).fit(x, y), texts(ROWS)


def pipelines() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each pipeline, the fitted pipeline, and rows to try it on: an array, or a table."""
    yield from _pipelines_of_numbers()
    yield from _pipelines_of_columns()
    yield from _pipelines_of_texts()


# --- export


def _register_converters() -> None:
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator
    from xgboost import XGBClassifier, XGBRegressor

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    regression = shape_calculator.calculate_linear_regressor_output_shapes
    classification = shape_calculator.calculate_linear_classifier_output_shapes
    for make, convert in ((LGBMClassifier, convert_lightgbm), (XGBClassifier, convert_xgboost)):
        update_registered_converter(make, make.__name__, classification, convert, options=options)
    update_registered_converter(LGBMRegressor, "LGBMRegressor", regression, convert_lightgbm, options={"split": None})
    update_registered_converter(XGBRegressor, "XGBRegressor", regression, convert_xgboost)


def _exported(pipeline: Any, rows: Any) -> tuple[Any, dict[str, Any]]:
    """Return a pipeline as an ONNX model, and its inputs by name."""
    from onnx import helper
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import BooleanTensorType, FloatTensorType, Int64TensorType, StringTensorType

    types = {"f": FloatTensorType, "i": Int64TensorType, "b": BooleanTensorType, "O": StringTensorType}
    if hasattr(rows, "columns"):
        arrays = {
            name: rows[name].to_numpy(object if rows[name].dtype.kind in ("O", "T") else None) for name in rows.columns
        }
        inputs = {name: array.reshape(-1, 1) for name, array in arrays.items()}
    else:
        inputs = {"x": rows.reshape(len(rows), -1)}
    initial = [(name, types[x.dtype.kind]([None, x.shape[1]])) for name, x in inputs.items()]
    # a tensor of scores in place of a list of maps
    options = {id(pipeline): {"zipmap": False}} if hasattr(pipeline, "predict_proba") else None
    model = to_onnx(pipeline, initial_types=initial, target_opset={"": 18, "ai.onnx.ml": 3}, options=options)
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            # each machine has this locale, which the operator would not take by itself
            node.attribute.append(helper.make_attribute("locale", "C.UTF-8"))
    used = {value.name for value in model.graph.input}
    return model, {name: x for name, x in inputs.items() if name in used}


def main() -> None:
    """Write the archive."""
    from onnx import numpy_helper

    _register_converters()
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, pipeline, rows in pipelines():
            model, inputs = _exported(pipeline, rows)
            files = {f"{key}.pb": numpy_helper.from_array(x, key) for key, x in inputs.items()}
            for file, message in {"model.onnx": model, **files}.items():
                info = zipfile.ZipInfo(f"{name}/{file}", _DATE)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, message.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
