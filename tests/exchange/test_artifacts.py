"""An artifact's solutions as records: what is said of them, and what is left open."""

import polars as pl
import pytest

from grpo_pipeline.exchange.artifacts import own_solutions
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.store import ShardResult, StageSpec, Store
from tests.small_run import TOKENIZER, make_labels, make_problems, make_rollouts


@pytest.mark.parametrize(
    ("verdict", "finish_reason", "correct"),
    [
        ("correct", "stop", True),
        ("wrong", "stop", False),
        ("no_answer", "stop", False),
        ("timeout", "stop", None),
        ("no_answer", "length", None),
    ],
)
def test_what_was_not_decided_is_not_called_wrong(tmp_path, verdict, finish_reason, correct):
    problems = make_problems()
    rollouts, checked = make_rollouts(problems, 0)
    steps = split_rollouts(rollouts, TOKENIZER, "line")
    rollouts = rollouts.with_columns(finish_reason=pl.lit(finish_reason))
    _, labels = make_labels(rollouts, checked, steps, 0)
    frames = {
        "problems": problems,
        "rollouts": rollouts,
        "checked": checked.with_columns(verdict=pl.lit(verdict)),
        "steps": steps,
        "step_labels": labels,
    }
    ref = Store(tmp_path).build(StageSpec("labels", 1, 0, {}, (), 0), 1, lambda _: ShardResult(frames))
    assert {record.extra["correct"] for record in own_solutions(ref)} == {correct}
