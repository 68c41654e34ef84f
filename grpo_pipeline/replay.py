"""Rows of earlier rounds in the refreshed reward-model set (METHOD 6).

The new reward model would forget what earlier policies got wrong if it saw only the newest one's solutions.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import polars as pl

from grpo_pipeline.prm_dataset import require_training_rows
from grpo_pipeline.seeds import derive_seed


@dataclass(frozen=True)
class ReplayMix:
    """The refreshed training set and where its historical rows come from.

    Attributes:
        frame: The columns of its input: the new rows, then the historical ones with is_replay set; the same
            whatever order the input rows had.
        composition: round -> historical rows taken from it; every earlier round is listed.
        n_wanted: Historical rows that the fraction asks for.
    """

    frame: pl.DataFrame
    composition: dict[int, int]
    n_wanted: int

    @property
    def n_replay(self) -> int:
        """Historical rows in the set."""
        return sum(self.composition.values())

    @property
    def share(self) -> float:
        """Share of historical rows in the set, in [0, 1); 0 for an empty set."""
        return self.n_replay / self.frame.height if self.frame.height else 0.0

    @property
    def n_missing(self) -> int:
        """Historical rows that were wanted but are not there: the earlier rounds were too small."""
        return self.n_wanted - self.n_replay


def mix_replay(
    new: pl.DataFrame,
    history: Mapping[int, pl.DataFrame],
    *,
    fraction: float,
    seed: int,
    eval_problem_ids: Collection[str],
) -> ReplayMix:
    """Add historical rows so that they are `fraction` of the whole: n_replay = round(n_new * f / (1 - f)).

    Drawn without replacement, decided by the seed and the rows' ids alone, spread over all earlier rounds as
    evenly as their sizes allow (a remainder goes to the newest), never a row of an evaluation problem. Where
    fewer are there than wanted, all are taken and `n_missing` says how many lack.

    Args:
        new: `prm_dataset` or `preference_pairs` rows of the newest round.
        history: Earlier round -> the rows that were *new* in it.
        fraction: Share of historical rows in the result, in [0, 1).
        seed: Seed of the draw.
        eval_problem_ids: Problems whose rows are never taken, besides all rows with split eval.

    Raises:
        ValueError: fraction outside [0, 1); a new row of an evaluation problem; a history frame with replayed
            rows in it, rows of another round, or rows that are also in another frame.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is {fraction}, expected a share in [0, 1)")
    require_training_rows(new, eval_problem_ids)
    _check_history(new, history)
    n_wanted = round(new.height * fraction / (1 - fraction))
    excluded = list(eval_problem_ids)
    usable = {
        round_: frame.filter((pl.col("split") == "train") & ~pl.col("problem_id").is_in(excluded))
        for round_, frame in sorted(history.items())
    }
    composition = spread_evenly({round_: frame.height for round_, frame in usable.items()}, n_wanted)
    key = _key(new)
    drawn = [_draw(frame, key, composition[round_], seed, round_) for round_, frame in usable.items()]
    order = ["round", "problem_id", key]
    replayed = [frame.select(new.columns).with_columns(pl.lit(value=True).alias("is_replay")) for frame in drawn]
    parts = [new.with_columns(pl.lit(value=False).alias("is_replay")).sort(order)]
    parts += [frame.sort(order) for frame in replayed if frame.height]
    return ReplayMix(pl.concat(parts), composition, n_wanted)


def spread_evenly(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Shares of `total` for rounds of these sizes, as equal as they can be; the newest get a remainder.

    No round gets more than its size; two rounds differ by more than one only where the smaller is used up.
    """
    shares = dict.fromkeys(sizes, 0)
    left = min(total, sum(sizes.values()))
    while left:
        unused = sorted(round_ for round_ in sizes if shares[round_] < sizes[round_])
        each = left // len(unused)
        # Less than one for each: the newest get one more.
        for round_ in unused if each else unused[-left:]:
            given = min(sizes[round_] - shares[round_], max(each, 1))
            shares[round_] += given
            left -= given
    return shares


def _key(rows: pl.DataFrame) -> str:
    return "rollout_id" if "rollout_id" in rows.columns else "pair_id"


def _draw(frame: pl.DataFrame, key: str, count: int, seed: int, round_: int) -> pl.DataFrame:
    """The `count` rows that come first in a shuffle keyed by their ids, so that row order plays no part."""
    keys = [derive_seed(seed, "replay", round_, row_id) for row_id in frame[key]]
    return frame.with_columns(pl.Series("_key", keys, dtype=pl.Int64)).sort("_key", key).head(count).drop("_key")


def _check_history(new: pl.DataFrame, history: Mapping[int, pl.DataFrame]) -> None:
    key = _key(new)
    seen = set(new[key])
    for round_, frame in history.items():
        if frame["is_replay"].any():
            raise ValueError(f"history of round {round_} holds replayed rows; pass the rows that were new in it")
        if frame.filter(pl.col("round") != round_).height:
            raise ValueError(f"history of round {round_} holds rows of other rounds")
        ids = set(frame[key])
        if len(ids) != frame.height or seen & ids:
            raise ValueError(f"history of round {round_} holds rows twice, or rows that another frame holds too")
        seen |= ids
