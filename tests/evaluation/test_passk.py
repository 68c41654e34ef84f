from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.evaluation.passk import pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_equals_enumeration_of_all_subsets(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    subsets = list(combinations(correct, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(correct), sum(correct), k)[0] == pytest.approx(expected, abs=1e-12)


def test_by_hand_and_vectorised_with_a_k_for_each_problem():
    # 1 - C(2,2)/C(4,2) = 5/6; 1 - 3/5; all or none correct.
    got = pass_at_k([4, 5, 3, 3], [2, 2, 3, 0], [2, 1, 3, 3])
    assert got == pytest.approx([5 / 6, 2 / 5, 1.0, 0.0])


def test_large_counts_do_not_overflow():
    assert pass_at_k(10_000, 1, 5_000)[0] == pytest.approx(0.5)
    assert np.isfinite(pass_at_k(10_000, 3, 9_999)).all()


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=r"pass@k|correct"):
        pass_at_k(n, c, k)


def test_no_problems():
    assert pass_at_k([], [], 3).size == 0
