"""Stages that set several ways of training side by side: each policy's figures, then all of them together."""

from collections.abc import Iterable

import polars as pl
from pydantic import BaseModel, ConfigDict

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.rounds import Labelled
from grpo_pipeline.stages.run import ModelRef, Run
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1

STEP_METRICS = ("accuracy", "reward", "prm_score", "kl", "completions/mean_length", "entropy")
"""Training metrics that are compared step by step."""


class Trial(BaseModel):
    """One policy of a comparison: a variant after one of its rounds, with one seed.

    Attributes:
        variant: The variant's name; NAME@R for its policy after round R where further rounds follow.
        seed: The seed.
        policies: What each round made, up to this one; empty for the starting policy.
        labelled: What the reward models that were used so far were trained on.
        figures: Artifact with the policy's `problem_figures`.
    """

    model_config = ConfigDict(frozen=True)

    variant: str
    seed: int
    policies: tuple[ModelRef, ...]
    labelled: tuple[Labelled, ...]
    figures: ArtifactRef

    def artifacts(self) -> list[ArtifactRef]:
        """What the comparison reads of it."""
        return [self.figures, *(one.artifact for one in self.policies if one.artifact is not None), *self.sampled()]

    def sampled(self) -> list[ArtifactRef]:
        """What was sampled for its reward models: solutions, and for a PRM the completions of their steps."""
        return [ref for one in self.labelled for ref in (one.rollouts, one.labels) if ref is not None]


def measure_problems(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    start: ModelRef,
    rollouts: ArtifactRef,
    greedy: ArtifactRef,
) -> ArtifactRef:
    """Figures of the policy that sampled `rollouts`, problem by problem; table `problem_figures`.

    Its KL is that to `start`, the policy that all variants start from.
    """
    from grpo_pipeline.evaluation.per_problem import problem_figures
    from grpo_pipeline.evaluation.reference import reference_kl

    run = Run(config)
    samples = config.evaluation.samples
    spec = run.spec("problem_figures", VERSION, round, (problems, start, rollouts, greedy), samples=samples)

    def make(_: int) -> ShardResult:
        sampled = rollouts.read("rollouts")
        figures = problem_figures(
            problems.read("problems"),
            sampled,
            rollouts.read("checked"),
            greedy.read("checked"),
            reference_kl(sampled, start.folder, config.model, config.training),
            k=samples,
        )
        return ShardResult(frames={"problem_figures": figures})

    return run.store.build(spec, 1, make)


def compare_trials(config: RunConfig, trials: tuple[Trial, ...]) -> ArtifactRef:
    """All trials together; tables `comparison` and `comparison_steps`."""
    from grpo_pipeline.evaluation.comparison import Measurement, compare, compare_steps

    run = Run(config)
    spec = run.spec(
        "comparison",
        VERSION,
        0,
        tuple(_distinct(ref for trial in trials for ref in trial.artifacts())),
        trials=[[trial.variant, trial.seed, *(ref.fingerprint for ref in trial.artifacts())] for trial in trials],
        claims=[claim.model_dump(mode="json") for claim in config.comparison.claims],
    )

    def make(_: int) -> ShardResult:
        measured = [
            Measurement(
                variant=trial.variant,
                seed=trial.seed,
                figures=trial.figures.read("problem_figures"),
                costs=_costs(trial),
                metrics=_metrics(trial),
            )
            for trial in trials
        ]
        return ShardResult(
            frames={
                "comparison": compare(measured, config.comparison.claims),
                "comparison_steps": compare_steps(measured, STEP_METRICS),
            }
        )

    return run.store.build(spec, 1, make)


def _costs(trial: Trial) -> dict[str, float]:
    """Tokens that were sampled for the policy and for its labels, and the optimizer steps of the policy.

    Labels that several variants share count for each of them: each would need them by itself.
    """
    policies = [one.artifact.manifest() for one in trial.policies if one.artifact is not None]
    return {
        "policy_tokens": sum(manifest.tokens for manifest in policies),
        "label_tokens": sum(ref.manifest().tokens for ref in _distinct(trial.sampled())),
        "optimizer_steps": sum(manifest.counts["optimizer_steps"] for manifest in policies),
    }


def _metrics(trial: Trial) -> pl.DataFrame | None:
    """Its training metrics, exploration steps counted on over the rounds; None where it explored nothing."""
    if "@" in trial.variant:
        return None
    frames, before = [], 0
    for policy in trial.policies:
        if policy.artifact is None:
            continue
        frame = policy.artifact.read("metrics")
        if "exploration_step" not in frame.columns:
            return None
        frames.append(frame.with_columns(pl.col("exploration_step") + before))
        before += int(frame.select(pl.col("exploration_step").max()).item())
    return pl.concat(frames, how="diagonal") if frames else None


def _distinct(refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
    return list(dict.fromkeys(refs))
