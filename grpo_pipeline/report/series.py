"""Figures over rounds and training steps, and what each stage cost: the report's curves and tables."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from grpo_pipeline.counts import left_out
from grpo_pipeline.report.current import Described

_BY_K = re.compile(r"(pass|maj|bon)(\d+)")

TRAINING_FIRST = (
    "reward",
    "outcome_accuracy",
    "prm_score",
    "kl",
    "entropy",
    "completions/mean_length",
    "steps_per_response",
    "frac_reward_zero_std",
    "clip_ratio/region_mean",
    "completions/clipped_ratio",
    "grad_norm",
    "loss",
)
"""Training metrics shown first, in this order, where a run has them; the others follow by name."""


def figures_by_round(artifacts: Sequence[Described]) -> list[dict[str, Any]]:
    """Every measured figure: subject, metric, round, value, se, n; null values are kept."""
    refs = [ref for ref, _ in artifacts if ref.stage in ("policy_evaluation", "prm_evaluation")]
    frames = [ref.read("evaluations", check="quick") for ref in refs]
    if not frames:
        return []
    rows = pl.concat(frames).unique(("round", "subject", "metric"), keep="last", maintain_order=True)
    return [
        {
            "subject": row["subject"],
            "metric": row["metric"],
            "round": row["round"],
            "value": number(row["value"]),
            "se": number(row["standard_error"]),
            "n": row["n"],
        }
        for row in rows.sort("round", maintain_order=True).iter_rows(named=True)
    ]


def figures_by_k(figures: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the policy's figures those that depend on the number of samples: kind, k, round, value, se."""
    found = []
    for row in figures:
        match = _BY_K.fullmatch(row["metric"]) if row["subject"] == "policy" else None
        if match:
            found.append(row | {"kind": match[1], "k": int(match[2])})
    return sorted(found, key=lambda row: (row["kind"], row["round"], row["k"]))


def others_figures(artifacts: Sequence[Described]) -> list[dict[str, Any]]:
    """What `evaluate-prm` measured, one row a set and figure."""
    rows = []
    for ref, _ in artifacts:
        if ref.stage == "labelled_evaluation":
            for row in ref.read("evaluations", check="quick").iter_rows(named=True):
                name, _, figure = row["metric"].partition("/")
                rows.append(
                    {
                        "model": row["subject_id"],
                        "set": name,
                        "figure": figure,
                        "value": number(row["value"]),
                        "n": row["n"],
                    }
                )
    return rows


def training_metrics(artifacts: Sequence[Described]) -> list[dict[str, Any]]:
    """For each training stage that wrote metrics: stage, round, metrics as name -> one value a step.

    The policy's exploration steps of all rounds are one stage, reward models another.
    """
    found = []
    for ref, _ in artifacts:
        if "metrics" not in ref.tables:
            continue
        frame = ref.read("metrics", check="quick").sort("step")
        names = [name for name in frame.columns if name not in ("step", "round", "stage")]
        metrics = {name: [number(value) for value in frame[name].to_list()] for name in _in_order(names)}
        known = {name: values for name, values in metrics.items() if any(value is not None for value in values)}
        found.append({"stage": ref.stage, "round": ref.round, "steps": frame["step"].to_list(), "metrics": known})
    return found


def _in_order(names: Sequence[str]) -> list[str]:
    first = [name for name in TRAINING_FIRST if name in names]
    return first + sorted(name for name in names if name not in first)


def stage_costs(artifacts: Sequence[Described]) -> list[dict[str, Any]]:
    """Seconds, tokens, rows and what was left out of each artifact, also of those that an earlier run made."""
    return [
        {
            "stage": ref.stage,
            "round": ref.round,
            "name": ref.path.rsplit("/", 1)[-1],
            "seconds": round(manifest.timings.seconds, 3),
            "tokens": manifest.tokens,
            "rows": sum(table.rows for table in manifest.tables.values()),
            "left_out": "; ".join(f"{reason}: {n:,}" for reason, n in left_out(manifest.counts).items()),
        }
        for ref, manifest in artifacts
    ]


def replay_rows(artifacts: Sequence[Described]) -> list[dict[str, Any]]:
    """Of each refreshed training set of the reward model: round, and rows by the round they come from."""
    found = []
    for ref, _ in artifacts:
        if ref.stage == "prm_dataset":
            table = next(name for name in ("prm_dataset", "preference_pairs") if name in ref.tables)
            counts = dict(ref.scan(table).group_by("round").len().sort("round").collect().iter_rows())
            found.append({"round": ref.round, "rows": {str(key): count for key, count in counts.items()}})
    return found


def aggregate_of(artifacts: Sequence[Described]) -> str:
    """How the run makes a solution's score from its steps' (min, prod, last or mean)."""
    for ref, manifest in reversed(artifacts):
        if ref.stage == "policy_evaluation" and "aggregate" in manifest.config:
            return str(manifest.config["aggregate"])
    return "min"


def number(value: float | None) -> float | None:
    """A finite number with six significant digits, else None: JSON has no NaN."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
