"""`relabel` and `audit` on artifacts in a store."""

import json

import polars as pl
import pytest
from typer.testing import CliRunner

from grpo_pipeline.answers import check_many
from grpo_pipeline.cli import app
from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.inspect.opening import open_artifact
from grpo_pipeline.labelling.commands import audited_set
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.rules import Rule, relabel
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.models.loading import load_tokenizer
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.rollouts import check_rollouts
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows, read
from tests.engines.fake_server import FakeServer
from tests.labelling.contract import TINY
from tests.labelling.scripted import CharTokenizer, ScriptedEngine, rollout_row
from tests.labelling.test_judge import ScriptedJudge


@pytest.fixture
def labels(tmp_path):
    """A store with generated problems, their gold solutions and one wrong one, and labels."""
    rows = generate_problems(3, 0, 2, 3)
    rows = [{"problem_id": problem_id(r["question"], r["gold_answer"]), "split": "train"} | r for r in rows]
    problems = from_rows(rows, "problems")
    solutions = [rollout_row(row["problem_id"], 0, f"={row['gold_answer']}?\n", row["gold_solution"]) for row in rows]
    wrong = rows[0]["gold_solution"].splitlines()
    wrong[0] = wrong[0].split("=")[0] + "= 100000"
    solutions.append(rollout_row(rows[0]["problem_id"], 1, f"={rows[0]['gold_answer']}?\n", "\n".join(wrong)))
    rollouts = from_rows(solutions, "rollouts")
    checked = check_rollouts(rollouts, problems)
    steps = split_rollouts(rollouts, CharTokenizer(), "line")
    result = label_steps(
        problems, rollouts, checked, steps, ScriptedEngine(lambda prompt: (0.5, 0, 0, 0)),
        LabellingConfig(completions=4, max_tokens=40), SamplingConfig(), seed=0, checker=check_many,
    )  # fmt: skip
    store = Store(tmp_path / "run")

    def build(stage, parents, **frames):
        return store.build(StageSpec(stage, 1, 0, {}, parents, 0), 1, lambda _: ShardResult(frames))

    first = build("problems", (), problems=problems)
    second = build("rollouts", (first,), rollouts=rollouts, checked=checked, steps=steps)
    return build("step_labels", (first, second), completions=result.completions, step_labels=result.step_labels)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_relabel_writes_a_new_artifact_with_the_rules_labels(labels):
    result = run("relabel", labels, "--rule", "threshold", "--threshold", "0.5")
    assert result.exit_code == 0
    new = open_artifact(result.stdout.splitlines()[0])
    assert new.manifest().parents[0].fingerprint == labels.fingerprint
    expected = relabel(labels.read("step_labels"), Rule("threshold", 0.5)).sort("rollout_id", "step_index")
    assert new.read("step_labels").sort("rollout_id", "step_index").equals(expected)
    assert read("step_labels", labels.root, stage="relabel").height == expected.height


def test_relabel_by_consensus_with_a_second_artifact(labels):
    result = run("relabel", labels, "--rule", "consensus", "--judge", labels)
    new = open_artifact(result.stdout.splitlines()[0])
    found, given = (ref.read("step_labels").sort("rollout_id", "step_index") for ref in (new, labels))
    assert found.drop("second_opinion").equals(given.drop("second_opinion"))
    assert found["second_opinion"].equals(given["hard"], check_names=False)


def test_a_judge_behind_a_server_gives_the_second_opinion(labels):
    """It calls all solutions right; so the labels of the wrong one, whose end is 0, are not confirmed."""
    engine = ScriptedJudge(lambda prompt: [r"\boxed{-1}"], tokenizer=load_tokenizer(TINY))
    with FakeServer(engine, str(TINY)) as fake:
        result = run("judge", labels, "--model", TINY, "--base-url", fake.url, "--votes", 2)
    judgements = result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[1] == "4 of 4 solutions judged"
    opinions = open_artifact(judgements).read("judgements")
    assert opinions.select(pl.col("hard").unique(), pl.col("n_votes").unique(), pl.col("n_agree").unique()).rows() == [
        (1, 2, 2)
    ]
    result = run("relabel", labels, "--rule", "consensus", "--judge", judgements)
    found = open_artifact(result.stdout.splitlines()[0]).read("step_labels")
    assert found["second_opinion"].to_list() == [1] * found.height
    given = labels.read("step_labels").group_by("rollout_id").agg(bad=(pl.col("hard") == 0).any())
    kept = found.join(given, on="rollout_id").group_by("bad").agg(pl.col("hard").null_count(), n=pl.len())
    assert kept.filter("bad").select(pl.col("hard") == pl.col("n")).item()
    assert kept.filter(~pl.col("bad"))["hard"].item() == 0


def test_audit_writes_its_figures_and_knows_the_oracle(labels, tmp_path):
    assert run("audit", labels, "--json", tmp_path / "audit.json").exit_code == 0
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["rows"]["rollouts"] == 4
    assert report["oracle"]["steps"] == report["rows"]["steps"]


def test_audit_of_a_relabelled_artifact_finds_its_parents_tables(labels, tmp_path):
    new = run("relabel", labels).stdout.splitlines()[0]
    assert run("audit", new, "--json", tmp_path / "audit.json").exit_code == 0
    assert json.loads((tmp_path / "audit.json").read_text())["rows"]["completions"] > 0


def test_the_oracle_calls_gold_solutions_good_and_the_wrong_one_bad_from_its_error_on(labels):
    truth = audited_set(labels).truth
    wrong = pl.col("rollout_id").str.ends_with("r1")
    assert truth.filter(~wrong)["is_good"].all()
    assert not truth.filter(wrong)["is_good"].any()


def test_mistakes_are_named(labels, tmp_path):
    for arguments, message in [
        (("relabel", labels, "--rule", "softest"), "hard, threshold"),
        (("relabel", labels, "--rule", "threshold"), "threshold in"),
        (("relabel", labels, "--after", "never"), "unlabelled, zero, keep"),
        (("judge", labels, "--model", TINY, "--engine", "server"), "--base-url"),
        (
            ("relabel", labels, "--rule", "consensus", "--judge", Store(labels.root).artifacts(stage="problems")[0]),
            "neither judgements",
        ),
        (("audit", tmp_path), "no finished artifact"),
        (("audit", labels, "--json", tmp_path / "no" / "folder.json"), "cannot be written"),
        (("audit", Store(labels.root).artifacts(stage="problems")[0]), "is neither in it"),
    ]:
        with pytest.raises(UserError, match=message):
            run(*arguments)
