"""What a comparison prints: readable in a terminal of 80 columns."""

import io

import polars as pl
from rich.console import Console

from grpo_pipeline.report.comparison import costs_table, figures_table
from grpo_pipeline.tables import from_rows

TITLES = {"start": "starting policy", "mixed": "GRPO, process + outcome, 2 rounds"}


def comparison():
    figures = {"accuracy": 0.5, "greedy": 0.25, "maj1": 0.5, "maj64": 0.7, "pass1": 0.5, "pass64": 0.9}
    figures |= {"mean_tokens": 37.94, "kl": 0.0421, "policy_tokens": 155143.0, "label_tokens": 482300.0}
    figures |= {"optimizer_steps": 16.0}
    return from_rows(
        [
            {
                "variant": variant,
                "against": "",
                "metric": metric,
                "value": value,
                "standard_error_seeds": 0.01,
                "standard_error_problems": 0.02,
                "n_seeds": 3,
                "n_problems": 300,
            }
            for variant in ("start", "mixed@1", "mixed")
            for metric, value in figures.items()
        ],
        "comparison",
    )


def printed(table):
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_figures_fit_into_eighty_columns():
    rows = printed(figures_table(comparison(), TITLES))
    assert rows[0] == ["starting policy", "0.500 ± 0.020", "0.250", "0.700", "0.900"]
    assert [row[0] for row in rows[1:3]] == ["GRPO, process + outcome, 2", "rounds, after round 1"]
    assert rows[3][0] == "GRPO, process + outcome, 2 rounds"


def test_costs_fit_into_eighty_columns():
    rows = printed(costs_table(comparison(), TITLES))
    assert rows[0] == ["starting policy", "37.9", "0.042", "155,143", "482,300", "16"]
    assert len(rows) <= 6


def test_what_a_variant_has_not_stays_empty():
    without = comparison().filter((pl.col("variant") != "mixed") | ~pl.col("metric").is_in(["kl", "label_tokens"]))
    rows = printed(costs_table(without, TITLES))
    assert rows[-2][2:5] == ["", "155,143", ""]
