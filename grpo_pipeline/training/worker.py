"""One of the processes that `training.launch` starts.

accelerate launch ... -m grpo_pipeline.training.worker FOLDER
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.store.shards import ShardResult, Staging, shard_key
from grpo_pipeline.training.jobs import read_job, run_job
from grpo_pipeline.training.launch import ERROR, RESULT
from grpo_pipeline.training.processes import LaunchedProcesses


class StepWriter:
    """Writes the tables of steps as shards of the artifact that is being built."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._mark = time.monotonic()

    def __call__(self, step: int, frames: dict[str, pl.DataFrame]) -> None:
        """Write a step."""
        key = shard_key(step)
        for table, frame in frames.items():
            now = time.monotonic()
            self._staging.write(f"{table}.{key}", key, ShardResult({table: frame}), now - self._mark)
            self._mark = now


def main() -> None:
    """Do this process's part of the job in the folder; a user's mistake is left there as a message."""
    from grpo_pipeline.models.loading import pick_device

    folder = Path(sys.argv[1])
    job = read_job(folder)
    processes = LaunchedProcesses(on_cpu=pick_device(job.config.model.device).type == "cpu")
    try:
        result = run_job(job, StepWriter(job.staging), processes)
    except UserError as error:
        (folder / ERROR.format(rank=processes.rank)).write_text(str(error), encoding="utf-8")
        sys.exit(2)
    if processes.is_main:
        (folder / RESULT).write_text(json.dumps(asdict(result)), encoding="utf-8")
    processes.close()


if __name__ == "__main__":
    main()
