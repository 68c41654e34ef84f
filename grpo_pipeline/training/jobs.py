"""One training as a stage asks for it, in this process or in several that `accelerate launch` starts.

A job is all that a training needs, so that it can be written to a folder and read by the processes that do it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.store.shards import Staging

if TYPE_CHECKING:
    from grpo_pipeline.training.processes import Processes

OnStep = Callable[[int, dict[str, pl.DataFrame]], None]

METRICS_AT_ONCE = 10
"""Optimizer steps of a reward model in one shard of metrics: writing one takes a fifth of a small model's step.
Unfinished builds rest on it, so a change is a new version of the stage."""

JOB = "job.json"


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        trainer: Which one.
        config: The run's configuration.
        name: Its name in trackers.
        log_dir: Where trackers keep files.
        staging: Where the tables of its steps go.
        arguments: The trainer's own arguments that are JSON values.
        paths: Those that are paths.
        frames: Those that are frames.
    """

    trainer: Literal["policy", "reward_model"]
    config: RunConfig
    name: str
    log_dir: Path
    staging: Staging
    arguments: dict[str, Any]
    paths: dict[str, Path]
    frames: dict[str, pl.DataFrame]


@dataclass(frozen=True)
class JobResult:
    """What a stage records of a finished training.

    Attributes:
        model_id: Content id of the model that was written.
        counts: What the trainer counted.
        receipt: What else it says, JSON values.
    """

    model_id: str
    counts: dict[str, int]
    receipt: dict[str, Any] = field(default_factory=dict)


def run_job(job: Job, write: OnStep, processes: "Processes | None" = None) -> JobResult:
    """Do a training in this process, one of those that train together.

    Args:
        job: What to train.
        write: Takes the tables of a policy's step, or of `METRICS_AT_ONCE` of a reward model; called in the main
            process.
        processes: Who trains together; None for this process alone.

    Raises:
        UserError: As the trainers do, and for a tracker that is not installed.
    """
    from grpo_pipeline.training.processes import ALONE
    from grpo_pipeline.training.trackers import Trackers

    processes = processes or ALONE
    training = job.config.training
    if not processes.is_main:
        return _train(job, None, processes)
    settings = job.config.model_dump(mode="json") | {"round": job.arguments["round"]}
    with Trackers(training, job.name, job.log_dir, settings) as trackers:

        def on_step(step: int, frames: dict[str, pl.DataFrame]) -> None:
            write(step, frames)
            if "metrics" in frames:
                trackers.log(frames["metrics"])

        return _train(job, on_step, processes)


def _train(job: Job, on_step: OnStep | None, processes: "Processes") -> JobResult:
    arguments: dict[str, Any] = job.arguments | job.paths | job.frames
    if job.trainer == "policy":
        from grpo_pipeline.training.policy import train_policy

        policy = train_policy(config=job.config, on_step=on_step, processes=processes, **arguments)
        receipt = {"stopped_early": policy.stopped_early, "reward_hacking": policy.reward_hacking}
        return JobResult(policy.policy_id, policy.counts, receipt)
    from grpo_pipeline.training.reward_model import train_reward_model

    trained = train_reward_model(
        config=job.config.reward_model,
        training=job.config.training,
        model=job.config.model,
        on_step=on_step,
        steps_at_once=METRICS_AT_ONCE,
        processes=processes,
        **arguments,
    )
    return JobResult(trained.model_id, trained.counts)


def write_job(job: Job, folder: Path) -> None:
    """Put a job into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in job.frames.items():
        frame.write_ipc(folder / f"{name}.arrow")
    staging = job.staging
    record = {
        "trainer": job.trainer,
        "config": job.config.model_dump(mode="json"),
        "name": job.name,
        "log_dir": str(job.log_dir.absolute()),
        "staging": [staging.root, staging.fingerprint, staging.data, staging.rows_per_group],
        "arguments": job.arguments,
        "paths": {name: str(path.absolute()) for name, path in job.paths.items()},
        "frames": list(job.frames),
    }
    (folder / JOB).write_text(json.dumps(record), encoding="utf-8")


def read_job(folder: Path) -> Job:
    """Take a job out of a folder."""
    record: Mapping[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
    return Job(
        trainer=record["trainer"],
        config=RunConfig.model_validate(record["config"]),
        name=record["name"],
        log_dir=Path(record["log_dir"]),
        staging=Staging(*record["staging"]),
        arguments=record["arguments"],
        paths={name: Path(path) for name, path in record["paths"].items()},
        frames={name: pl.read_ipc(folder / f"{name}.arrow") for name in record["frames"]},
    )
