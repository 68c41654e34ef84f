"""A comparison in words and numbers: Markdown tables for a file, a table for the terminal."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.table import Table

from grpo_pipeline.evaluation.comparison import TestedClaim

COSTS = ("policy_tokens", "label_tokens", "optimizer_steps")
_BESIDE = ("mean_tokens", "kl")
"""Figures that say how a policy answers, not how often it is right."""


def figure_columns(comparison: pl.DataFrame) -> list[str]:
    """The figures that the table of variants shows: accuracy, greedy, the largest maj@k and pass@k, length, KL."""
    metrics = set(comparison["metric"])
    largest = max((int(m[4:]) for m in metrics if re.fullmatch(r"pass\d+", m)), default=1)
    wanted = ("accuracy", "greedy", f"maj{largest}", f"pass{largest}", "mean_tokens", "kl")
    return [name for name in wanted if name in metrics]


def comparison_markdown(
    comparison: pl.DataFrame, claims: Sequence[TestedClaim], titles: Mapping[str, str], seeds: Sequence[int]
) -> str:
    """Two tables, of the variants and of the claims, with what their numbers mean.

    Args:
        comparison: The `comparison` table.
        claims: What was tested.
        titles: Variant -> its name for people; others go by their own.
        seeds: The comparison's seeds.
    """
    own = comparison.filter(pl.col("against") == "")
    columns = figure_columns(own)
    lines = [
        f"Seeds: {', '.join(map(str, seeds))}. In brackets the standard errors over seeds and over problems.",
        "",
        _line(["variant", *columns, *COSTS]),
        _line(["---", *("---:" for _ in (*columns, *COSTS))]),
    ]
    for variant in own["variant"].unique(maintain_order=True).to_list():
        rows = {row["metric"]: row for row in own.filter(pl.col("variant") == variant).iter_rows(named=True)}
        cells = [*(_figure(rows.get(name)) for name in columns), *(_cost(rows.get(name)) for name in COSTS)]
        lines.append(_line([variant_title(variant, titles), *cells]))
    lines += ["", _line(["claim", "figure", "difference", "verdict"]), _line(["---", "---", "---:", "---"])]
    differences = {
        (row["variant"], row["against"], row["metric"]): row
        for row in comparison.filter(pl.col("against") != "").iter_rows(named=True)
    }
    for one in claims:
        row = differences[one.claim.better, one.claim.worse, one.claim.metric]
        pair = f"{variant_title(one.claim.better, titles)} less {variant_title(one.claim.worse, titles)}"
        lines.append(_line([f"{one.claim.claim}: {pair}", one.claim.metric, _figure(row, "+"), one.verdict]))
    lines += ["", "A claim holds, or is reversed, where the difference is above two of the larger standard error."]
    return "\n".join(lines) + "\n"


def figures_table(comparison: pl.DataFrame, titles: Mapping[str, str]) -> Table:
    """One row a variant, for a terminal of 80 columns: right answers, with the larger standard error of the first."""
    columns = [name for name in figure_columns(comparison) if name not in _BESIDE]
    return _variants_table("Held-out problems, mean over seeds", comparison, titles, columns, columns[:1])


def costs_table(comparison: pl.DataFrame, titles: Mapping[str, str]) -> Table:
    """One row a variant, for a terminal of 80 columns: length of responses, KL to the start, and what it cost."""
    columns = [name for name in figure_columns(comparison) if name in _BESIDE]
    return _variants_table("Length, KL and costs", comparison, titles, [*columns, *COSTS], [])


def _variants_table(
    title: str, comparison: pl.DataFrame, titles: Mapping[str, str], columns: Sequence[str], with_error: Sequence[str]
) -> Table:
    own = comparison.filter(pl.col("against") == "")
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("variant", min_width=24)
    for name in columns:
        # A name a line, or rich would rather leave a column out than make them narrower.
        table.add_column(name.replace("_", "\n"), justify="right", min_width=13 if name in with_error else 6)
    for variant in own["variant"].unique(maintain_order=True).to_list():
        rows = {row["metric"]: row for row in own.filter(pl.col("variant") == variant).iter_rows(named=True)}
        table.add_row(
            variant_title(variant, titles), *(_cell(rows.get(name), name, name in with_error) for name in columns)
        )
    return table


def _cell(row: Mapping[str, Any] | None, name: str, with_error: bool) -> str:
    return _cost(row) if name in COSTS else _short(row, with_error)


def claims_table(claims: Sequence[TestedClaim]) -> Table:
    """One row a claim, for the terminal."""
    table = Table(title="Claims", title_justify="left", header_style="bold")
    for name in ("claim", "figure", "difference", "verdict"):
        table.add_column(name, justify="right" if name == "difference" else "left")
    for one in claims:
        error = "" if one.standard_error is None else f" ± {one.standard_error:.3f}"
        table.add_row(one.claim.claim, one.claim.metric, f"{one.difference:+.3f}{error}", one.verdict)
    return table


def variant_title(variant: str, titles: Mapping[str, str]) -> str:
    """A variant's name for people; NAME@R reads "..., after round R"."""
    name, _, number = variant.partition("@")
    title = titles.get(name, name)
    return f"{title}, after round {number}" if number else title


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(row: Mapping[str, Any] | None, sign: str = "") -> str:
    if row is None:
        return ""
    digits = _digits(row["metric"])
    errors = [row["standard_error_seeds"], row["standard_error_problems"]]
    shown = ", ".join("-" if error is None else f"{error:.{digits}f}" for error in errors)
    return f"{row['value']:{sign}.{digits}f} ({shown})"


def _short(row: Mapping[str, Any] | None, with_error: bool) -> str:
    if row is None:
        return ""
    digits = _digits(row["metric"])
    errors = with_error and [e for e in (row["standard_error_seeds"], row["standard_error_problems"]) if e is not None]
    return f"{row['value']:.{digits}f}" + (f" ± {max(errors):.{digits}f}" if errors else "")


def _cost(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['value']:,.0f}"


def _digits(metric: str) -> int:
    return 1 if metric == "mean_tokens" else 3
