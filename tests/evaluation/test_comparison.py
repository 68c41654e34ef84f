"""Means, paired differences and their standard errors against numbers worked out by hand."""

from math import sqrt

import polars as pl
import pytest

from grpo_pipeline.config import ClaimConfig
from grpo_pipeline.evaluation.comparison import Measurement, compare, compare_steps, judge_claims


def measurement(variant, seed, accuracies, costs=None, metrics=None):
    figures = pl.DataFrame(
        {
            "policy_id": [variant] * len(accuracies),
            "problem_id": [f"{seed}-{i}" for i in range(len(accuracies))],
            "metric": ["accuracy"] * len(accuracies),
            "value": [float(a) for a in accuracies],
        }
    )
    return Measurement(variant, seed, figures, costs or {"policy_tokens": 100 * seed}, metrics)


def rows_of(frame):
    return {(r["variant"], r["against"], r["metric"]): r for r in frame.to_dicts()}


CLAIM = ClaimConfig(claim="a beats b", better="a", worse="b")


def test_means_and_both_standard_errors():
    # Seed 1: mean 0.5, variance 1/3 over 4 problems. Seed 2: mean 1/4, variance 1/4.
    row = rows_of(compare([measurement("a", 1, [0, 0, 1, 1]), measurement("a", 2, [0, 0, 0, 1])], []))
    accuracy = row["a", "", "accuracy"]
    assert accuracy["value"] == pytest.approx(0.375)
    assert accuracy["standard_error_seeds"] == pytest.approx(0.125)  # |0.5 - 0.25| / 2
    assert accuracy["standard_error_problems"] == pytest.approx(sqrt((1 / 3 + 1 / 4) / 4) / 2)
    assert (accuracy["n_seeds"], accuracy["n_problems"]) == (2, 8)
    tokens = row["a", "", "policy_tokens"]
    assert (tokens["value"], tokens["standard_error_seeds"], tokens["n_problems"]) == (150.0, 50.0, 0)
    assert tokens["standard_error_problems"] is None


def test_differences_are_taken_problem_by_problem():
    # Each problem is 0.5 better, whatever its own difficulty: nothing is left of the spread over problems.
    measured = [measurement("a", 1, [1.0, 0.5, 0.75]), measurement("b", 1, [0.5, 0.0, 0.25])]
    difference = rows_of(compare(measured, [CLAIM]))["a", "b", "accuracy"]
    assert difference["value"] == pytest.approx(0.5)
    assert difference["standard_error_problems"] == pytest.approx(0.0)
    assert difference["standard_error_seeds"] is None
    # Rows in another order change nothing; a problem that one of them lacks is left out.
    shuffled = Measurement("b", 1, measured[1].figures.reverse().head(2), {"policy_tokens": 1})
    assert rows_of(compare([measured[0], shuffled], [CLAIM]))["a", "b", "accuracy"]["n_problems"] == 2


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (([1, 1, 1, 0.9], [1, 1, 1, 1]), ([0, 0, 0.1, 0], [0, 0, 0, 0]), "holds"),
        (([0, 0, 0.1, 0], [0, 0, 0, 0]), ([1, 1, 1, 0.9], [1, 1, 1, 1]), "reversed"),
        # Large in one seed and opposite in the other: the seeds' error says that nothing is known.
        (([1, 1, 1, 0.9], [0, 0, 0, 0]), ([0, 0, 0.1, 0], [0.9, 1, 1, 1]), "no difference seen"),
    ],
)
def test_a_claim_needs_two_of_the_larger_standard_error(a, b, verdict):
    measured = [measurement("a", seed, values) for seed, values in enumerate(a)]
    measured += [measurement("b", seed, values) for seed, values in enumerate(b)]
    (tested,) = judge_claims(compare(measured, [CLAIM]), [CLAIM])
    assert tested.verdict == verdict


def test_a_single_seed_decides_nothing():
    measured = [measurement("a", 1, [1.0, 0.9, 1.0]), measurement("b", 1, [0.0, 0.0, 0.1])]
    (tested,) = judge_claims(compare(measured, [CLAIM]), [CLAIM])
    assert (tested.difference, tested.standard_error, tested.verdict) == (
        pytest.approx(2.8 / 3),
        None,
        "no difference seen",
    )


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="'b' was not measured; there are: a"):
        compare([measurement("a", 1, [1.0])], [CLAIM])
    with pytest.raises(ValueError, match=r"measured with seeds \[1\] and \[2\]"):
        compare([measurement("a", 1, [1.0]), measurement("b", 2, [1.0])], [CLAIM])
    with pytest.raises(ValueError, match="no difference of 'greedy'"):
        claim = CLAIM.model_copy(update={"metric": "greedy"})
        judge_claims(compare([measurement("a", 1, [1.0]), measurement("b", 1, [1.0])], [CLAIM]), [claim])


def test_steps_are_averaged_over_seeds_and_only_first_updates_count():
    def metrics(rewards):
        return pl.DataFrame({"exploration_step": [1.0, 1.0, 2.0], "reward": rewards, "kl": [None, None, 0.5]})

    measured = [measurement("a", 1, [1], metrics=metrics([0.0, 9.0, 1.0]))]
    measured += [measurement("a", 2, [1], metrics=metrics([1.0, 9.0, 1.0])), measurement("b", 1, [1])]
    rows = compare_steps(measured, ["reward", "kl", "prm_score"]).sort("metric", "step").to_dicts()
    assert [(r["metric"], r["step"], r["value"], r["n_seeds"]) for r in rows] == [
        ("kl", 2, 0.5, 2),
        ("reward", 1, 0.5, 2),
        ("reward", 2, 1.0, 2),
    ]
    assert rows[1]["standard_error_seeds"] == pytest.approx(0.5)
    assert compare_steps([measurement("b", 1, [1])], ["reward"]).height == 0


def test_a_claim_on_votes_is_one_on_as_many_as_were_sampled():
    """So that the same claims hold for any evaluation.samples."""

    def votes(variant, seed, at_4, at_16):
        one = measurement(variant, seed, [0.5, 0.5])
        rows = [(name, value) for name, values in at_4.items() for value in values]
        rows += [(name, value) for name, values in at_16.items() for value in values]
        figures = pl.DataFrame(
            {
                "policy_id": [variant] * len(rows),
                "problem_id": [f"{seed}-{i % 2}" for i in range(len(rows))],
                "metric": [name for name, _ in rows],
                "value": [float(value) for _, value in rows],
            }
        )
        return Measurement(variant, seed, figures, one.costs)

    measured = [votes("a", seed, {"maj4": [1, 0]}, {"maj16": [1, 1]}) for seed in (1, 2)]
    measured += [votes("b", seed, {"maj4": [1, 0]}, {"maj16": [0, 1]}) for seed in (1, 2)]
    claim = CLAIM.model_copy(update={"metric": "maj"})
    (tested,) = judge_claims(compare(measured, [claim]), [claim])
    assert (tested.claim.metric, tested.difference) == ("maj16", 0.5)
    with pytest.raises(ValueError, match="no difference of 'pass' between 'a' and 'b'"):
        judge_claims(compare(measured, [claim]), [CLAIM.model_copy(update={"metric": "pass"})])
