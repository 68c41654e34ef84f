import polars as pl

from grpo_pipeline.report.comparison_plots import by_k


def test_votes_are_drawn_in_order_of_k():
    metrics = ["maj1", "maj16", "maj2", "maj64", "maj8", "pass4", "majority"]
    own = pl.DataFrame({"variant": ["a"] * 7, "metric": metrics, "value": [0.1, 0.4, 0.2, 0.6, 0.3, 0.9, 0.0]})
    rows = by_k(pl.concat([own, own.with_columns(variant=pl.lit("b"))]), "a", "maj")
    assert rows["k"].to_list() == [1, 2, 8, 16, 64]
    assert rows["value"].to_list() == [0.1, 0.2, 0.3, 0.4, 0.6]
