"""Ten million step labels, aggregated by problem with polars: how long, and how much memory.

    python benchmarks/labels_parquet.py [--rows 10000000] [--quick] [--json FILE]

Makes step labels as the labelling stage stores them (the `step_labels` table in Parquet shards), then times the query
that docs/inspect.md's readers ask most: for each problem the number of steps, the share that is good, and the mean
soft label. Files are read from the page cache; every repeat is a new scan.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from machine import describe_machine, write_report

from grpo_pipeline.config.run import StoreConfig
from grpo_pipeline.schemas import TABLES

SHARD_ROWS = 1_000_000
STEPS = 5
ROLLOUTS = 8


def write_shards(folder: Path, rows: int) -> None:
    """Shards of the `step_labels` table: 5 steps a solution, 8 solutions a problem, 8 completions a step."""
    rng = np.random.default_rng(0)
    schema = TABLES["step_labels"].schema
    for shard, start in enumerate(range(0, rows, SHARD_ROWS)):
        n = min(SHARD_ROWS, rows - start)
        index = np.arange(start, start + n)
        correct = rng.binomial(8, 0.4, n).astype(np.int32)
        frame = pl.DataFrame(
            {
                # Ids are hashes: they do not compress, as those of a real run.
                "rollout_id": pl.Series(index // STEPS).hash(0).cast(pl.String).str.zfill(20),
                "problem_id": pl.Series(index // (STEPS * ROLLOUTS)).hash(1).cast(pl.String).str.zfill(20),
                "step_index": (index % STEPS).astype(np.int32),
                "n_completions": np.full(n, 8, np.int32),
                "n_correct": correct,
                "n_wrong": 8 - correct,
                "soft": (correct / 8).astype(np.float32),
                "hard": (correct > 0).astype(np.int8),
                "label_source": ["sampled"] * n,
            }
        )
        missing = {
            field.name: pl.lit(0 if field.name.startswith("n_") else 0.0)
            for field in schema
            if field.name not in frame.columns
        }
        table = frame.with_columns(**missing).select(schema.names).to_arrow().cast(schema)
        row_group = StoreConfig().rows_per_group
        pq.write_table(table, folder / f"part-{shard:05}.parquet", compression="zstd", row_group_size=row_group)


def by_problem(folder: Path) -> pl.DataFrame:
    """Steps, share of good steps and mean soft label of each problem."""
    return (
        pl.scan_parquet(folder / "*.parquet")
        .group_by("problem_id")
        .agg(steps=pl.len(), good=pl.col("hard").mean(), soft=pl.col("soft").mean())
        .collect(engine="streaming")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = options.rows // 10 if options.quick else options.rows
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_shards(folder, rows)
        size = sum(path.stat().st_size for path in folder.iterdir())
        seconds, cpu = [], []
        for repeat in range(6):
            started, used = time.perf_counter(), time.process_time()
            result = by_problem(folder)
            if repeat:
                seconds.append(time.perf_counter() - started)
                cpu.append(time.process_time() - used)
        assert int(result["steps"].sum()) == rows
    report = {
        "rows": rows,
        "problems": result.height,
        "parquet_mb": round(size / 1e6),
        "query_seconds": round(statistics.median(seconds), 3),
        "query_seconds_spread": [round(min(seconds), 3), round(max(seconds), 3)],
        "query_cpu_seconds": round(statistics.median(cpu), 3),
        "polars_threads": pl.thread_pool_size(),
        "cores": os.cpu_count(),
        "machine": describe_machine(),
    }
    write_report(report, options.json)


if __name__ == "__main__":
    main()
