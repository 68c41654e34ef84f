"""Variants side by side: means over seeds and problems, paired differences, and claims put to the test.

Every seed is a replicate of its own: its own problems, samples and reward model. Within a seed all variants are
measured on the same problems, so differences are taken problem by problem.

Two standard errors are given. That over seeds is the sample standard deviation (n - 1) of the seeds' means over
sqrt(seeds): it holds everything that changes between replicates, and is itself rough where seeds are few. That over
problems takes the trained policies as they are: sqrt(sum over seeds of variance / problems) / seeds, a problem
being one observation however many samples it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from grpo_pipeline.config import ClaimConfig
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.tables import from_rows

Verdict = Literal["holds", "no difference seen", "reversed"]


@dataclass(frozen=True)
class Measurement:
    """What one variant came to with one seed.

    Attributes:
        variant: Its name.
        seed: The seed.
        figures: `problem_figures` rows of its policy.
        costs: Name -> what it cost: policy_tokens, label_tokens, ...
        metrics: `metrics` rows of its training with exploration_step; None for an intermediate or untrained policy.
    """

    variant: str
    seed: int
    figures: pl.DataFrame
    costs: Mapping[str, float]
    metrics: pl.DataFrame | None = None


@dataclass(frozen=True)
class TestedClaim:
    """A claim and what was seen of it.

    Attributes:
        claim: The statement with its two variants and its metric.
        difference: better less worse.
        standard_error: The larger of its two standard errors; None where one is missing: a single seed decides
            nothing.
        verdict: holds where the difference is above two standard errors, reversed where it is below minus two.
    """

    claim: ClaimConfig
    difference: float
    standard_error: float | None
    verdict: Verdict


def compare(measurements: Sequence[Measurement], claims: Sequence[ClaimConfig]) -> pl.DataFrame:
    """Rows of the `comparison` table: every variant's figures and costs, and the differences that claims ask for.

    Raises:
        ValueError: A variant of a claim was not measured, was measured with other seeds than the one it is compared
            with, or has no such figure.
    """
    values = {variant: _values(measurements, variant) for variant in dict.fromkeys(m.variant for m in measurements)}
    rows = []
    for variant, by_metric in values.items():
        rows += [_row(variant, "", metric, by_seed) for metric, by_seed in by_metric.items()]
        rows += _cost_rows(variant, [m.costs for m in measurements if m.variant == variant])
    asked = {(claim.better, claim.worse): None for claim in claims}
    for better, worse in asked:
        for name in (better, worse):
            if name not in values:
                raise ValueError(f"{name!r} was not measured; there are: {', '.join(values)}")
        for metric in values[better]:
            rows.append(_row(better, worse, metric, _differences(values, better, worse, metric)))
    return from_rows(rows, "comparison")


def compare_steps(measurements: Sequence[Measurement], metrics: Sequence[str]) -> pl.DataFrame:
    """Rows of the `comparison_steps` table: training metrics by exploration step, over seeds.

    Args:
        measurements: As for `compare`; those without metrics are passed over.
        metrics: Names of the metrics wanted; a variant that does not have one has no rows of it.
    """
    frames = []
    for one in measurements:
        if one.metrics is None or "exploration_step" not in one.metrics.columns:
            continue
        # The first update of an exploration step is the one that saw its rollouts fresh.
        first = one.metrics.unique("exploration_step", keep="first", maintain_order=True)
        present = [name for name in metrics if name in first.columns]
        long = first.unpivot(present, index="exploration_step", variable_name="metric", value_name="value")
        frames.append(
            long.drop_nulls("value").select(
                pl.lit(one.variant).alias("variant"),
                pl.col("exploration_step").cast(pl.Int32).alias("step"),
                "metric",
                "value",
            )
        )
    if not frames:
        return from_rows([], "comparison_steps")
    grouped = pl.concat(frames).group_by("variant", "step", "metric", maintain_order=True)
    return grouped.agg(
        pl.col("value").mean(),
        standard_error_seeds=pl.col("value").std() / pl.len().sqrt(),
        n_seeds=pl.len().cast(pl.Int32),
    ).select(TABLES["comparison_steps"].schema.names)


def judge_claims(comparison: pl.DataFrame, claims: Sequence[ClaimConfig]) -> list[TestedClaim]:
    """Each claim's verdict from the `comparison` table's differences; one on maj or pass names the k that it is at.

    Raises:
        ValueError: The table has no such difference.
    """
    found = {(r["variant"], r["against"], r["metric"]): r for r in comparison.iter_rows(named=True) if r["against"]}
    tested = []
    for stated in claims:
        claim = _at_largest_k(stated, [metric for _, _, metric in found])
        row = found.get((claim.better, claim.worse, claim.metric))
        if row is None:
            raise ValueError(f"no difference of {claim.metric!r} between {claim.better!r} and {claim.worse!r}")
        errors = [row[f"standard_error_{of}"] for of in ("seeds", "problems")]
        error = None if None in errors else max(errors)
        tested.append(TestedClaim(claim, row["value"], error, _verdict(row["value"], error)))
    return tested


def _at_largest_k(claim: ClaimConfig, metrics: Sequence[str]) -> ClaimConfig:
    """A claim on maj or pass, as one on the largest k that was measured."""
    if claim.metric not in ("maj", "pass"):
        return claim
    measured = [int(k) for metric in metrics if (k := metric.removeprefix(claim.metric)).isdecimal()]
    return claim.model_copy(update={"metric": f"{claim.metric}{max(measured, default='')}"})


def _verdict(difference: float, error: float | None) -> Verdict:
    if error is None or abs(difference) <= 2 * error:
        return "no difference seen"
    return "holds" if difference > 0 else "reversed"


def _values(measurements: Sequence[Measurement], variant: str) -> dict[str, dict[int, pl.DataFrame]]:
    """Metric -> seed -> problem_id, value."""
    values: dict[str, dict[int, pl.DataFrame]] = {}
    for one in measurements:
        if one.variant != variant:
            continue
        for (metric,), part in one.figures.group_by("metric", maintain_order=True):
            values.setdefault(str(metric), {})[one.seed] = part.select("problem_id", "value")
    return values


def _differences(
    values: Mapping[str, Mapping[str, Mapping[int, pl.DataFrame]]], better: str, worse: str, metric: str
) -> dict[int, pl.DataFrame]:
    ours, theirs = values[better][metric], values[worse].get(metric, {})
    if ours.keys() != theirs.keys():
        raise ValueError(f"{better!r} and {worse!r} were measured with seeds {sorted(ours)} and {sorted(theirs)}")
    return {
        seed: frame.join(theirs[seed], on="problem_id", suffix="_worse").select(
            "problem_id", value=pl.col("value") - pl.col("value_worse")
        )
        for seed, frame in ours.items()
    }


def _row(variant: str, against: str, metric: str, by_seed: Mapping[int, pl.DataFrame]) -> dict[str, object]:
    columns = [frame["value"].to_numpy() for frame in by_seed.values()]
    means = np.array([values.mean() for values in columns])
    return {
        "variant": variant,
        "against": against,
        "metric": metric,
        "value": float(means.mean()),
        "standard_error_seeds": _standard_error(means),
        "standard_error_problems": _problem_error(columns),
        "n_seeds": len(columns),
        "n_problems": sum(len(values) for values in columns),
    }


def _cost_rows(variant: str, costs: Sequence[Mapping[str, float]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in costs[0]:
        values = np.array([one[name] for one in costs], dtype=np.float64)
        row = {"variant": variant, "against": "", "metric": name, "value": float(values.mean())}
        error = {"standard_error_seeds": _standard_error(values), "standard_error_problems": None}
        rows.append(row | error | {"n_seeds": len(values), "n_problems": 0})
    return rows


def _standard_error(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else None


def _problem_error(by_seed: Sequence[npt.NDArray[np.float64]]) -> float | None:
    if any(len(values) < 2 for values in by_seed):
        return None
    return sqrt(sum(float(values.var(ddof=1)) / len(values) for values in by_seed)) / len(by_seed)
