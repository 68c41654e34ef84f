"""What label_steps must give with every engine, on the embedded model: checks that each engine's tests call."""

from pathlib import Path

import polars as pl

from grpo_pipeline.config import LabellingConfig, PromptConfig
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.evaluation.oracle import judge_rollouts
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rollouts import check_rollouts, sample_rollouts
from grpo_pipeline.tables import from_rows
from tests.labelling.scripted import World

SAMPLING = SamplingParams(max_tokens=96)
TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"


def solved_world(engine, problems=12, solutions=2, sampling=SAMPLING):
    """Generated problems with an engine's own solutions."""
    rows = [
        {"problem_id": problem_id(row["question"], row["gold_answer"]), "split": "train"} | row
        for row in generate_problems(problems, 31, 2, 4)
    ]
    frame = from_rows(rows, "problems")
    sampled = sample_rollouts(
        frame, engine, PromptBuilder(engine.tokenizer, PromptConfig()), sampling,
        group_size=solutions, stage="test", round=0, seed=3,
    ).frame  # fmt: skip
    return World(frame, sampled, check_rollouts(sampled, frame), split_rollouts(sampled, engine.tokenizer, "line"))


def label(world, engine, sampling=SAMPLING, ledger=None, **config):
    return label_steps(*world.label_args(), engine, LabellingConfig(**config), sampling, seed=8, ledger=ledger)


def check_greedy_labels_are_the_same(engine, reference, world):
    """Without chance two engines of the same float32 weights give the same texts, counts and labels."""
    sampling = SamplingParams(temperature=0.0, max_tokens=96)
    ours, theirs = (label(world, one, sampling, completions=1) for one in (engine, reference))
    assert ours.completions.height > 50
    assert ours.step_labels.equals(theirs.step_labels)
    assert ours.completions.drop("completer_id", "completion_id").equals(
        theirs.completions.drop("completer_id", "completion_id")
    )


def check_labels_agree_with_the_oracle(engine, world):
    """A wrong step hardly ever has a success; a step before it has one more often than not."""
    result = label(world, engine, completions=8)
    truth = judge_rollouts(world.problems, world.steps)
    rows = result.step_labels.filter(pl.col("label_source") == "sampled").join(truth, on=["rollout_id", "step_index"])
    good, bad = rows.filter("is_good"), rows.filter(~pl.col("is_good"))
    assert min(good.height, bad.height) > 10
    assert good["soft"].mean() > 0.3
    assert bad["soft"].mean() < 0.1
    assert result.receipt["completions_sampled"] == result.completions.height


def check_stop_string_across_the_boundary(engine, world):
    """A stop string of the prefix's last character and the first two after it: nothing may be added."""
    rollout = world.rollouts.row(0, named=True)
    step = world.steps.filter(pl.col("rollout_id") == rollout["rollout_id"]).row(0, named=True)
    prefix = rollout["token_ids"][: step["token_end"] + 1]
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    sample = engine.generate([Request([*rollout["prompt_token_ids"], *prefix], [1])], greedy)[0][0]
    before = engine.tokenizer.decode(prefix, skip_special_tokens=True)
    stop = before[-1] + sample.text[:2]
    alone = World(
        world.problems,
        world.rollouts.head(1),
        world.checked,
        world.steps.filter(pl.col("rollout_id") == rollout["rollout_id"]),
    )
    draws = {
        texts: label(
            alone, engine, SamplingParams(temperature=0.0, max_tokens=96, stop=texts), completions=1
        ).completions.filter(pl.col("step_index") == 0)
        for texts in ((), (stop,))
    }
    assert draws[()]["text"][0].startswith(stop[1:])
    assert draws[stop,].select("text", "finish_reason").rows() == [("", "stop")]
