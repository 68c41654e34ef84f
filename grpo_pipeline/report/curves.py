"""Learning curves of a run as one small picture: what each round brought, and the reward within the rounds."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grpo_pipeline.stages.rounds import Round

_REWARD_MODEL = {"step_accuracy", "auc", "auc_on_policy", "solution_auc", "solution_auc_on_policy", "pair_accuracy"}
_NOT_CURVES = {"round", "accuracy_se", "problems"}


def plot_rounds(rounds: Sequence[Round], summary: Mapping[str, Any]) -> bytes:
    """A PNG with three panels: the policy's figures by round, the reward model's, and the reward by training step.

    Args:
        rounds: The run's rounds, oldest first.
        summary: `stages.summary.summarise` of them.
    """
    figure = Figure(figsize=(10, 3), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    policy, prm, reward = figure.subplots(1, 3)
    _by_round(policy, summary["rounds"], "policy on held-out problems")
    if not _by_round(prm, summary["prms"], "reward model on held-out problems", _REWARD_MODEL):
        prm.set_visible(False)
    _reward(reward, rounds)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _by_round(axes: Axes, rows: Sequence[Mapping[str, Any]], title: str, only: set[str] | None = None) -> bool:
    names = [name for name in rows[0] if (name in only if only else name not in _NOT_CURVES)]
    curves = {name: [(row["round"], row[name]) for row in rows if row[name] is not None] for name in names}
    for name, points in curves.items():
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name.replace("_", " "))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("round", fontsize=9)
    axes.set_xticks([row["round"] for row in rows])
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8) if any(curves.values()) else None
    return any(curves.values())


def _reward(axes: Axes, rounds: Sequence[Round]) -> None:
    start = 0
    for one in rounds:
        if one.policy.artifact is None or "metrics" not in one.policy.artifact.tables:
            continue
        metrics = one.policy.artifact.read("metrics").sort("step")
        name = "reward" if "reward" in metrics.columns and metrics["reward"].null_count() < metrics.height else "loss"
        if name not in metrics.columns:
            continue
        curve = metrics.select("step", pl.col(name)).drop_nulls()
        axes.plot(curve["step"] - curve["step"].min() + start, curve[name], label=f"round {one.number}")
        axes.set_title(f"{name} by training step", fontsize=10)
        start += curve.height
    axes.set_xlabel("step", fontsize=9)
    axes.grid(alpha=0.3)
    if start:
        axes.legend(fontsize=8)
    else:
        axes.set_visible(False)
