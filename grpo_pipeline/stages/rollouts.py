"""Stage 2: solutions sampled from a policy, checked and split into steps."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import polars as pl

from grpo_pipeline.config import EngineConfig, ModelConfig, RunConfig, SamplingConfig
from grpo_pipeline.engines.protocol import Engine
from grpo_pipeline.labelling.ledger import CompletionLedger
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
from grpo_pipeline.workers.build import build_in_shards
from grpo_pipeline.workers.maker import Make

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
    chosen = _choose(problems.read("problems"), config, purpose, run.seed("choose", purpose, round))
    shards = problem_shards(chosen["problem_id"].to_list(), config.store.problems_per_shard)
    maker = RolloutShards(config, purpose, round, problems, policy, shards)
    return build_in_shards(run.store, spec, shard_plan(shards), maker, config.workers)


@dataclass(frozen=True)
class RolloutShards:
    """Makes shards of sampled solutions (`workers.maker.ShardMaker`)."""

    config: RunConfig
    purpose: Purpose
    round: int
    problems: ArtifactRef
    policy: ModelRef
    shards: list[list[str]]
    ledger_folder: None = None

    @property
    def place(self) -> tuple[str, int]:
        """See `ShardMaker.place`."""
        return self.config.model.device, self.config.engine.gpus

    @contextmanager
    def open(self, ledger: CompletionLedger | None) -> Iterator[Make]:
        """See `ShardMaker.open`."""
        from grpo_pipeline.labelling.steps import split_rollouts
        from grpo_pipeline.prompts import PromptBuilder
        from grpo_pipeline.rollouts import check_rollouts
        from grpo_pipeline.rollouts import sample_rollouts as sample

        config, stage = self.config, f"{self.purpose}_rollouts"
        sampling, group_size = _plan(config, self.purpose)
        frame = self.problems.read("problems")
        examples = few_shot_examples(frame, config)
        what = f"run {config.name}: {stage}, round {self.round}"
        with engine_of_stage(config.engine, config.model, self.policy, what) as engine:
            prompts = PromptBuilder(engine.tokenizer, config.prompt, examples.iter_rows(named=True))

            def make(shard: int) -> ShardResult:
                part = frame.filter(pl.col("problem_id").is_in(self.shards[shard]))
                sampled = sample(
                    part,
                    engine,
                    prompts,
                    sampling,
                    group_size=group_size,
                    stage=stage,
                    round=self.round,
                    seed=config.seed,
                )
                return ShardResult(
                    frames={
                        "rollouts": sampled.frame,
                        "checked": check_rollouts(sampled.frame, part),
                        "steps": split_rollouts(sampled.frame, engine.tokenizer, config.labelling.splitter),
                    },
                    counts=sampled.counts,
                    tokens=int(sampled.frame["token_ids"].list.len().sum()),
                )

            yield make


def few_shot_examples(problems: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """The worked examples put before every question: training problems with a solution, chosen by the run's seed."""
    # One more than is shown: a question is never shown its own solution.
    wanted = config.prompt.examples + 1 if config.prompt.examples else 0
    worked = problems.filter((pl.col("split") == "train") & pl.col("gold_solution").is_not_null())
    ranked = sorted(worked["problem_id"].to_list(), key=lambda key: derive_seed(config.seed, "few-shot", key))
    return worked.filter(pl.col("problem_id").is_in(ranked[:wanted])).sort("problem_id")


@contextmanager
def engine_of_stage(config: EngineConfig, place: ModelConfig, model: ModelRef, what: str) -> Iterator[Engine]:
    """An engine that has its GPU to itself; one on a server needs none here.

    Args:
        config: The engine's settings.
        place: How and where the model is loaded.
        model: The model.
        what: What it is for, as others who wait for the GPU are told.
    """
    from grpo_pipeline.engines.opening import open_engine
    from grpo_pipeline.processes.devices import hold_devices

    with ExitStack() as stack:
        if config.gpus:
            stack.enter_context(hold_devices(place.device, what, config.gpus))
        yield stack.enter_context(open_engine(model.local_folder(), place, config, model_id=model.model_id))


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
