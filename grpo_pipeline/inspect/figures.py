"""Key figures of each table: the few numbers that say whether its rows are what one expects."""

from collections.abc import Callable

import polars as pl

Figures = dict[str, int | float | str | None]


def key_figures(table: str, frame: pl.DataFrame) -> Figures:
    """Name -> figure for the rows of a table; shares are in [0, 1], None where there are no rows to count.

    Tables without figures of their own give the number of their problems, if they name problems.
    """
    own = _FIGURES[table](frame) if table in _FIGURES else {}
    problems = {"problems": frame["problem_id"].n_unique()} if "problem_id" in frame.columns else {}
    return {**problems, **own}


def _share(frame: pl.DataFrame, condition: pl.Expr) -> float | None:
    return frame.filter(condition).height / frame.height if frame.height else None


def _mean(series: pl.Series) -> float | None:
    value = series.cast(pl.Float64).mean()
    return float(value) if isinstance(value, float) else None


def _counts(series: pl.Series) -> Figures:
    counted = series.value_counts(sort=True).head(8)
    return {str(name): int(count) for name, count in counted.iter_rows()}


def _problems(frame: pl.DataFrame) -> Figures:
    return {
        **{f"split {name}": count for name, count in _counts(frame["split"]).items()},
        **{f"source {name}": count for name, count in _counts(frame["source"]).items()},
        "with a worked solution": _share(frame, pl.col("gold_solution").is_not_null()),
    }


def _rollouts(frame: pl.DataFrame) -> Figures:
    return {
        "policies": frame["policy_id"].n_unique(),
        "mean tokens": _mean(frame["token_ids"].list.len()),
        "cut off": _share(frame, pl.col("finish_reason") == "length"),
        "mean log-probability": _mean(frame["logprobs"].explode()),
    }


def _checked(frame: pl.DataFrame) -> Figures:
    return {
        **{f"verdict {name}": count for name, count in _counts(frame["verdict"]).items()},
        "accuracy": _share(frame, pl.col("verdict") == "correct"),
    }


def _steps(frame: pl.DataFrame) -> Figures:
    rollouts = frame["rollout_id"].n_unique()
    return {
        "rollouts": rollouts,
        "steps a rollout": frame.height / rollouts if rollouts else None,
        "distinct prefixes": frame["prefix_hash"].n_unique(),
    }


def _completions(frame: pl.DataFrame) -> Figures:
    return {
        "completers": frame["completer_id"].n_unique(),
        "prefixes": frame["prefix_hash"].n_unique(),
        "sampled tokens": int(frame["n_tokens"].sum()),
        **{f"verdict {name}": count for name, count in _counts(frame["verdict"]).items()},
    }


def _step_labels(frame: pl.DataFrame) -> Figures:
    return {
        "rollouts": frame["rollout_id"].n_unique(),
        "labelled": _share(frame, pl.col("hard").is_not_null()),
        "good, of the labelled": _share(frame.filter(pl.col("hard").is_not_null()), pl.col("hard") == 1),
        "mean soft label": _mean(frame["soft"]),
        "completions a sampled step": _mean(frame.filter(pl.col("label_source") == "sampled")["n_completions"]),
        **{f"source {name}": count for name, count in _counts(frame["label_source"]).items()},
    }


def _prm_dataset(frame: pl.DataFrame) -> Figures:
    return {
        "steps": int(frame["step_positions"].list.len().sum()),
        "mean tokens": _mean(frame["input_ids"].list.len()),
        "replayed": _share(frame, pl.col("is_replay")),
        "good, of the labelled": _mean(frame["hard"].explode()),
        **{f"round {name}": count for name, count in _counts(frame["round"].sort()).items()},
    }


def _step_scores(frame: pl.DataFrame) -> Figures:
    scores = frame["score"].cast(pl.Float64)
    return {
        "rollouts": frame["rollout_id"].n_unique(),
        "mean score": _mean(scores),
        **{f"quantile {q}": scores.quantile(q) for q in (0.05, 0.5, 0.95)},
    }


def _advantages(frame: pl.DataFrame) -> Figures:
    flat = frame["step_advantages"].explode().cast(pl.Float64)
    return {
        "undecided rewards": _share(frame, pl.col("outcome_reward").is_null()),
        "mean outcome reward": _mean(frame["outcome_reward"]),
        "mean |advantage|": _mean(flat.abs()),
        "all advantages zero": _share(frame, pl.col("step_advantages").list.eval(pl.element() == 0).list.all()),
    }


def _metrics(frame: pl.DataFrame) -> Figures:
    last = frame.sort("step").tail(1)
    shown = [name for name in last.columns if name not in ("step", "round", "stage")][:12]
    return {"optimizer steps": frame.height, **{f"last {name}": last[name][0] for name in shown if last.height}}


def _evaluations(frame: pl.DataFrame) -> Figures:
    return {f"{row['subject']} {row['metric']}": row["value"] for row in frame.iter_rows(named=True)}


def _solutions(frame: pl.DataFrame) -> Figures:
    labels = frame["labels"].explode()
    return {
        **{f"form {name}": count for name, count in _counts(frame["form"]).items()},
        "steps": int(frame["steps"].list.len().sum()),
        "labelled steps": int(labels.count()),
        "mean label": _mean(labels),
    }


_FIGURES: dict[str, Callable[[pl.DataFrame], Figures]] = {
    "problems": _problems,
    "rollouts": _rollouts,
    "checked": _checked,
    "steps": _steps,
    "completions": _completions,
    "step_labels": _step_labels,
    "prm_dataset": _prm_dataset,
    "step_scores": _step_scores,
    "advantages": _advantages,
    "metrics": _metrics,
    "evaluations": _evaluations,
    "solutions": _solutions,
}
