"""`jaxgnn.metrics` against scikit-learn and against OGB's definitions, in NumPy and under `jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import metrics

ROWS, TASKS = 60, 4


@pytest.fixture(scope="module")
def sklearn_metrics():
    return pytest.importorskip("sklearn.metrics")


@pytest.fixture(scope="module")
def data():
    """Binary labels of tasks, some unknown, the last task of one class alone; scores with ties."""
    rng = np.random.default_rng(0)
    labels = (rng.random((ROWS, TASKS)) < 0.3).astype(np.float32)
    labels[:, -1] = 1
    labels[rng.random(labels.shape) < 0.2] = np.nan
    scores = rng.integers(-4, 5, labels.shape).astype(np.float32) / 4
    mask = rng.random(ROWS) < 0.8
    classes, predicted = rng.integers(0, 5, (2, ROWS))
    classes, predicted = classes.astype(np.int32), predicted.astype(np.int32) % 4
    return labels, scores, mask, classes, predicted


def per_task(function, labels, scores, mask):
    """OGB's mean: over the tasks, of their known labels."""
    values = []
    for column, predictions in zip(labels.T, scores.T, strict=True):
        known = mask & (column == column)
        if 0 < column[known].sum() < known.sum() or function.__name__ in ("error", "share"):
            values.append(function(column[known], predictions[known]))
    return np.mean(values)


def test_scores_equal_those_of_scikit_learn_with_ties_unknown_labels_and_masks(
    data, sklearn_metrics
):
    labels, scores, mask, classes, predicted = data

    def error(true, predictions):
        return np.sqrt(np.mean((true - predictions.astype(np.float64)) ** 2))

    def share(true, predictions):
        return np.mean(true == (predictions > 0))

    known = np.nan_to_num(labels)
    expected = {
        "roc_auc": per_task(sklearn_metrics.roc_auc_score, labels, scores, mask),
        "average_precision": per_task(
            sklearn_metrics.average_precision_score, labels, scores, mask
        ),
        "rmse": per_task(error, labels, scores, mask),
        "mae": np.nanmean(np.where(mask[:, None], abs(labels - scores), np.nan), axis=0).mean(),
        "accuracy": per_task(share, labels, scores, mask),
        "one_task": sklearn_metrics.roc_auc_score(known[mask, 0], scores[mask, 0]),
        "micro": sklearn_metrics.f1_score(known[mask], scores[mask] > 0, average="micro"),
        "macro": sklearn_metrics.f1_score(known[mask], scores[mask] > 0, average="macro"),
        "micro_of_classes": sklearn_metrics.f1_score(
            classes[mask], predicted[mask], average="micro"
        ),
        "macro_of_classes": sklearn_metrics.f1_score(
            classes[mask], predicted[mask], average="macro"
        ),
    }

    def all_scores(labels, scores, mask, classes, predicted):
        xp = jnp if isinstance(labels, jax.Array) else np
        known = xp.nan_to_num(labels)
        positive = (scores > 0).astype(labels.dtype)
        return {
            "roc_auc": metrics.roc_auc(labels, scores, mask),
            "average_precision": metrics.average_precision(labels, scores, mask),
            "rmse": metrics.rmse(labels, scores, mask),
            "mae": metrics.mae(labels, scores, mask),
            "accuracy": metrics.accuracy(labels, positive, mask),
            "one_task": metrics.roc_auc(known[:, 0], scores[:, 0], mask),
            "micro": metrics.micro_f1(known, positive, mask),
            "macro": metrics.macro_f1(known, positive, mask),
            "micro_of_classes": metrics.micro_f1(classes, predicted, mask),
            "macro_of_classes": metrics.macro_f1(classes, predicted, mask, num_classes=7),
        }

    for name, value in all_scores(*data).items():
        assert isinstance(value, float), name
        np.testing.assert_allclose(value, expected[name], rtol=1e-7, err_msg=name)
    for name, value in jax.jit(all_scores)(*map(jnp.asarray, data)).items():
        assert value.dtype == jnp.float32, name
        np.testing.assert_allclose(value, expected[name], rtol=2e-6, err_msg=name)
    np.testing.assert_allclose(
        metrics.macro_f1(classes, predicted, mask), expected["macro_of_classes"], rtol=1e-12
    )


def test_ranks_of_links_are_ogbs():
    rng = np.random.default_rng(1)
    positives = rng.integers(0, 9, 12).astype(np.float32)
    negatives = rng.integers(0, 9, (12, 7)).astype(np.float32)
    above = (negatives > positives[:, None]).sum(1)
    ranks = 1 + (above + (negatives >= positives[:, None]).sum(1)) / 2
    shared = negatives.ravel()
    among = (shared > positives[:, None]).sum(1) + (shared >= positives[:, None]).sum(1)
    expected = {
        "mrr": np.mean(1 / ranks),
        "shared": np.mean(1 / (1 + among / 2)),
        "hits": np.mean(positives > np.sort(shared)[-20]),
        "few": 1.0,
    }

    def all_scores(positives, negatives):
        shared = negatives.reshape(-1)
        return {
            "mrr": metrics.mrr(positives, negatives),
            "shared": metrics.mrr(positives, shared),
            "hits": metrics.hits_at_k(positives, shared, 20),
            "few": metrics.hits_at_k(positives, shared, 85),
        }

    for found in (all_scores(positives, negatives), jax.jit(all_scores)(positives, negatives)):
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)
    assert 0 < expected["hits"] < 1


