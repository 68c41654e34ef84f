"""Stages that make models: the starting policy, the reward model, the trained policy."""

from collections.abc import Callable

import polars as pl

from grpo_pipeline.config import ModelConfig, RunConfig
from grpo_pipeline.processes.devices import hold_devices
from grpo_pipeline.stages.rollouts import few_shot_examples
from grpo_pipeline.stages.run import ModelRef, Run, generation_settings
from grpo_pipeline.store import ArtifactRef, Build

VERSION = 1


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
    """Train the reward model on `dataset`, from a policy (the first one) or the previous reward model."""
    from grpo_pipeline.training.reward_model import train_reward_model as train

    run = Run(config)
    spec = run.spec(
        "reward_model",
        VERSION,
        round,
        (dataset, start),
        reward_model=config.reward_model,
        dtype=config.model.dtype,
        training=_numerics(config),
    )
    found = run.store.find(spec)
    if found is None:
        with run.store.open_build(spec) as build:
            if build.ref is None:
                with hold_devices(config.model.device, f"run {config.name}: reward_model, round {round}"):
                    result = train(
                        dataset=dataset.read("prm_dataset").filter(pl.col("split") == "train"),
                        model_dir=start.folder,
                        out_dir=build.model_dir,
                        workdir=build.workdir,
                        config=config.reward_model,
                        training=config.training,
                        seed=run.seed("reward_model", round),
                        round=round,
                        model=config.model,
                        parents=[dataset.fingerprint],
                        on_step=_writer(build),
                    )
                build.finish(counts=result.counts, tokens=result.counts["tokens"], content_id=result.model_id)
            found = build.ref
    assert found is not None
    return _model_ref(found)


def train_policy(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    policy: ModelRef,
    reward_model: ModelRef | None,
) -> ModelRef:
    """Train the policy by the configured method; the artifact holds the model and what each step saw.

    Tables: `rollouts`, `checked`, `steps`, `advantages`, `metrics`, and `step_scores` where a reward model
    was used; one shard for each exploration step.
    """
    from grpo_pipeline.training.policy import train_policy as train

    run = Run(config)
    spec = run.spec(
        "policy",
        VERSION,
        round,
        (problems, policy, reward_model),
        policy=config.policy,
        sampling=config.sampling,
        prompt=config.prompt,
        splitter=config.labelling.splitter,
        aggregate=config.reward_model.aggregate,
        generation=generation_settings(config, config.model),
        training=_numerics(config),
    )
    found = run.store.find(spec)
    if found is None:
        with run.store.open_build(spec) as build:
            if build.ref is None:
                train_split = problems.read("problems").filter(pl.col("split") == "train")
                worked = train_split.filter(pl.col("gold_solution").is_not_null())
                with hold_devices(config.model.device, f"run {config.name}: policy, round {round}"):
                    result = train(
                        model_dir=policy.folder,
                        out_dir=build.model_dir,
                        workdir=build.workdir,
                        problems=train_split,
                        config=config,
                        round=round,
                        seed=run.seed("policy", round),
                        policy_id=policy.model_id,
                        reward_model_dir=reward_model.folder if reward_model else None,
                        demonstrations=worked,
                        examples=few_shot_examples(train_split, config),
                        on_step=_writer(build),
                    )
                build.finish(
                    counts=result.counts,
                    tokens=result.counts["sampled_tokens"],
                    receipt={"stopped_early": result.stopped_early, "reward_hacking": result.reward_hacking},
                    content_id=result.policy_id,
                )
            found = build.ref
    assert found is not None
    return _model_ref(found)


def _numerics(config: RunConfig) -> dict[str, object]:
    # How often a checkpoint is written changes nothing in the result.
    return config.training.model_dump(mode="json", exclude={"checkpoint_every"})


def _writer(build: Build) -> Callable[[int, dict[str, pl.DataFrame]], None]:
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
