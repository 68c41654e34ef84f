"""An artifact of this project as neutral records: its solutions with their labels, or preference pairs."""

from collections.abc import Collection, Iterable, Sequence

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.forms import Form
from grpo_pipeline.exchange.records import OWN, PairRecord, Record, StepRecord
from grpo_pipeline.exchange.tables import read_pairs, read_solutions
from grpo_pipeline.prm_dataset import build_pairs
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.sources import sources_of

PAIRS_PER_PROBLEM = 4
"""Preference pairs at most of one problem and round."""


def artifact_records(ref: ArtifactRef, form: Form) -> Sequence[Record]:
    """The records of an artifact that a form can be written from.

    Imported artifacts give their file's records. Others give, for forms of steps, their labelled solutions with
    hard labels (`prm_dataset` where they have it, else `step_labels`), and for forms of pairs a correct and a
    wrong solution of the same problem and round (at most `PAIRS_PER_PROBLEM`, seed 0).

    Raises:
        UserError: The artifact has no such rows.
    """
    if form.kind == "pairs":
        if "pairs" in ref.tables:
            return read_pairs(ref.read("pairs"), form.name)
        return list(own_pairs(ref))
    if "solutions" in ref.tables:
        return read_solutions(ref.read("solutions"))
    return list(own_solutions(ref))


def own_solutions(ref: ArtifactRef, *, unlabelled: bool = False) -> Iterable[StepRecord]:
    """Solutions that were sampled here, in order of problem and rollout, without a step's closing line break.

    `extra`: rollout_id, problem_id, round, policy_id, correct (None if undecided), source, and soft, the soft
    labels.

    Args:
        ref: An artifact with `prm_dataset` or `step_labels`.
        unlabelled: Take one with `steps` alone too; its labels are then None.

    Raises:
        UserError: It has none of them, or lacks what they refer to.
    """
    sources = sources_of(ref)
    labels = _labels(ref, unlabelled=unlabelled)
    steps = sources.gather("steps").select("rollout_id", "step_index", "text")
    if labels is not None:
        steps = steps.join(labels, on=["rollout_id", "step_index"], how="left")
        steps = steps.filter(pl.col("rollout_id").is_in(labels["rollout_id"].unique().implode()))
    else:
        steps = steps.filter(pl.col("rollout_id").is_in(ref.read("steps")["rollout_id"].unique().implode()))
        steps = steps.with_columns(hard=pl.lit(None, pl.Float64), soft=pl.lit(None, pl.Float64))
    solutions = (
        steps.sort("rollout_id", "step_index").group_by("rollout_id", maintain_order=True).agg("text", "hard", "soft")
    )
    problems = sources.gather("problems").select("problem_id", "question", "gold_answer", "source")
    rollouts = sources.gather("rollouts").select("rollout_id", "problem_id", "round", "policy_id", "finish_reason")
    frame = solutions.join(rollouts, on="rollout_id").join(problems, on="problem_id")
    if frame.height < solutions.height:
        raise UserError(
            f"{ref}: {solutions.height - frame.height} of its solutions have no rollout or problem in this store"
        )
    if sources.has("checked"):
        checked = sources.gather("checked").select("rollout_id", "answer", "verdict")
        frame = frame.join(checked, on="rollout_id", how="left")
    else:
        frame = frame.with_columns(answer=pl.lit(None, pl.String), verdict=pl.lit(None, pl.String))
    for row in frame.sort("problem_id", "rollout_id").iter_rows(named=True):
        yield StepRecord(
            row["question"],
            tuple(text.rstrip("\n") for text in row["text"]),
            tuple(row["hard"]),
            row["gold_answer"],
            row["answer"],
            OWN,
            {
                "rollout_id": row["rollout_id"],
                "problem_id": row["problem_id"],
                "round": row["round"],
                "policy_id": row["policy_id"],
                "source": row["source"],
                "correct": _is_correct(row["verdict"], row["finish_reason"]),
                "soft": row["soft"],
            },
        )


def _is_correct(verdict: str | None, finish_reason: str) -> bool | None:
    """None for what was not decided: no verdict, a check that ran out of time, or a cut-off response."""
    if verdict in ("wrong", "no_answer") and finish_reason == "stop":
        return False
    return True if verdict == "correct" else None


def _labels(ref: ArtifactRef, *, unlabelled: bool) -> pl.DataFrame | None:
    """rollout_id, step_index, hard, soft (float64) of an artifact's own labels; None where it has steps only."""
    if "prm_dataset" in ref.tables:
        rows = ref.read("prm_dataset").select("rollout_id", "hard", "soft")
        rows = rows.with_columns(step_index=pl.int_ranges(pl.col("hard").list.len(), dtype=pl.Int32))
        labels = rows.explode("step_index", "hard", "soft")
    elif "step_labels" in ref.tables:
        labels = ref.read("step_labels").select("rollout_id", "step_index", "hard", "soft")
    elif unlabelled and "steps" in ref.tables:
        return None
    else:
        have = ", ".join(ref.tables) or "none"
        raise UserError(
            f"{ref}: no step labels in this artifact (tables: {have}); give one of stage step_labels, relabel, "
            "prm_rows, prm_dataset or imported"
        )
    return labels.with_columns(pl.col("hard", "soft").cast(pl.Float64))


def own_pairs(ref: ArtifactRef) -> Iterable[PairRecord]:
    """Preference pairs of an artifact's rollouts, or of those that its labels belong to.

    Raises:
        UserError: There are no rollouts with verdicts.
    """
    sources = sources_of(ref)
    wanted = _rollout_ids(ref)
    rollouts = sources.gather("rollouts").filter(pl.col("rollout_id").is_in(list(wanted)))
    pairs = build_pairs(rollouts, sources.gather("checked"), pairs_per_problem=PAIRS_PER_PROBLEM, seed=0)
    questions = dict(sources.gather("problems").select("problem_id", "question").iter_rows())
    texts = dict(rollouts.select("rollout_id", "text").iter_rows())
    for row in pairs.iter_rows(named=True):
        yield PairRecord(questions[row["problem_id"]], texts[row["chosen_id"]], texts[row["rejected_id"]])


def _rollout_ids(ref: ArtifactRef) -> Collection[str]:
    for table in ("rollouts", "prm_dataset", "step_labels"):
        if table in ref.tables:
            return set(ref.read(table)["rollout_id"].to_list())
    raise UserError(
        f"{ref}: no rollouts in this artifact; give one of stage label_rollouts, evaluate_rollouts or policy"
    )
