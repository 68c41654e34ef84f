"""A comparison as plots: held-out accuracy, votes against k, training metrics over steps.

Colours are of Okabe and Ito's palette, which readers with any common colour vision deficiency can tell apart; line
styles and markers say the same a second time. Bands and bars are one standard error to each side.
"""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import polars as pl

from grpo_pipeline.report.comparison import variant_title

STYLES = (
    ("#000000", "-", "o"),
    ("#0072B2", "--", "s"),
    ("#D55E00", "-", "^"),
    ("#009E73", "--", "D"),
    ("#CC79A7", "-", "v"),
    ("#E69F00", "--", "P"),
    ("#56B4E9", "-", "X"),
    ("#7F7F7F", ":", "*"),
)
"""Colour, line and marker of each variant shown, in order."""

PANELS = {
    "accuracy": "accuracy of the rollouts",
    "reward": "reward",
    "kl": "KL to the reference (nats per token)",
    "completions/mean_length": "response length (tokens)",
}
"""Training metrics that are drawn, and their axes."""


def draw_comparison(
    comparison: pl.DataFrame, steps: pl.DataFrame, titles: Mapping[str, str], shown: Sequence[str]
) -> dict[str, bytes]:
    """File name -> PNG: accuracy, votes, training and, where a PRM scored the training rollouts, reward_model.

    Args:
        comparison: The `comparison` table.
        steps: The `comparison_steps` table.
        titles: Variant -> its name for people.
        shown: At most eight variants, drawn in the plots with lines; the accuracy of all is drawn.
    """
    own = comparison.filter(pl.col("against") == "")
    styles = {name: STYLES[i] for i, name in enumerate(shown)}
    made = {"accuracy.png": _accuracy(own, titles), "votes.png": _votes(own, titles, styles)}
    if steps.height:
        made["training.png"] = _training(steps, titles, styles)
    if (steps["metric"] == "prm_score").any():
        made["reward_model.png"] = _reward_model(steps, titles)
    return made


def _accuracy(own: pl.DataFrame, titles: Mapping[str, str]) -> bytes:
    rows = own.filter(pl.col("metric") == "accuracy")
    names = [variant_title(name, titles) for name in rows["variant"]]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = list(range(len(names)))
        start = rows["value"][0]
        axes.axvline(start, color="#7F7F7F", linestyle=":", linewidth=1)
        axes.errorbar(rows["value"], places, xerr=_errors(rows), fmt="o", color="#0072B2", ecolor="#000000", capsize=3)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("held-out accuracy, one sample (± 1 standard error)")
        axes.grid(axis="x", alpha=0.3)

    return _png(draw, (8.0, 0.8 + 0.36 * len(names)))


def _votes(own: pl.DataFrame, titles: Mapping[str, str], styles: Mapping[str, tuple[str, str, str]]) -> bytes:
    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, kind in zip(panels, ("maj", "pass"), strict=True):
            for variant, style in styles.items():
                rows = by_k(own, variant, kind)
                _curve(axes, rows["k"].to_list(), rows, style, variant_title(variant, titles))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_xlabel("k")
            axes.set_title(f"{kind}@k on held-out problems")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("share of problems")
        _legend(figure, panels[0])

    return _png(draw, (10.0, 5.2))


def by_k(own: pl.DataFrame, variant: str, kind: str) -> pl.DataFrame:
    """A variant's rows of maj@k or pass@k (`kind` "maj" or "pass") with their k, in its order."""
    rows = own.filter((pl.col("variant") == variant) & pl.col("metric").str.contains(rf"^{kind}\d+$"))
    return rows.with_columns(k=pl.col("metric").str.extract(r"(\d+)$").cast(pl.Int64)).sort("k")


def _training(steps: pl.DataFrame, titles: Mapping[str, str], styles: Mapping[str, tuple[str, str, str]]) -> bytes:
    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (metric, label) in zip(panels.flat, PANELS.items(), strict=True):
            for variant, style in styles.items():
                rows = steps.filter((pl.col("variant") == variant) & (pl.col("metric") == metric)).sort("step")
                if rows.height:
                    _curve(axes, rows["step"].to_list(), rows, style, variant_title(variant, titles), every=4)
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
        for axes in panels[1]:
            axes.set_xlabel("exploration step")
        _legend(figure, panels[0, 0])

    return _png(draw, (10.0, 7.2))


def _reward_model(steps: pl.DataFrame, titles: Mapping[str, str]) -> bytes:
    variants = steps.filter(pl.col("metric") == "prm_score")["variant"].unique(maintain_order=True).to_list()

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(variants), sharey=True, squeeze=False)[0]
        for axes, variant in zip(panels, variants, strict=True):
            for style, metric, label in (
                (STYLES[2], "prm_score", "PRM's score of the solution"),
                (STYLES[0], "accuracy", "accuracy"),
            ):
                rows = steps.filter((pl.col("variant") == variant) & (pl.col("metric") == metric)).sort("step")
                _curve(axes, rows["step"].to_list(), rows, style, label, every=4)
            axes.set_title(variant_title(variant, titles).replace(", ", ",\n", 1), fontsize=9)
            axes.set_xlabel("exploration step")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("mean over rollouts")
        _legend(figure, panels[0])

    return _png(draw, (max(5.0, 2.4 * len(variants)), 3.8))


def _curve(
    axes: Any, places: Sequence[int], rows: pl.DataFrame, style: tuple[str, str, str], label: str, every: int = 1
) -> None:
    colour, line, marker = style
    values, errors = rows["value"].to_numpy(), _errors(rows)
    axes.plot(
        places,
        values,
        color=colour,
        linestyle=line,
        marker=marker,
        markersize=4,
        markevery=every,
        linewidth=1.4,
        label=label,
    )
    axes.fill_between(places, values - errors, values + errors, color=colour, alpha=0.15, linewidth=0)


def _errors(rows: pl.DataFrame) -> Any:
    """The larger of the standard errors that the rows have, 0 where there is none."""
    columns = [name for name in rows.columns if name.startswith("standard_error_")]
    return rows.select(pl.max_horizontal(*columns, pl.lit(0.0)).fill_null(0.0)).to_series().to_numpy()


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)


def _png(draw: Callable[[Any], None], size: tuple[float, float]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not through pyplot, whose state is the whole process's: a task may run in any thread.
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    draw(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
