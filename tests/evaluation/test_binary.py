import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import brier_score_loss, roc_auc_score

from grpo_pipeline.evaluation.binary import brier, expected_calibration_error, mid_ranks, roc_auc, spearman

PAIRS = st.lists(st.tuples(st.booleans(), st.integers(0, 10).map(lambda i: i / 10)), min_size=2, max_size=60)


@given(PAIRS)
def test_auc_and_brier_equal_scikit_learns(pairs):
    truth, scores = map(list, zip(*pairs, strict=True))
    if len(set(truth)) == 1:
        assert roc_auc(truth, scores) is None
    else:
        assert roc_auc(truth, scores) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
        assert brier(truth, scores) == pytest.approx(brier_score_loss(truth, scores), abs=1e-12)


def test_auc_of_a_million_steps_is_exact_in_float64():
    truth = np.arange(1_000_000) % 2 == 0
    scores = np.arange(1_000_000) / 1e6
    assert roc_auc(truth, scores) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


def test_calibration_error_by_hand():
    # Bin [0.2, 0.3): mean p 0.25, share 0.5. Bin [0.9, 1]: mean p 0.95, share 1 (p = 1 belongs to it).
    truth, p = [True, False, True, True], [0.25, 0.25, 0.9, 1.0]
    assert expected_calibration_error(truth, p) == pytest.approx((2 * 0.25 + 2 * 0.05) / 4)


def test_perfectly_calibrated_is_zero_and_sure_but_wrong_is_one():
    assert expected_calibration_error([True, False], [0.5, 0.5]) == pytest.approx(0.0)
    assert expected_calibration_error([False, True], [1.0, 0.0]) == pytest.approx(1.0)


def test_nothing_to_measure():
    assert brier([], []) is None
    assert expected_calibration_error([], []) is None
    assert roc_auc([], []) is None
    assert spearman([1.0], [2.0]) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_rank_correlation_equals_scipys(pairs):
    left, right = map(list, zip(*pairs, strict=True))
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert spearman(left, right) is None
    else:
        assert spearman(left, right) == pytest.approx(spearmanr(left, right).statistic, abs=1e-12)


def test_mid_ranks_by_hand():
    assert mid_ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
