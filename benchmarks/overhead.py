"""What the store and Prefect cost beside the bare library.

    python benchmarks/overhead.py [--quick] [--json FILE]

The same sampling stage three ways, in turns: the library's functions alone; the stage, which writes shards,
manifest and lineage; and the stage as a Prefect task in a flow on a temporary local server. Each run starts a new
store and loads the model. The server's own start is measured apart: it is paid once a flow run.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")

from machine import describe_machine, write_report
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import models, problems, rollouts
from tasks.stages import STAGES


def configure(root: Path, count: int) -> RunConfig:
    """A run of `count` problems with 4 rollouts each."""
    return RunConfig.model_validate(
        {
            "root": str(root),
            "name": "overhead",
            "problems": {"count": count, "eval_count": 8},
            "labelling": {"problems": count, "rollouts": 4},
            "sampling": {"max_tokens": 96},
        }
    )


def bare(config: RunConfig) -> None:
    """The library's functions on frames."""
    from grpo_pipeline.engines.opening import open_engine
    from grpo_pipeline.labelling.steps import split_rollouts
    from grpo_pipeline.prompts import PromptBuilder
    from grpo_pipeline.rollouts import check_rollouts, sample_rollouts

    frame = problems.make_problems(config).read("problems").filter(split="train")
    policy = models.base_policy(config)
    started = time.perf_counter()
    engine = open_engine(policy.folder, config.model, config.engine, model_id=policy.model_id)
    prompts = PromptBuilder(engine.tokenizer, config.prompt)
    for start in range(0, frame.height, config.store.problems_per_shard):
        part = frame.slice(start, config.store.problems_per_shard)
        sampled = sample_rollouts(
            part, engine, prompts, config.sampling, group_size=4, stage="label_rollouts", round=0, seed=config.seed
        ).frame
        check_rollouts(sampled, part)
        split_rollouts(sampled, engine.tokenizer, config.labelling.splitter)
    engine.close()
    TIMES["bare"].append(time.perf_counter() - started)


def stored(config: RunConfig) -> None:
    """The stage, without Prefect."""
    made, policy = problems.make_problems(config), models.base_policy(config)
    started = time.perf_counter()
    rollouts.sample_rollouts(config, "label", 0, made, policy)
    TIMES["store"].append(time.perf_counter() - started)


@flow(name="overhead")
def one_task(config: RunConfig, made: Any, policy: Any) -> None:
    """The stage as a task."""
    STAGES.sample_rollouts(config, "label", 0, made, policy)


def in_prefect(config: RunConfig) -> None:
    """The stage as the one task of a flow."""
    made, policy = problems.make_problems(config), models.base_policy(config)
    started = time.perf_counter()
    one_task(config, made, policy)
    TIMES["prefect"].append(time.perf_counter() - started)


TIMES: dict[str, list[float]] = {"bare": [], "store": [], "prefect": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer problems and repeats")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count, repeats = (64, 3) if options.quick else (256, 5)
    ways: list[Callable[[RunConfig], None]] = [bare, stored, in_prefect]
    started = time.perf_counter()
    with prefect_test_harness(server_startup_timeout=180):
        server = time.perf_counter() - started
        for repeat in range(repeats + 1):
            for way in ways:
                with tempfile.TemporaryDirectory() as root:
                    way(configure(Path(root), count))
            if not repeat:  # the first round warms up
                for times in TIMES.values():
                    times.clear()
    seconds = {name: statistics.median(times) for name, times in TIMES.items()}
    report = {
        "store_overhead_seconds": round(seconds["store"] - seconds["bare"], 3),
        "prefect_overhead_seconds": round(seconds["prefect"] - seconds["store"], 3),
        "server_start_seconds": round(server, 2),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "spread": {name: [round(min(times), 3), round(max(times), 3)] for name, times in TIMES.items()},
        "rollouts": count * 4,
        "shards": -(-count // 64),
        "repeats": repeats,
        "machine": describe_machine(),
    }
    write_report(report, options.json)


if __name__ == "__main__":
    main()
