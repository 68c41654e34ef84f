"""Stages that make models: the starting policy, the reward model, the trained policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import polars as pl

from grpo_pipeline.config import NO_NUMBERS, ModelConfig, RunConfig
from grpo_pipeline.processes.devices import hold_devices
from grpo_pipeline.stages.rollouts import few_shot_examples
from grpo_pipeline.stages.run import ModelRef, Run, function_hashes, generation_settings
from grpo_pipeline.store import ArtifactRef, Build, StageSpec
from grpo_pipeline.training.jobs import Job, JobResult, OnStep, run_job

POLICY_VERSION = 1

REWARD_MODEL_VERSION = 2
"""Another `jobs.METRICS_AT_ONCE` needs another version: shards of an unfinished build would hold rows twice."""


def base_policy(config: RunConfig) -> ModelRef:
    """The policy to start from: the embedded model, a local folder or a Hugging Face id."""
    return _outside_model(config.model)


def choose_completer(config: RunConfig, policy: ModelRef) -> ModelRef:
    """The model that completes prefixes: `labelling.completer`, or the policy itself."""
    return policy if config.labelling.completer is None else _outside_model(config.labelling.completer)


def train_reward_model(
    config: RunConfig,
    round: int,
    dataset: ArtifactRef,
    start: ModelRef,
) -> ModelRef:
    """Train the reward model on `dataset`, from a policy (the first one) or the previous reward model.

    `dataset` holds the table `prm_dataset` for a PRM or an ORM, `preference_pairs` for a pairwise model.
    """
    # What the other rounds are trained with is no part of this one's identity.
    config = config.model_copy(update={"reward_model": config.reward_model.of_round(round)})
    run = Run(config)
    spec = run.spec(
        "reward_model",
        REWARD_MODEL_VERSION,
        round,
        (dataset, start),
        reward_model=config.reward_model,
        dtype=config.model.dtype,
        training=_numerics(config),
    )
    table = "preference_pairs" if config.reward_model.kind == "pairwise" else "prm_dataset"

    def inputs() -> _Inputs:
        rows = dataset.read(table).filter(pl.col("split") == "train")
        arguments = {"seed": run.seed("reward_model", round), "parents": [dataset.fingerprint]}
        return {"dataset": rows}, {"model_dir": start.folder}, arguments

    return _train(run, spec, "reward_model", inputs)


def train_policy(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    policy: ModelRef,
    reward_model: ModelRef | None,
) -> ModelRef:
    """Train the policy by the configured method; the artifact holds the model and what each step saw.

    Tables: `rollouts`, `checked`, `steps`, `advantages`, `metrics`, and `step_scores` or `solution_scores` where a
    reward model was used; one shard for each exploration step.
    """
    run = Run(config)
    spec = run.spec(
        "policy",
        POLICY_VERSION,
        round,
        (problems, policy, reward_model),
        policy=config.policy,
        sampling=config.sampling,
        prompt=config.prompt,
        splitter=config.labelling.splitter,
        aggregate=config.reward_model.aggregate,
        generation=generation_settings(config, config.model),
        training=_numerics(config),
        **function_hashes(config, "labelling.splitter", "policy.reward.custom"),
    )

    def inputs() -> _Inputs:
        train_split = problems.read("problems").filter(pl.col("split") == "train")
        frames = {
            "problems": train_split,
            "demonstrations": train_split.filter(pl.col("gold_solution").is_not_null()),
            "examples": few_shot_examples(train_split, config),
        }
        paths = {"model_dir": policy.folder}
        if reward_model is not None:
            paths["reward_model_dir"] = reward_model.folder
        return frames, paths, {"seed": run.seed("policy", round), "policy_id": policy.model_id}

    return _train(run, spec, "policy", inputs)


_Inputs = tuple[dict[str, pl.DataFrame], dict[str, Path], dict[str, Any]]
"""Frames, paths and other arguments of a trainer."""


def _train(
    run: Run, spec: StageSpec, trainer: Literal["policy", "reward_model"], inputs: Callable[[], _Inputs]
) -> ModelRef:
    """The artifact of a training: the one that is there, or made now, in as many processes as are configured."""
    found = run.store.find(spec)
    if found is None:
        with run.store.open_build(spec) as build:
            if build.ref is None:
                frames, paths, arguments = inputs()
                job = Job(
                    trainer=trainer,
                    config=run.config,
                    name=f"{run.config.name}-{spec.stage}-r{spec.round}-{spec.fingerprint[:8]}",
                    log_dir=run.scratch("logs"),
                    staging=build.staging,
                    arguments=arguments | {"round": spec.round},
                    paths=paths | {"out_dir": build.model_dir, "workdir": build.workdir / "checkpoints"},
                    frames=frames,
                )
                what = f"run {run.config.name}: {spec.stage}, round {spec.round}"
                with hold_devices(run.config.model.device, what, run.config.training.processes):
                    result = _run(job, build)
                tokens = result.counts["tokens" if trainer == "reward_model" else "sampled_tokens"]
                build.finish(counts=result.counts, tokens=tokens, receipt=result.receipt, content_id=result.model_id)
            found = build.ref
    assert found is not None
    return _model_ref(found)


def _run(job: Job, build: Build) -> JobResult:
    if job.config.training.processes == 1:
        return run_job(job, _writer(build))
    from grpo_pipeline.training.launch import launch_job

    result = launch_job(job, build.workdir / "job")
    build.worked()  # the processes have timed their steps themselves
    return result


def _numerics(config: RunConfig) -> dict[str, object]:
    return config.training.model_dump(mode="json", exclude=set(NO_NUMBERS))


def _writer(build: Build) -> OnStep:
    def write(step: int, frames: dict[str, pl.DataFrame]) -> None:
        for table, frame in frames.items():
            build.write(table, step, frame)

    return write


def _outside_model(model: ModelConfig) -> ModelRef:
    from grpo_pipeline.models.content import content_id
    from grpo_pipeline.models.loading import resolve_model

    folder = resolve_model(model)
    return ModelRef(folder=folder, model_id=content_id(folder))


def _model_ref(artifact: ArtifactRef) -> ModelRef:
    model = artifact.manifest().model
    assert model is not None, f"{artifact} was made by a stage that saves a model"
    return ModelRef(folder=artifact.model_path(), model_id=model.content_id, artifact=artifact)
