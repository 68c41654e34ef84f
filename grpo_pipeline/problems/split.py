"""Which problems are held out for evaluation: decided by problem_id and seed, never by row."""

import polars as pl

from grpo_pipeline.seeds import derive_seed


def order_by_draw(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The problems in a random order that depends on seed and problem_ids alone, not on the rows' order."""
    ids = frame["problem_id"].to_list()
    draw = pl.Series("_draw", [derive_seed(seed, "split", identifier) for identifier in ids], dtype=pl.Int64)
    return frame.with_columns(draw).sort("_draw", "problem_id").drop("_draw")


def split_problems(frame: pl.DataFrame, eval_count: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Draw evaluation problems.

    More evaluation problems under the same seed contain the fewer; a problem that is added to or taken from
    the source moves at most one other across the split.

    Args:
        frame: Problems, each once.
        eval_count: How many to hold out, fewer than there are.
        seed: Seed of the draw.

    Returns:
        (training problems, evaluation problems), disjoint in problem_id, each in the order of the draw.

    Raises:
        ValueError: A problem stands twice, or nothing would be left for training.
    """
    if frame["problem_id"].is_duplicated().any():
        raise ValueError("a problem stands twice: remove duplicates before the split")
    if eval_count >= frame.height:
        raise ValueError(f"{eval_count} evaluation problems of {frame.height} leave none for training")
    ordered = order_by_draw(frame, seed)
    return ordered.slice(eval_count), ordered.head(eval_count)
