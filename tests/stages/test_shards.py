"""Shards of problems: what is in them says whether an earlier session's can be kept."""

import polars as pl
import pytest

from grpo_pipeline.stages.run import problem_shards, shard_plan
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows

IDS = [f"{i:03d}" for i in range(100)]


def test_shards_hold_every_problem_once_whatever_the_order():
    shards = problem_shards(IDS[::-1], 64)
    assert [len(shard) for shard in shards] == [64, 36]
    assert [one for shard in shards for one in shard] == IDS


def test_a_run_that_goes_on_with_another_cut_has_every_problem_once(tmp_path):
    """64 + 36 and 60 + 40 are two shards both: their number alone would keep the first and add the second."""
    store, spec = Store(tmp_path), StageSpec("cut", 1, 0, {}, (), 0)

    def build(size, die_at=None):
        shards = problem_shards(IDS, size)

        def make(index):
            if index == die_at:
                raise KeyboardInterrupt
            rows = [
                {"problem_id": one, "source": "s", "split": "train", "question": one, "gold_answer": "1"}
                for one in shards[index]
            ]
            return ShardResult({"problems": from_rows(rows, "problems")})

        return store.build(spec, shard_plan(shards), make)

    with pytest.raises(KeyboardInterrupt):
        build(64, die_at=1)
    assert build(60).read("problems").select(pl.col("problem_id").sort()).to_series().to_list() == IDS
