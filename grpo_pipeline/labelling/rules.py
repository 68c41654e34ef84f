"""Label rules, offline: other labels from the stored counts, with no engine.

Every rule starts from the evidence in a ``step_labels`` table and gives such a table back. ``soft`` and its
interval are always derived afresh from the counts, by the rule's ``truncated`` setting; the rules differ in
``hard``. Rows that were not sampled keep what they are: outcomes their verdict, implied labels their 1 or 0
(but only where the rule is about existence: no share follows from it), unlabelled rows their null. Counts from
a schedule that stopped at the first success have no soft label, and get none here.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.evidence import Z95, Truncated
from grpo_pipeline.schemas import TABLES

RuleName = Literal["hard", "threshold", "interval", "first_error", "progress", "consensus"]
AfterFirstError = Literal["unlabelled", "zero", "keep"]

_KEY = ("rollout_id", "step_index")


@dataclass(frozen=True)
class Rule:
    """How hard labels follow from counts.

    Attributes:
        name: ``hard``: 1 if any completion is correct (Math-Shepherd, arXiv 2312.08935).
            ``threshold``: 1 if the soft label is at least ``threshold`` (Zhang et al. 2025, arXiv 2501.07301).
            ``interval``: 1 if the whole 95% Wilson interval is at or above ``threshold``, 0 if all of it is
            below, else null.
            ``first_error``: as hard up to the first 0; the steps after it as ``after`` says.
            ``progress``: 1 if the soft label is at least (1 + ``threshold``) times the step's before, i.e. its
            relative change is at least ``threshold`` (AutoPSV, Lu et al. 2024, arXiv 2405.16802); the first
            step, and one after a soft label of 0, as hard.
            ``consensus``: as hard, but only in solutions where a judge finds the same first bad step; the
            others are null (Zhang et al. 2025, section 3).
        threshold: See the rules; a share in (0, 1], for progress a relative change above -1.
        after: Steps after the first bad one: null, 0, or their own label.
        truncated: Whether cut-off completions count as not correct, or not at all.
    """

    name: RuleName
    threshold: float | None = None
    after: AfterFirstError = "unlabelled"
    truncated: Truncated = "not_correct"

    def __post_init__(self) -> None:
        if self.name not in get_args(RuleName):
            raise UserError(f"rule {self.name!r} is unknown; use one of {', '.join(get_args(RuleName))}")
        if self.name in ("threshold", "interval") and not (self.threshold is not None and 0 < self.threshold <= 1):
            raise UserError(f"rule {self.name} needs a threshold in (0, 1] (--threshold), got {self.threshold}")
        if self.name == "progress" and not (self.threshold is not None and -1 < self.threshold < math.inf):
            raise UserError(
                f"rule progress needs a threshold above -1 (--threshold, a relative change), got {self.threshold}"
            )
        if self.name in ("hard", "first_error", "consensus") and self.threshold is not None:
            raise UserError(f"rule {self.name} takes no threshold")


def relabel(step_labels: pl.DataFrame, rule: Rule, judge: pl.DataFrame | None = None) -> pl.DataFrame:
    """Labels by another rule.

    Args:
        step_labels: The ``step_labels`` table.
        rule: The rule.
        judge: For ``consensus``: ``rollout_id``, ``step_index``, ``hard``, a second opinion: another
            completer's ``step_labels`` or a judge's ``judgements``. A null counts as not bad; a solution
            without a row was not judged.

    Returns:
        A ``step_labels`` table in the order of the given one; with a judge its labels are in
        ``second_opinion``, whether it agrees or not.

    Raises:
        UserError: A consensus rule without a judge, a judge for another rule, or one of other solutions.
    """
    if (rule.name == "consensus") != (judge is not None):
        raise UserError("rule consensus needs a second table of labels (judge), and no other rule takes one")
    if judge is not None and step_labels.join(judge, on="rollout_id", how="semi").is_empty():
        raise UserError(
            f"the judge has no opinion on any of the {step_labels['rollout_id'].n_unique()} labelled solutions, so "
            "there is nothing to agree with: it judged others, or none of its answers could be read (see its counts)"
        )
    frame = step_labels.with_row_index("_row").sort(_KEY)
    if "second_opinion" not in frame.columns:  # written before there was that column
        frame = frame.with_columns(second_opinion=pl.lit(None, pl.Int32))
    frame = frame.with_columns(_derived(rule.truncated))
    frame = frame.with_columns(hard=_hard(rule).cast(pl.Int32))
    if rule.name == "first_error":
        frame = _after_first_error(frame, rule.after)
    if judge is not None:
        both = _first_bad(frame).join(_first_bad(judge), on="rollout_id", suffix="_judge")
        agreed = both.filter(pl.col("first_bad").eq_missing(pl.col("first_bad_judge")))
        kept = pl.col("rollout_id").is_in(agreed["rollout_id"].implode())
        opinions = judge.select(*_KEY, second_opinion=pl.col("hard").cast(pl.Int32))
        frame = frame.with_columns(pl.when(kept).then(pl.col("hard", "soft", "ci_low", "ci_high")))
        frame = frame.drop("second_opinion").join(opinions, on=_KEY, how="left")
    return frame.sort("_row").select(*TABLES["step_labels"].schema.names)


def _derived(truncated: Truncated) -> list[pl.Expr]:
    """n_completions, soft and its Wilson interval of sampled rows, afresh from the counts."""
    n = pl.col("n_correct") + pl.col("n_wrong") + pl.col("n_no_answer")
    if truncated == "not_correct":
        n += pl.col("n_truncated")
    sampled = pl.col("label_source") == "sampled"
    share = pl.col("n_correct") / n
    middle = share + Z95**2 / (2 * n)
    half = Z95 * (share * (1 - share) / n + Z95**2 / (4 * n**2)).sqrt()
    scale = 1 + Z95**2 / n
    low = pl.when(pl.col("n_correct") == 0).then(0.0).otherwise((middle - half) / scale)
    high = pl.when(pl.col("n_correct") == n).then(1.0).otherwise((middle + half) / scale)
    # Counts without a soft label were sampled only up to a first success: their share is biased upwards.
    to_first_success = pl.col("soft").is_null() & (pl.col("n_completions") > 0)
    decided = sampled & (n > 0) & ~to_first_success
    return [
        pl.when(sampled).then(n).otherwise(pl.col("n_completions")).cast(pl.Int32).alias("n_completions"),
        pl.when(decided).then(share).when(~sampled).then(pl.col("soft")).cast(pl.Float32).alias("soft"),
        pl.when(decided).then(low).cast(pl.Float32).alias("ci_low"),
        pl.when(decided).then(high).cast(pl.Float32).alias("ci_high"),
    ]


def _hard(rule: Rule) -> pl.Expr:
    sampled = pl.col("label_source") == "sampled"
    existence = (
        pl.when(sampled & (pl.col("n_completions") > 0))
        .then((pl.col("n_correct") > 0).cast(pl.Int32))
        .when(~sampled)
        .then(pl.col("hard"))
    )
    # An implied label says that some continuation is correct, not how many are.
    outcome = pl.when(pl.col("label_source") == "outcome").then(pl.col("hard"))
    if rule.name == "threshold":
        return pl.when(sampled).then((pl.col("soft") >= rule.threshold).cast(pl.Int32)).otherwise(outcome)
    if rule.name == "interval":
        decided = pl.when(pl.col("ci_low") >= rule.threshold).then(1).when(pl.col("ci_high") < rule.threshold).then(0)
        return pl.when(sampled).then(decided).otherwise(outcome)
    if rule.name == "progress":
        assert rule.threshold is not None
        before = pl.col("soft").shift(1).over("rollout_id", order_by="step_index")
        enough = (pl.col("soft") >= (1 + rule.threshold) * before).cast(pl.Int32)
        first = pl.col("step_index") == 0
        return pl.when(first | (before == 0)).then(existence).otherwise(enough)
    return existence


def _after_first_error(frame: pl.DataFrame, after: AfterFirstError) -> pl.DataFrame:
    if after == "keep":
        return frame
    bad_before = (pl.col("hard") == 0).fill_null(value=False).cast(pl.Int32).cum_sum().shift(1, fill_value=0)
    behind = bad_before.over("rollout_id", order_by="step_index") > 0
    if after == "zero":
        # Nothing was sampled for a label of 0 that follows from an earlier step.
        source = pl.when(behind).then(pl.lit("implied")).otherwise(pl.col("label_source"))
        label = pl.when(behind).then(0).otherwise(pl.col("hard")).cast(pl.Int32)
        soft = pl.when(~behind).then(pl.col("soft"))
        return frame.with_columns(hard=label, soft=soft, label_source=source)
    return frame.with_columns(pl.when(~behind).then(pl.col("hard", "soft", "ci_low", "ci_high")))


def _first_bad(labels: pl.DataFrame) -> pl.DataFrame:
    """For each rollout the first step whose hard label is 0, null if there is none."""
    return labels.group_by("rollout_id").agg(first_bad=pl.col("step_index").filter(pl.col("hard") == 0).min())