def test_what_is_not_defined_is_nan():
    ones, scores = np.ones(5, np.float32), np.arange(5, dtype=np.float32)
    none = np.zeros(5, bool)
    undefined = [
        metrics.roc_auc(ones, scores),
        metrics.average_precision(1 - ones, scores),
        metrics.roc_auc(scores > 2, np.where(scores == 1, np.nan, scores)),
        metrics.accuracy(ones, ones, none),
        metrics.micro_f1(np.zeros((5, 2)), np.zeros((5, 2))),
        metrics.macro_f1(np.zeros(0, int), np.zeros(0, int)),
        metrics.mae(np.full(5, np.nan), scores),
        metrics.hits_at_k(scores[:0], scores, 1),
        metrics.mrr(scores[:0], scores),
        metrics.mrr(scores, np.append(scores, np.nan)),
    ]
    assert np.isnan(undefined).all(), undefined
    # A NaN that does not count does not matter; bfloat16 scores are compared as they are.
    mask = scores != 1
    assert metrics.roc_auc(scores > 2, np.where(mask, scores, np.nan), mask) == 1
    assert metrics.roc_auc(scores > 2, scores.astype(jnp.bfloat16)) == 1
    # Integers that float32 would round to one number.
    assert metrics.roc_auc(jnp.array([0, 1]), jnp.array([2**24, 2**24 + 1])) == 1


def test_macro_f1_counts_classes_that_the_labels_dtype_does_not_hold():
    for dtype in (np.uint8, np.uint32, np.int8, np.bool_, np.float16):
        labels, predictions = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
        assert metrics.macro_f1(labels, predictions) == pytest.approx(2 / 3)
        for xp in (np, jnp):
            score = metrics.macro_f1(xp.asarray(labels), xp.asarray(predictions), num_classes=3000)
            assert score == pytest.approx(2 / 3), (dtype, xp)
    labels, predictions = np.array([0, 255], np.uint8), np.array([256, 255], np.int32)
    assert metrics.macro_f1(labels, predictions) == pytest.approx(1 / 3)
    large = np.array([0, 3000], np.float16)
    assert metrics.macro_f1(large, large) == 1
    assert metrics.macro_f1(np.zeros(2), np.array([np.nan, 1])) == 0


@pytest.mark.usefixtures("strict")
def test_operands_of_several_dtypes_are_taken_under_strict_promotion():
    labels, scores = jnp.array([0, 1, 1]), jnp.array([0.0, 1.0, 2.0])
    narrow = scores.astype(jnp.bfloat16)
    for true, values in ((labels, scores), (labels > 0, narrow), (labels, labels)):
        assert metrics.roc_auc(true, values) == 1
        assert metrics.average_precision(true, values) == 1
    assert metrics.micro_f1(labels[:, None] > 0, labels[:, None]) == 1
    assert metrics.accuracy(labels, scores) == pytest.approx(2 / 3)
    assert metrics.macro_f1(labels, labels, num_classes=2) == 1
    assert metrics.hits_at_k(narrow, scores, 2) == pytest.approx(1 / 3)
    assert metrics.mrr(narrow, scores) == metrics.mrr(scores, scores)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: metrics.accuracy(x, x[:2]), r"labels, predictions: expected one shape"),
        (lambda x: metrics.mae(x, x, x), r"mask: expected bool\[3\], got float64\[3\]"),
        (lambda x: metrics.hits_at_k(x, x, 0), "k: expected an integer from 1"),
        (lambda x: metrics.mrr(x, x[:2, None]), r"negatives: expected the shape"),
        (lambda x: metrics.roc_auc(x, np.array(list("abc"))), "^scores: expected an array of"),
        (lambda x: metrics.average_precision(x, x[:2]), "labels, scores: expected one shape"),
    ],
)
def test_refusals(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(np.arange(3.0))


def test_macro_f1_of_classes_needs_their_number_under_jit():
    with pytest.raises(ValueError, match="num_classes: expected the number of classes under jit"):
        jax.jit(metrics.macro_f1)(jnp.arange(3), jnp.arange(3))


@pytest.mark.parametrize(("dtype", "label"), [("bfloat16", 257), ("float16", 2049)])
def test_classes_are_not_rounded_to_those_of_16_bit_predictions(dtype, label):
    labels, predictions = jnp.array([label]), jnp.array([label - 1], dtype)
    for score in (metrics.accuracy, metrics.micro_f1, metrics.macro_f1):
        assert score(labels, predictions) == 0


@pytest.mark.parametrize("module", [np, jnp])
def test_macro_f1_of_any_classes(module, sklearn_metrics):
    for labels, predictions in (([-1, 1, 1, -1], [-1, 1, -1, -1]), ([7, 900, 7], [7, 7, -3])):
        found = metrics.macro_f1(module.asarray(labels), module.asarray(predictions))
        expected = sklearn_metrics.f1_score(labels, predictions, average="macro")
        assert float(found) == pytest.approx(expected)
    with pytest.raises(ValueError, match="labels: expected classes from 0 to 2, got 4"):
        metrics.macro_f1(module.asarray([0, 1]), module.asarray([0, 4]), num_classes=3)


def test_values_that_another_dtype_would_change():
    found = metrics.macro_f1(np.array([np.inf, 0.0]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(found, 1 / 3)
    with pytest.raises(ValueError, match="predictions: expected integers that int32 holds"):
        metrics.accuracy(jnp.array([0]), np.array([2**32]))
    with pytest.raises(ValueError, match="labels: expected an array, got lists of different"):
        metrics.accuracy([[1], [1, 2]], [1, 1])
    found = metrics.accuracy(jnp.array([0, 17]), jnp.array([0, 17]).astype(jnp.float8_e4m3fn))
    assert found == 0.5
