"""Stage 2: solutions sampled from a policy, checked and split into steps."""

from contextlib import ExitStack
from typing import Literal, Self

import polars as pl

from grpo_pipeline.config import EngineConfig, ModelConfig, RunConfig, SamplingConfig
from grpo_pipeline.engines.protocol import Engine
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.stages.run import (
    ModelRef,
    Run,
    function_hashes,
    generation_settings,
    problem_shards,
    shard_plan,
)
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1

Purpose = Literal["label", "evaluate", "greedy"]
"""What rollouts are for: to be labelled, to measure the policy, or its greedy answers."""


def sample_rollouts(
    config: RunConfig,
    purpose: Purpose,
    round: int,
    problems: ArtifactRef,
    policy: ModelRef,
) -> ArtifactRef:
    """Sample, check and split solutions; tables `rollouts`, `checked` and `steps`.

    Solutions to be labelled come from training problems (a seeded choice of `labelling.problems` in each
    round); all others from the held-out ones.
    """
    from grpo_pipeline.labelling.steps import split_rollouts
    from grpo_pipeline.prompts import PromptBuilder
    from grpo_pipeline.rollouts import check_rollouts
    from grpo_pipeline.rollouts import sample_rollouts as sample

    run = Run(config)
    sampling, group_size = _plan(config, purpose)
    spec = run.spec(
        f"{purpose}_rollouts",
        VERSION,
        round,
        (problems, policy),
        sampling=sampling,
        prompt=config.prompt,
        generation=generation_settings(config, config.model),
        splitter=config.labelling.splitter,
        group_size=group_size,
        problems=config.labelling.problems if purpose == "label" else None,
        **function_hashes(config, "labelling.splitter"),
    )
    if found := run.store.find(spec):
        return found
    frame = problems.read("problems")
    examples = few_shot_examples(frame, config)
    chosen = _choose(frame, config, purpose, run.seed("choose", purpose, round))
    shards = problem_shards(chosen["problem_id"].to_list(), config.store.problems_per_shard)

    what = f"run {config.name}: {purpose}_rollouts, round {round}"
    with LazyEngine(config.engine, config.model, policy, what) as engine_of:

        def make(shard: int) -> ShardResult:
            engine = engine_of()
            part = chosen.filter(pl.col("problem_id").is_in(shards[shard]))
            prompts = PromptBuilder(engine.tokenizer, config.prompt, examples.iter_rows(named=True))
            sampled = sample(
                part,
                engine,
                prompts,
                sampling,
                group_size=group_size,
                stage=f"{purpose}_rollouts",
                round=round,
                seed=config.seed,
            )
            checked = check_rollouts(sampled.frame, part)
            steps = split_rollouts(sampled.frame, engine.tokenizer, config.labelling.splitter)
            tokens = int(sampled.frame["token_ids"].list.len().sum())
            return ShardResult(
                frames={"rollouts": sampled.frame, "checked": checked, "steps": steps},
                counts=sampled.counts,
                tokens=tokens,
            )

        return run.store.build(spec, shard_plan(shards), make)


def few_shot_examples(problems: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """The worked examples put before every question: training problems with a solution, chosen by the run's seed."""
    # One more than is shown: a question is never shown its own solution.
    wanted = config.prompt.examples + 1 if config.prompt.examples else 0
    worked = problems.filter((pl.col("split") == "train") & pl.col("gold_solution").is_not_null())
    ranked = sorted(worked["problem_id"].to_list(), key=lambda key: derive_seed(config.seed, "few-shot", key))
    return worked.filter(pl.col("problem_id").is_in(ranked[:wanted])).sort("problem_id")


class LazyEngine:
    """An engine that is opened when first asked for: a stage with nothing left to sample loads no model.

    It has its GPU to itself from then on; an engine on a server needs none here.

    Args:
        config: The engine's settings.
        place: How and where the model is loaded.
        model: The model.
        what: What it is for, as others who wait for the GPU are told.
    """

    def __init__(self, config: EngineConfig, place: ModelConfig, model: ModelRef, what: str) -> None:
        self.config = config
        self.place = place
        self.model = model
        self.what = what
        self.engine: Engine | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> Engine:
        """The engine, opened now if it was not."""
        if self.engine is None:
            from grpo_pipeline.engines.opening import open_engine
            from grpo_pipeline.processes.devices import hold_devices

            if self.config.kind != "server":
                count = self.config.tensor_parallel_size if self.config.kind == "vllm" else 1
                self._stack.enter_context(hold_devices(self.place.device, self.what, count))
            self.engine = open_engine(self.model.folder, self.place, self.config, model_id=self.model.model_id)
            self._stack.callback(self.engine.close)
        return self.engine

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _plan(config: RunConfig, purpose: Purpose) -> tuple[SamplingConfig, int]:
    if purpose == "label":
        return config.sampling, config.labelling.rollouts
    if purpose == "greedy":
        return config.sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0}), 1
    temperature = config.evaluation.temperature
    return config.sampling.model_copy(update={"temperature": temperature, "top_p": 1.0}), config.evaluation.samples


def _choose(problems: pl.DataFrame, config: RunConfig, purpose: Purpose, seed: int) -> pl.DataFrame:
    split = "train" if purpose == "label" else "eval"
    available = problems.filter(pl.col("split") == split)
    if purpose != "label":
        return available
    ranked = sorted(available["problem_id"].to_list(), key=lambda key: derive_seed(seed, key))
    return available.filter(pl.col("problem_id").is_in(ranked[: config.labelling.problems]))
