"""True step judgements of generated problems, from their exact oracle: to measure with, never to train on."""

import polars as pl

from grpo_pipeline.problems.oracle import judge_steps
from grpo_pipeline.problems.synthetic import SOURCE

_SCHEMA = {"rollout_id": pl.String, "problem_id": pl.String, "step_index": pl.Int32, "is_good": pl.Boolean}


def judge_rollouts(problems: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Whether each step is truly right, by the problem's own state.

    Args:
        problems: `problems` columns; `meta` holds the state of generated problems.
        steps: `steps` columns.

    Returns:
        rollout_id, problem_id, step_index, is_good; sorted by rollout_id and step_index. Only generated problems
        have an oracle: solutions of other problems are left out.
    """
    solutions = (
        steps.sort("rollout_id", "step_index")
        .group_by("rollout_id", "problem_id", maintain_order=True)
        .agg("step_index", "text")
        .join(
            problems.filter(pl.col("source") == SOURCE).select("problem_id", "meta"),
            on="problem_id",
            how="inner",
            maintain_order="left",
        )
    )
    judged: dict[tuple[str, ...], list[bool]] = {}  # rollouts of a problem are often alike
    rows = []
    for rollout_id, problem_id, indices, texts, meta in solutions.iter_rows():
        key = (problem_id, *texts)
        if key not in judged:
            judged[key] = judge_steps(meta, texts)
        rows += [(rollout_id, problem_id, index, good) for index, good in zip(indices, judged[key], strict=True)]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
