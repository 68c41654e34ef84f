"""What a round made, its record in the store, and the run's summary."""

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import ModelRef, Run
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 2

STAGE = "round"


class Labelled(BaseModel):
    """Artifacts of labelling: solutions, their step labels (a PRM's only), this round's rows, the set with replay."""

    model_config = ConfigDict(frozen=True)

    rollouts: ArtifactRef
    labels: ArtifactRef | None = None
    rows: ArtifactRef
    dataset: ArtifactRef


class Measured(BaseModel):
    """Artifacts of evaluation; the last three are None where there is no reward model.

    `scores` and `prm` (the quality of the reward model) are those of whatever kind it is. `labelled_scores` holds a
    PRM's scores of the labelled solutions that it was trained on: not to measure it by, but to find labels that it
    disagrees with.
    """

    model_config = ConfigDict(frozen=True)

    rollouts: ArtifactRef
    greedy: ArtifactRef
    policy: ArtifactRef
    scores: ArtifactRef | None = None
    prm: ArtifactRef | None = None
    labelled_scores: ArtifactRef | None = None


class Round(BaseModel):
    """A finished round, and all that the next one needs.

    Attributes:
        number: 0 is the starting policy's.
        problems: The run's problems.
        policy: The round's policy.
        labelled: Its solutions and their labels.
        reward_model: The reward model, refreshed on them.
        measured: Figures of both.
        history: The own rows of all earlier rounds, oldest first.
        common: Solutions of the starting policy on which the reward models of all rounds are measured.
        previous: Fingerprint of the previous round's record; None for round 0.
        record: The artifact that says that the round is finished; None until it is written.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    problems: ArtifactRef
    policy: ModelRef
    labelled: Labelled
    reward_model: ModelRef
    measured: Measured
    history: tuple[ArtifactRef, ...] = ()
    common: ArtifactRef
    previous: str | None = None
    record: ArtifactRef | None = Field(None, exclude=True)

    def artifacts(self) -> list[ArtifactRef]:
        """Every artifact of the round, in the order they were made."""
        made = [
            self.problems,
            self.policy.artifact,
            self.labelled.rollouts,
            self.labelled.labels,
            self.labelled.rows,
            self.labelled.dataset,
            self.reward_model.artifact,
            self.measured.rollouts,
            self.measured.greedy,
            self.measured.scores,
            self.measured.policy,
            self.measured.prm,
            self.measured.labelled_scores,
        ]
        return [artifact for artifact in made if artifact is not None]


def finish_round(config: RunConfig, made: Round) -> ArtifactRef:
    """Record a round as finished: an artifact with all its figures, whose parents are all it made.

    A schedule finds the newest finished round by these records (`stages.history`), not by Prefect's database. The
    earlier rounds are named, and are no parents, so that `gc` may remove what only they need.
    """
    run = Run(config)
    spec = run.spec(STAGE, VERSION, made.number, tuple(made.artifacts()), previous=made.previous)

    def make(_: int) -> ShardResult:
        figures = [part.read("evaluations") for part in (made.measured.policy, made.measured.prm) if part]
        return ShardResult(
            frames={"evaluations": pl.concat(figures)},
            receipt={"round": made.model_dump(mode="json")},
        )

    return run.store.build(spec, 1, make)
