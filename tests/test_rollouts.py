"""Sampling and checking of rollouts with a scripted engine."""

import polars as pl
import pytest

from grpo_pipeline.config import PromptConfig, SamplingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rollouts import check_rollouts, sample_rollouts
from grpo_pipeline.seeds import derive_id
from grpo_pipeline.tables import conform, from_rows
from tests.labelling.scripted import CharTokenizer, ScriptedEngine, check_many, problem_rows, rollout_row

PROMPTS = PromptBuilder(CharTokenizer(), PromptConfig())


def problems(n=4):
    return from_rows(problem_rows(n), "problems")


def sample(frame, seed=0, max_tokens=60, max_model_len=1000, **address):
    engine = ScriptedEngine(lambda prompt: (0.5, 0, 0, 0), max_model_len=max_model_len)
    address = {"stage": "s", "round": 0} | address
    return sample_rollouts(
        frame, engine, PROMPTS, SamplingConfig(max_tokens=max_tokens), group_size=5, seed=seed, **address
    )


def test_a_group_for_every_problem_as_the_table_has_it():
    result = sample(problems())
    conform(result.frame, "rollouts", "test")
    assert result.frame.height == 20
    assert result.frame["rollout_id"].is_unique().all()
    assert result.frame.group_by("problem_id").agg("group_index")["group_index"].to_list() == [[0, 1, 2, 3, 4]] * 4
    first = result.frame.row(0, named=True)
    assert first["rollout_id"] == derive_id("s", 0, -1, "p0", 0, 0)
    assert first["prompt_token_ids"] == [ord(c) for c in "q0=0?\n"]
    assert CharTokenizer().decode(first["token_ids"]) == first["text"]
    assert len(first["logprobs"]) == len(first["token_ids"])
    assert result.counts == {
        "problems": 4, "prompt_too_long": 0, "rollouts": 20, "truncated": 0,
        "tokens": int(result.frame["token_ids"].list.len().sum()),
    }  # fmt: skip


def test_a_rollout_does_not_depend_on_what_is_sampled_beside_it():
    whole = sample(problems()).frame
    part = sample(problems().filter(pl.col("problem_id") == "p2")).frame
    assert part.equals(whole.filter(pl.col("problem_id") == "p2"))


@pytest.mark.parametrize("other", [{"seed": 1}, {"stage": "t"}, {"round": 1}, {"step": 0}, {"step": 1}])
def test_every_part_of_the_address_gives_other_seeds_and_ids(other):
    base, changed = sample(problems()).frame, sample(problems(), **other).frame
    assert not set(base["seed"]) & set(changed["seed"])
    assert not set(base["rollout_id"]) & set(changed["rollout_id"])


def test_prompts_beyond_the_context_are_dropped_and_counted():
    long = problems().with_columns(
        question=pl.when(pl.col("problem_id") == "p1").then(pl.lit("x" * 99 + "=1?")).otherwise(pl.col("question"))
    )
    result = sample(long, max_model_len=103)
    assert result.counts["prompt_too_long"] == 1
    assert set(result.frame["problem_id"]) == {"p0", "p2", "p3"}
    assert sample(long.head(0)).frame.height == 0


def test_verdicts_by_the_gold_answer():
    rows = [
        rollout_row("p1", 0, "q", "The answer is 1"),
        rollout_row("p1", 1, "q", "The answer is 2"),
        rollout_row("p1", 2, "q", "no"),
        rollout_row("p1", 3, "q", "The answer is SLOW"),
        rollout_row("p1", 4, "q", "The answer is 1", "length"),
        rollout_row("p1", 5, "q", "The answer is 2", "length"),
    ]
    checked = check_rollouts(from_rows(rows, "rollouts"), problems(), check_many, checker_version="7")
    conform(checked, "checked", "test")
    assert checked["verdict"].to_list() == ["correct", "wrong", "no_answer", "timeout", "no_answer", "no_answer"]
    assert checked["answer"].to_list() == ["1", "2", None, "SLOW", None, None]
    assert checked["reason"].to_list()[4:] == ["truncated"] * 2
    assert set(checked["checker_version"]) == {"7"}


def test_the_projects_checker_is_the_default():
    rows = [rollout_row("p1", 0, "q", "The answer is 1."), rollout_row("p1", 1, "q", "The answer is 2.")]
    checked = check_rollouts(from_rows(rows, "rollouts"), problems())
    assert checked["verdict"].to_list() == ["correct", "wrong"]


def test_rollouts_of_unknown_problems_are_refused():
    rows = from_rows([rollout_row("p9", 0, "q", "The answer is 1")], "rollouts")
    with pytest.raises(UserError, match="p9"):
        check_rollouts(rows, problems(), check_many)
