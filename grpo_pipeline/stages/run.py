"""What a stage needs to know of its run, and what it says of the models it makes."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict

from grpo_pipeline.config import ModelConfig, RunConfig
from grpo_pipeline.entry_point import source_hash
from grpo_pipeline.errors import UserError
from grpo_pipeline.seeds import derive_id, derive_seed
from grpo_pipeline.store import ArtifactRef, StageSpec, Store


class ModelRef(BaseModel):
    """A model that a stage uses: one that a stage made, or one that the user brought.

    Attributes:
        folder: The model's folder.
        model_id: Content id of its files.
        artifact: The artifact that holds it; None for a model from outside the store.
    """

    model_config = ConfigDict(frozen=True)

    folder: Path
    model_id: str
    artifact: ArtifactRef | None = None

    def local_folder(self) -> Path:
        """The folder on the machine that asks: a worker elsewhere downloads the model of a remote store itself.

        Raises:
            UserError: The model lies outside the store, and this machine has no such folder.
        """
        if self.folder.is_dir():
            return self.folder
        if self.artifact is not None:
            return self.artifact.model_path()
        raise UserError(
            f"{self.folder}: no such model folder on {socket.gethostname()}, where a worker on Ray runs; put the model "
            "on a folder that all machines share"
        )


class Run:
    """A run's store and seed; made anew from the configuration in whatever process a stage runs."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.store = Store(run_root(config), rows_per_group=config.store.rows_per_group)

    def seed(self, *address: str | int) -> int:
        """A seed for a stage of this run (see `seeds.derive_seed`)."""
        return derive_seed(self.config.seed, *address)

    def scratch(self, name: str) -> Path:
        """A local folder beside the artifacts, for what outlives a stage but is no artifact (the ledger)."""
        return self.store.files.scratch() / name

    def spec(
        self,
        stage: str,
        version: int,
        round: int,
        parents: tuple[ArtifactRef | ModelRef | None, ...],
        **settings: Any,
    ) -> StageSpec:
        """The identity of a stage's artifact: what it is made from and with, and nothing else.

        Models from outside the store enter by their content id, everything else by its fingerprint. Pydantic
        sections among the settings are dumped whole.
        """
        artifacts = []
        for parent in parents:
            if isinstance(parent, ModelRef):
                if parent.artifact is None:
                    settings[f"model_{len(settings)}"] = parent.model_id
                else:
                    artifacts.append(parent.artifact)
            elif parent is not None:
                artifacts.append(parent)
        dumped = {
            key: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            for key, value in settings.items()
        }
        return StageSpec(
            stage=stage,
            version=version,
            round=round,
            config=dumped,
            parents=tuple(artifacts),
            seed=self.seed(stage, round),
        )


def generation_settings(config: RunConfig, model: ModelConfig) -> dict[str, Any]:
    """What decides texts and verdicts besides model, prompt and sampling: a part of the identity of their stages.

    Args:
        config: The run.
        model: How the model that generates is loaded.
    """
    from grpo_pipeline.answers import CHECKER_VERSION

    return {
        "engine": config.engine.kind,
        "max_model_len": config.engine.max_model_len,
        "dtype": model.dtype,
        "checker": CHECKER_VERSION,
    }


def function_hashes(
    config: RunConfig, *settings: Literal["problems.reader", "labelling.splitter", "policy.reward.custom"]
) -> dict[str, Any]:
    """The sources of the user's functions that some settings name, for `Run.spec`; nothing where they name none.

    So a function that was edited makes new artifacts, though its name is the same.
    """
    names = {
        "problems.reader": [config.problems.reader] if ":" in config.problems.reader else [],
        "labelling.splitter": [config.labelling.splitter] if ":" in config.labelling.splitter else [],
        "policy.reward.custom": list(config.policy.reward.custom),
    }
    hashes = {name: source_hash(name, setting) for setting in settings for name in names[setting]}
    return {"functions": hashes} if hashes else {}


def run_root(config: RunConfig) -> str:
    """Where the run's artifacts lie: the store root and the run's name."""
    return f"{config.root.rstrip('/')}/{config.name}"


def problem_shards(problem_ids: list[str], size: int) -> list[list[str]]:
    """Problem ids in shards of `size`, sorted, so that a shard's content does not depend on row order."""
    ordered = sorted(problem_ids)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def solution_shards(rollouts: ArtifactRef, size: int) -> list[list[str]]:
    """`problem_shards` of the problems that rollouts solve."""
    solved = rollouts.scan("rollouts").select(pl.col("problem_id").unique()).collect()["problem_id"]
    return problem_shards(solved.to_list(), size)


def rows_of_shard(frames: Mapping[str, pl.LazyFrame], shard: list[str]) -> dict[str, pl.DataFrame]:
    """The rows of a shard's problems, of each table."""
    # Shards are ranges of the sorted ids, which statistics of sorted row groups prune by.
    mine = pl.col("problem_id").is_between(pl.lit(shard[0]), pl.lit(shard[-1]))
    return {table: frame.filter(mine).collect() for table, frame in frames.items()}


def shard_plan(shards: list[list[str]]) -> list[str]:
    """What is in each shard, as `Store.build` takes it: shards of an earlier session fit only if cut the same."""
    return [derive_id(*shard) for shard in shards]
