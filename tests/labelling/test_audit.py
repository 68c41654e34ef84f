"""The audit finds planted defects, and nothing in a clean set."""

from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.labelling.audit import AuditedSet, audit
from grpo_pipeline.labelling.audit_report import render_audit
from grpo_pipeline.labelling.label import label_steps
from tests.labelling.scripted import ScriptedEngine, check_many, make_world


def labelled(chances, solutions=None, truth=None, **config):
    world = make_world(
        solutions
        or [(1, ["a long first line", "b", "The answer is 1"], "stop"), (2, ["c", "d", "The answer is 9"], "stop")]
    )
    config = LabellingConfig(**{"completions": 2, "max_tokens": 60} | config)
    result = label_steps(
        *world.label_args(), ScriptedEngine(chances), config, SamplingConfig(max_tokens=200), seed=0, checker=check_many
    )
    return AuditedSet(*world.label_args(), result.completions, result.step_labels, truth)


def always(*chances):
    return lambda prompt: chances


def codes(data):
    return {finding.code: finding for finding in audit(data).findings}


@pytest.fixture
def clean():
    return labelled(always(1.0, 0, 0, 0))


def test_a_clean_set_has_no_findings(clean):
    report = audit(clean)
    assert report.findings == []
    assert report.rows == {"problems": 3, "rollouts": 2, "checked": 2, "steps": 6, "completions": 8, "step_labels": 6}
    assert report.by_position[0] == {
        "step_index": 0, "n": 2, "labelled": 2, "hard_mean": 1.0, "soft_mean": 1.0,
        "sampled": 2, "implied": 0, "outcome": 0, "unlabelled": 0,
    }  # fmt: skip
    assert report.by_position[2]["outcome"] == 2
    assert report.by_position[2]["hard_mean"] == 0.5


def test_undecided_completions():
    found = labelled(lambda prompt: (0, 0, 1.0, 0) if "d\n" in prompt else (0, 0, 0, 1.0))
    report = audit(found)
    # Prefixes a, ab, c time out (6 draws), cd is cut off (2 draws).
    assert (report.undecided["timeout"], report.undecided["truncated"], report.undecided["share"]) == (6, 2, 1.0)
    assert report.undecided["without_label"] == 3
    assert codes(found)["undecided"].severity == "warning"


def test_false_zeros_are_those_before_a_success():
    # No success after line 1, always after line 2: the zero of line 1 is false, in both solutions.
    found = labelled(lambda prompt: (float(prompt.count("\n") >= 3), 0, 0, 0))
    report = audit(found)
    assert report.impossible == {"steps": 2, "share": 1.0}
    assert "step 0: 0 of 2, but step 2 has a success" in codes(found)["false_zero"].examples[0]
    assert "step 0: 0 of 2, but step 1 has a success" in codes(found)["false_zero"].examples[1]


def test_answers_that_cannot_be_found():
    found = labelled(always(0, 1.0, 0, 0), [(1, ["a", "I give up"], "stop"), (1, ["b", "The answer is 1"], "stop")])
    report = audit(found)
    assert report.extraction == {"completions": 4, "completions_share": 1.0, "rollouts": 1, "rollouts_share": 0.5}
    assert any("no idea" in example for example in codes(found)["no_answer"].examples)
    assert any("I give up" in example for example in codes(found)["no_answer"].examples)


def test_labels_that_follow_length():
    solutions = [(1, ["x" * n, "The answer is 1"], "stop") for n in (2, 4, 8, 16, 32, 64)]
    found = labelled(lambda prompt: (float(prompt.count("x") >= 16), 0, 0, 0), solutions)
    labels, lengths = [0, 0, 0, 1, 1, 1], [3, 5, 9, 17, 33, 65]
    expected = pl.DataFrame({"a": labels, "b": lengths}).select(pl.corr("a", "b")).item()
    assert audit(found).correlation["characters"] == pytest.approx(expected)
    assert audit(found).correlation["position"] is None  # all at position 0
    assert "length" in codes(found)


def test_duplicates(clean):
    doubled = replace(clean, step_labels=pl.concat([clean.step_labels, clean.step_labels.head(1)]))
    assert codes(doubled)["duplicate_key"].severity == "error"
    assert audit(doubled).duplicates["keys"] == 1
    same = labelled(always(1.0, 0, 0, 0), [(1, ["a", "The answer is 1"], "stop")] * 3)
    assert audit(same).duplicates["solutions"] == 2
    question = pl.when(pl.col("problem_id") == "p0").then(pl.lit("Q1 = 1")).otherwise(pl.col("question"))
    twice = replace(clean, problems=clean.problems.with_columns(question=question))
    assert codes(twice)["duplicate_question"].examples == ("q1 1",)


def test_evaluation_problems_among_the_labelled(clean):
    split = pl.when(pl.col("problem_id") == "p1").then(pl.lit("eval")).otherwise(pl.lit("train"))
    found = codes(replace(clean, problems=clean.problems.with_columns(split=split)))
    assert found["eval_labelled"].severity == "error"
    assert found["eval_labelled"].examples == ("p1r0",)


def test_questions_shared_between_train_and_eval(clean):
    extra = clean.problems.head(1).with_columns(
        problem_id=pl.lit("other"), split=pl.lit("eval"), question=pl.lit("Q2  =2 ?")
    )
    found = codes(replace(clean, problems=pl.concat([clean.problems, extra])))
    assert found["train_eval_overlap"].examples[0].startswith("problem p2")


def test_oracle_agreement(clean):
    # Labels by hand: solution 0 has 1, 1, 1, solution 1 has 1, 1, 0.
    truth = clean.steps.select("rollout_id", "step_index").with_columns(
        is_good=pl.Series([True, True, True, True, False, False])
    )
    oracle = audit(replace(clean, truth=truth)).oracle
    assert oracle["steps"] == 6
    assert oracle["hard_accuracy"] == pytest.approx(5 / 6)
    assert oracle["false_one_rate"] == 0.5
    assert oracle["false_zero_rate"] == 0.0
    assert oracle["soft_brier"] == pytest.approx(1 / 6)


def test_an_empty_set_is_no_error(clean):
    empty = AuditedSet(*(frame.clear() for frame in (
        clean.problems, clean.rollouts, clean.checked, clean.steps, clean.completions, clean.step_labels
    )))  # fmt: skip
    assert audit(empty).findings == []


def test_the_report_shows_findings_and_figures():
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(render_audit(audit(labelled(always(0, 0, 0, 1.0)))))
    text = console.export_text()
    assert "Labels by step position" in text
    assert "undecided: 100% of the completions are undecided (0 cut off, 8 timed out)" in text
