"""Label rules against hand-worked numbers."""

import polars as pl
import pytest
from scipy.stats import binomtest

from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.evidence import Tally, wilson_interval
from grpo_pipeline.labelling.rules import Rule, relabel
from grpo_pipeline.tables import from_rows


def row(rollout, step, correct=0, wrong=0, no_answer=0, truncated=0, timeout=0, source="sampled", **labels):
    n = correct + wrong + no_answer + truncated
    sampled = {"soft": correct / n if n else None, "hard": int(correct > 0) if n else None}
    return (
        {
            "rollout_id": rollout,
            "problem_id": "p",
            "step_index": step,
            "n_completions": n if source == "sampled" else 0,
            "n_correct": correct,
            "n_wrong": wrong,
            "n_no_answer": no_answer,
            "n_truncated": truncated,
            "n_timeout": timeout,
            "ci_low": None,
            "ci_high": None,
            "label_source": source,
        }
        | (sampled if source == "sampled" else {"soft": None, "hard": None})
        | labels
    )


def table(*rows):
    return from_rows(list(rows), "step_labels")


def test_wilson_interval_equals_an_independent_one():
    for n in (1, 2, 8, 64, 1000):
        for k in {0, 1, n // 3, n // 2, n - 1, n}:
            expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
            assert wilson_interval(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
            frame = relabel(table(row("a", 0, k, n - k)), Rule("hard"))
            assert frame.select("ci_low", "ci_high").row(0) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilson_interval_of_a_textbook_case():
    # 8 draws, none correct: z^2 / (n + z^2) = 3.841459 / 11.841459.
    assert wilson_interval(0, 8) == pytest.approx((0.0, 0.3244076))


def test_tally_never_counts_undecided_as_wrong():
    tally = Tally(n_correct=1, n_wrong=2, n_no_answer=1, n_truncated=4, n_timeout=8)
    assert tally.soft("not_correct") == 1 / 8
    assert tally.soft("exclude") == 1 / 4
    assert Tally(n_timeout=8).soft("not_correct") is None
    assert Tally(n_timeout=8).hard("not_correct") is None
    assert Tally(n_truncated=8).hard("not_correct") == 0
    assert Tally(n_truncated=8).hard("exclude") is None


def test_hard_rule_follows_the_truncated_setting():
    labels = table(row("a", 0, 1, 2, 1, 4, 8), row("a", 1, truncated=8), row("a", 2, timeout=8))
    counted = relabel(labels, Rule("hard"))
    assert counted["soft"].to_list() == [1 / 8, 0.0, None]
    assert counted["hard"].to_list() == [1, 0, None]
    left_out = relabel(labels, Rule("hard", truncated="exclude"))
    assert left_out["n_completions"].to_list() == [4, 0, 0]
    assert left_out["soft"].to_list() == [1 / 4, None, None]
    assert left_out["hard"].to_list() == [1, None, None]
    assert relabel(left_out, Rule("hard")).equals(counted)


def test_outcomes_and_implied_labels_stay():
    labels = table(
        row("a", 0, source="implied", hard=1),
        row("a", 1, source="unlabelled"),
        row("a", 2, source="outcome", soft=0.0, hard=0),
    )
    assert relabel(labels, Rule("hard")).equals(labels)
    by_share = relabel(labels, Rule("threshold", threshold=0.5))
    assert by_share["hard"].to_list() == [None, None, 0]


def test_threshold_rule():
    labels = table(row("a", 0, 4, 4), row("a", 1, 3, 5), row("a", 2, source="outcome", soft=1.0, hard=1))
    assert relabel(labels, Rule("threshold", threshold=0.5))["hard"].to_list() == [1, 0, 1]


def test_threshold_rule_leaves_steps_without_a_soft_label():
    labels = table(row("a", 0, 1, 1, soft=None))
    found = relabel(labels, Rule("threshold", threshold=0.5))
    assert found.select("soft", "hard", "ci_low").row(0) == (None, None, None)
    assert relabel(labels, Rule("hard"))["hard"].to_list() == [1]


def test_interval_rule_is_null_in_between():
    # Wilson of 8/8 is (0.676, 1), of 0/8 (0, 0.324), of 4/8 (0.215, 0.785).
    labels = table(row("a", 0, 8), row("a", 1, 4, 4), row("a", 2, 0, 8))
    assert relabel(labels, Rule("interval", threshold=0.5))["hard"].to_list() == [1, None, 0]


def test_first_error_rule():
    labels = table(
        row("a", 0, 2, 6), row("a", 1, 0, 8), row("a", 2, 1, 7), row("a", 3, source="outcome", soft=0.0, hard=0),
        row("b", 0, timeout=8), row("b", 1, 1, 0),
    )  # fmt: skip
    dropped = relabel(labels, Rule("first_error"))
    assert dropped["hard"].to_list() == [1, 0, None, None, None, 1]
    assert dropped["soft"].to_list() == [0.25, 0.0, None, None, None, 1.0]
    zero = relabel(labels, Rule("first_error", after="zero"))
    assert zero["hard"].to_list() == [1, 0, 0, 0, None, 1]
    assert zero["label_source"].to_list() == ["sampled", "sampled", "implied", "implied", "sampled", "sampled"]
    assert relabel(labels, Rule("first_error", after="keep"))["hard"].to_list() == [1, 0, 1, 0, None, 1]


def test_progress_rule():
    # Soft labels 0.5, 0.25, 0.25, 0, 0.125: relative changes -0.5, 0, -1, undefined (then as hard).
    counts = [(4, 4), (2, 6), (2, 6), (0, 8), (1, 7)]
    labels = table(*(row("a", step, *count) for step, count in enumerate(counts)), row("b", 0, 0, 8))
    assert relabel(labels, Rule("progress", threshold=-0.4))["hard"].to_list() == [1, 0, 1, 0, 1, 0]
    assert relabel(labels, Rule("progress", threshold=-0.5))["hard"].to_list() == [1, 1, 1, 0, 1, 0]


def test_consensus_keeps_solutions_whose_first_error_a_judge_confirms():
    labels = table(
        row("a", 0, 1), row("a", 1, 0, 1),  # judge agrees: step 1
        row("b", 0, 0, 1), row("b", 1, 0, 1),  # judge says step 1
        row("c", 0, 1), row("c", 1, 1),  # judge agrees: none
        row("d", 0, 1),  # not judged
    )  # fmt: skip
    judge = pl.DataFrame(
        {"rollout_id": list("aabbcc"), "step_index": [0, 1] * 3, "hard": [1, 0, 1, 0, 1, None]},
    )
    found = relabel(labels, Rule("consensus"), judge)
    assert found["hard"].to_list() == [1, 0, None, None, 1, 1, None]
    assert found["second_opinion"].to_list() == [1, 0, 1, 0, 1, None, None]


def test_labels_from_before_the_second_opinion_are_taken():
    labels = table(row("a", 0, 1), row("a", 1, 0, 1))
    assert relabel(labels.drop("second_opinion"), Rule("hard")).equals(relabel(labels, Rule("hard")))


def test_relabel_keeps_the_order_of_rows():
    labels = table(row("b", 1, 1), row("a", 0, 1), row("b", 0, 0, 1))
    assert relabel(labels, Rule("hard")).select("rollout_id", "step_index").rows() == [("b", 1), ("a", 0), ("b", 0)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "softest"},
        {"name": "threshold"},
        {"name": "interval", "threshold": 1.5},
        {"name": "hard", "threshold": 0.5},
        {"name": "progress", "threshold": float("inf")},
        {"name": "threshold", "threshold": float("nan")},
    ],
)
def test_impossible_rules_are_refused(arguments):
    with pytest.raises(UserError, match=r"rule"):
        Rule(**arguments)


def test_consensus_without_a_judge_is_refused():
    with pytest.raises(UserError, match="judge"):
        relabel(table(row("a", 0, 1)), Rule("consensus"))


def test_consensus_with_a_judge_of_other_solutions_is_refused():
    judge = pl.DataFrame({"rollout_id": ["b"], "step_index": [0], "hard": [1]})
    with pytest.raises(UserError, match="no opinion on any of the 1 labelled solutions"):
        relabel(table(row("a", 0, 1)), Rule("consensus"), judge)
