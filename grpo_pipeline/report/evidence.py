"""What is known of a run's solutions and of their steps, in two frames: what charts and table are drawn from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from grpo_pipeline.evaluation.oracle import judge_rollouts
from grpo_pipeline.report.current import Described
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.manifest import DERIVED_STAGES
from grpo_pipeline.tables import empty

SETS = {"label_rollouts": "labelled", "evaluate_rollouts": "held-out", "policy": "training", "imported": "imported"}
"""Stage that made solutions -> what the report calls them."""

SOLUTION_COLUMNS = {
    "rollout_id": pl.String,
    "problem_id": pl.String,
    "round": pl.Int32,
    "set": pl.String,
    "group_index": pl.Int32,
    "verdict": pl.String,
    "answer": pl.String,
    "finish_reason": pl.String,
    "n_tokens": pl.Int32,
}
STEP_COLUMNS = {
    "rollout_id": pl.String,
    "problem_id": pl.String,
    "step_index": pl.Int32,
    "text": pl.String,
    "prefix_hash": pl.String,
}
LABEL_COLUMNS = ("soft", "hard", "n_completions", "n_correct")


@dataclass(frozen=True)
class Evidence:
    """A run's solutions.

    Attributes:
        problems: `problems` columns.
        solutions: `SOLUTION_COLUMNS`, one row a solution; what is not known is null.
        steps: `STEP_COLUMNS` with the label (`LABEL_COLUMNS`, label_source, and
            labelled_in, the artifact's fingerprint), the score of the reward model of the
            solution's round (score, prm_id) and the exact truth (is_good, of generated problems); null where unknown.
    """

    problems: pl.DataFrame
    solutions: pl.DataFrame
    steps: pl.DataFrame


def gather_evidence(artifacts: Sequence[Described]) -> Evidence:
    """Solutions and steps of a run's artifacts; a part that is not there leaves its columns null."""
    refs = [ref for ref, _ in artifacts]
    problems = _read(refs, "problems", ("problem_id", "source", "split", "question", "gold_answer", "meta"))
    problems = problems.unique("problem_id", maintain_order=True)
    solutions, steps = _solutions(artifacts)
    imported = [_imported(ref) for ref in refs if "solutions" in ref.tables]
    steps = steps.join(_labels(refs), on=["rollout_id", "step_index"], how="left")
    if imported:
        solutions = pl.concat([solutions, *(part.solutions for part in imported)])
        steps = pl.concat([steps, *(part.steps for part in imported)], how="diagonal_relaxed")
        known = problems["problem_id"].implode()
        more = pl.concat([part.problems for part in imported]).filter(~pl.col("problem_id").is_in(known))
        problems = pl.concat([problems, more.unique("problem_id", maintain_order=True)], how="diagonal_relaxed")
    steps = steps.join(_scores(artifacts, solutions), on=["rollout_id", "step_index"], how="left")
    truth = judge_rollouts(problems, steps).drop("problem_id")
    steps = steps.join(truth, on=["rollout_id", "step_index"], how="left")
    return Evidence(problems, solutions, steps.sort("rollout_id", "step_index"))


def _solutions(artifacts: Sequence[Described]) -> tuple[pl.DataFrame, pl.DataFrame]:
    frames, steps = [empty_frame(SOLUTION_COLUMNS)], [empty_frame(STEP_COLUMNS)]
    for ref, _ in artifacts:
        if ref.stage not in SETS or not {"rollouts", "steps"} <= set(ref.tables):
            continue
        rollouts = ref.scan("rollouts").select(
            "rollout_id",
            "problem_id",
            "round",
            pl.lit(SETS[ref.stage]).alias("set"),
            "group_index",
            "finish_reason",
            pl.col("token_ids").list.len().cast(pl.Int32).alias("n_tokens"),
        )
        checked = ref.scan("checked") if "checked" in ref.tables else empty("checked").lazy()
        joined = rollouts.join(checked.select("rollout_id", "verdict", "answer"), on="rollout_id", how="left")
        frames.append(joined.select(*SOLUTION_COLUMNS).collect())
        steps.append(ref.scan("steps").select(*STEP_COLUMNS).collect())
    # The same sample may have been taken for two artifacts.
    kept = pl.concat(frames).unique("rollout_id", keep="last", maintain_order=True)
    return kept, pl.concat(steps).unique(("rollout_id", "step_index"), keep="last", maintain_order=True)


def _labels(refs: Sequence[ArtifactRef]) -> pl.DataFrame:
    columns = ("rollout_id", "step_index", *LABEL_COLUMNS, "label_source")
    frames = [
        ref.scan("step_labels").select(*columns, pl.lit(ref.fingerprint).alias("labelled_in")).collect()
        for ref in refs
        # What a person derived from the run's own labels is another opinion on the same steps, as in `tables.scan`.
        if "step_labels" in ref.tables and ref.stage not in DERIVED_STAGES
    ]
    none = empty("step_labels").select(*columns, pl.lit("").alias("labelled_in"))
    return pl.concat([none, *frames]).unique(("rollout_id", "step_index"), keep="last", maintain_order=True)


def _scores(artifacts: Sequence[Described], solutions: pl.DataFrame) -> pl.DataFrame:
    """The score by the reward model of the solution's round; where that gave none, by the latest that did."""
    frames = [empty_frame({"rollout_id": pl.String, "step_index": pl.Int32, "score": pl.Float32, "prm_id": pl.String})]
    frames[0] = frames[0].with_columns(pl.lit(0, pl.Int32).alias("scored_in"))
    for ref, _ in artifacts:
        if "step_scores" in ref.tables:
            rows = ref.scan("step_scores").select("rollout_id", "step_index", "score", "prm_id").collect()
            frames.append(rows.with_columns(pl.lit(ref.round, pl.Int32).alias("scored_in")))
    rounds = solutions.select("rollout_id", "round")
    ranked = pl.concat(frames).join(rounds, on="rollout_id", how="inner")
    ranked = ranked.sort(pl.col("scored_in") == pl.col("round"), "scored_in", maintain_order=True)
    return ranked.unique(("rollout_id", "step_index"), keep="last").drop("scored_in", "round")


def _imported(ref: ArtifactRef) -> Evidence:
    """Solutions from a file of others: their labels, and the verdict where the file states it."""
    rows = ref.read("solutions", check="quick").sort("place")
    stated = pl.col("extra").str.json_path_match("$.final_answer_correct")
    solutions = rows.select(
        pl.col("solution_id").alias("rollout_id"),
        "problem_id",
        pl.lit(ref.round, pl.Int32).alias("round"),
        pl.lit("imported").alias("set"),
        pl.col("place").cast(pl.Int32).alias("group_index"),
        stated.replace_strict({"true": "correct", "false": "wrong"}, default=None).alias("verdict"),
        pl.col("final_answer").alias("answer"),
        pl.lit(None, pl.String).alias("finish_reason"),
        pl.lit(None, pl.Int32).alias("n_tokens"),
    )
    steps = (
        rows.select(
            pl.col("solution_id").alias("rollout_id"),
            "problem_id",
            pl.int_ranges(pl.col("steps").list.len(), dtype=pl.Int32).alias("step_index"),
            pl.col("steps").alias("text"),
            pl.col("labels").alias("soft"),
        )
        .filter(pl.col("text").list.len() > 0)
        .explode("step_index", "text", "soft")
        .with_columns(
            pl.lit(None, pl.String).alias("prefix_hash"),
            pl.col("soft").cast(pl.Float32),
            (pl.col("soft") > 0).cast(pl.Int32).alias("hard"),
            pl.when(pl.col("soft").is_null())
            .then(pl.lit("unlabelled"))
            .otherwise(pl.lit("imported"))
            .alias("label_source"),
        )
    )
    problems = rows.select(
        "problem_id",
        pl.col("form").alias("source"),
        pl.lit("").alias("split"),
        "question",
        "gold_answer",
        pl.lit(None, pl.String).alias("meta"),
    )
    return Evidence(problems, solutions, steps)


def _read(refs: Iterable[ArtifactRef], table: str, columns: Sequence[str]) -> pl.DataFrame:
    frames = [ref.scan(table).select(*columns).collect() for ref in refs if table in ref.tables]
    return pl.concat([empty(table).select(*columns), *frames])


def empty_frame(columns: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """No rows, with these columns and types."""
    return pl.DataFrame(schema=dict(columns))
