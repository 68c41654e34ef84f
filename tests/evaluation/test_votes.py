from collections import Counter, defaultdict
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.evaluation.votes import expected_best_of, expected_majority, vote_key, weighted_vote

ANSWERS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8)


def majority_by_enumeration(answers, right, k):
    shares = []
    for subset in combinations(answers, k):
        votes = Counter(answer for answer in subset if answer is not None)
        top = [answer for answer, count in votes.items() if count == max(votes.values())]
        shares.append(sum(answer in right for answer in top) / len(top) if top else 0.0)
    return sum(shares) / len(shares)


@given(ANSWERS, st.sets(st.sampled_from(["a", "b"])), st.data())
def test_majority_equals_enumeration_of_all_subsets(answers, right, data):
    k = data.draw(st.integers(1, len(answers)))
    got = expected_majority(answers, [answer in right for answer in answers], k)
    assert got == pytest.approx(majority_by_enumeration(answers, right, k), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "right", "k", "expected"),
    [
        ("aab", "a", 3, 1.0),
        ("aabb", "a", 4, 0.5),  # a tie is broken fairly
        ("aab", "a", 1, 2 / 3),  # one vote: the accuracy
        ("aab", "b", 2, 1 / 3),  # ab or ab: 1/2 each in 2 of 3 pairs
        ("bbba", "a", 4, 0.0),
    ],
)
def test_majority_by_hand(answers, right, k, expected):
    assert expected_majority(list(answers), [a == right for a in answers], k) == pytest.approx(expected)


def test_samples_without_answer_do_not_vote():
    assert expected_majority([None, None, "a"], [False, False, True], 3) == 1.0
    assert expected_majority([None, None], [False, False], 2) == 0.0


def test_sixty_four_samples_are_no_trouble():
    answers = ["a"] * 30 + ["b"] * 29 + [f"x{i}" for i in range(5)]
    correct = [answer == "a" for answer in answers]
    values = [expected_majority(answers, correct, k) for k in (1, 8, 32, 64)]
    assert values[0] == pytest.approx(30 / 64)
    assert values == sorted(values)
    assert values[-1] == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), st.data())
def test_best_of_equals_enumeration_of_all_subsets(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    shares = []
    for subset in combinations(samples, k):
        best = max(score for score, _ in subset)
        tied = [good for score, good in subset if score == best]
        shares.append(sum(tied) / len(tied))
    scores, correct = zip(*samples, strict=True)
    assert expected_best_of(scores, correct, k) == pytest.approx(sum(shares) / len(shares), abs=1e-12)


def test_best_of_by_hand():
    # Of 3 pairs the best-scored (wrong) one is in 2; in the third the next (right) one wins.
    assert expected_best_of([0.9, 0.5, 0.1], [False, True, False], 2) == pytest.approx(1 / 3)


def test_weighted_vote_by_hand():
    answers, correct = ["a", "b", "b", None], [True, False, False, False]
    assert weighted_vote(answers, [0.7, 0.3, 0.3, 0.9], correct) == 1.0
    assert weighted_vote(answers, [0.5, 0.3, 0.3, 0.9], correct) == 0.0
    assert weighted_vote(answers, [0.6, 0.3, 0.3, 0.9], correct) == 0.5  # a tie
    assert weighted_vote([None], [1.0], [False]) == 0.0


@given(ANSWERS)
def test_equal_weights_are_a_majority_vote(answers):
    correct = [answer == "a" for answer in answers]
    expected = expected_majority(answers, correct, len(answers))
    assert weighted_vote(answers, [0.1] * len(answers), correct) == pytest.approx(expected)


def test_weights_that_add_up_in_another_order_still_tie():
    totals = defaultdict(float)
    weights = [0.1, 0.2, 0.3, 0.3, 0.2, 0.1]
    for answer, weight in zip("aaabbb", weights, strict=True):
        totals[answer] += weight
    assert totals["a"] != totals["b"]  # 0.6000000000000001 and 0.6
    assert weighted_vote(list("aaabbb"), weights, [True] * 3 + [False] * 3) == 0.5


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_samples(k):
    with pytest.raises(ValueError, match="expected 1 <= k <= 3"):
        expected_majority(["a"] * 3, [True] * 3, k)
    with pytest.raises(ValueError, match="expected 1 <= k <= 3"):
        expected_best_of([0.1] * 3, [True] * 3, k)


@pytest.mark.parametrize("same", [("0.50", "1/2", r"\frac{1}{2}", "50/100"), ("1,000", "1000", "1000.0"), ("x", " x ")])
def test_answers_that_read_the_same_vote_together(same):
    assert len({vote_key(answer) for answer in same}) == 1


def test_other_answers_stay_apart():
    answers = ["12", "21", "1/2", "-1/2", "x", "y", "1/0", "blue", ""]
    assert len({vote_key(answer) for answer in answers}) == len(answers)
