"""Stage 3: step labels from completions (METHOD 1), and their rows for PRM training."""

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.rollouts import LazyEngine
from grpo_pipeline.stages.run import ModelRef, Run, generation_settings, problem_shards, shard_plan
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1


def label_steps(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rollouts: ArtifactRef,
    completer: ModelRef,
) -> ArtifactRef:
    """Label every step of `rollouts`; tables `completions` and `step_labels`, the cost receipt in the manifest.

    The ledger lies beside the artifacts, in ``ledger/``: a larger N, another schedule or a restart samples
    only what is missing.
    """
    from grpo_pipeline.labelling.label import label_steps as label
    from grpo_pipeline.labelling.ledger import Ledger

    run = Run(config)
    place = config.labelling.completer or config.model
    spec = run.spec(
        "step_labels",
        VERSION,
        round,
        (problems, rollouts, completer),
        labelling=config.labelling,
        sampling=config.sampling,
        generation=generation_settings(config, place),
    )
    if found := run.store.find(spec):
        return found
    frames = {table: rollouts.read(table) for table in ("rollouts", "checked", "steps")}
    gold = problems.read("problems")
    shards = problem_shards(frames["rollouts"]["problem_id"].unique().to_list(), config.store.problems_per_shard)

    what = f"run {config.name}: step_labels, round {round}"
    with LazyEngine(config.engine, place, completer, what) as engine_of, Ledger(run.scratch("ledger")) as ledger:

        def make(shard: int) -> ShardResult:
            part = {table: frame.filter(pl.col("problem_id").is_in(shards[shard])) for table, frame in frames.items()}
            result = label(
                gold,
                part["rollouts"],
                part["checked"],
                part["steps"],
                engine_of(),
                config.labelling,
                config.sampling,
                seed=config.seed,
                ledger=ledger,
            )
            return ShardResult(
                frames={"completions": result.completions, "step_labels": result.step_labels},
                counts=result.counts,
                tokens=int(result.completions["n_tokens"].sum()),
                receipt=result.receipt,
            )

        return run.store.build(spec, shard_plan(shards), make)


def build_prm_rows(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rollouts: ArtifactRef,
    labels: ArtifactRef,
) -> ArtifactRef:
    """This round's own rows of the `prm_dataset` table."""
    from grpo_pipeline.prm_dataset import build_prm_rows as build

    run = Run(config)
    spec = run.spec("prm_rows", VERSION, round, (problems, rollouts, labels), max_length=config.reward_model.max_length)

    def make(_: int) -> ShardResult:
        rows = build(
            rollouts.read("rollouts"),
            rollouts.read("steps"),
            labels.read("step_labels"),
            problems.read("problems"),
            max_length=config.reward_model.max_length,
        )
        return ShardResult(frames={"prm_dataset": rows.frame}, counts=rows.counts)

    return run.store.build(spec, 1, make)


def mix_replay(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rows: ArtifactRef,
    history: tuple[ArtifactRef, ...],
) -> ArtifactRef:
    """The refreshed training set: this round's rows and `replay.fraction` of earlier ones (METHOD 6).

    The manifest's receipt says how many rows came from which round, its counts how many were wanted in vain.
    """
    from grpo_pipeline.replay import mix_replay as mix

    run = Run(config)
    spec = run.spec("prm_dataset", VERSION, round, (problems, rows, *history), replay=config.replay)

    def make(_: int) -> ShardResult:
        held_out = problems.read("problems").filter(pl.col("split") == "eval")["problem_id"]
        mixed = mix(
            rows.read("prm_dataset"),
            {ref.round: ref.read("prm_dataset") for ref in history},
            fraction=config.replay.fraction,
            seed=run.seed("replay", round),
            eval_problem_ids=set(held_out.to_list()),
        )
        return ShardResult(
            frames={"prm_dataset": mixed.frame},
            counts={"replay_rows": mixed.n_replay, "replay_missing": mixed.n_missing},
            receipt={
                "replay_rows": {str(key): count for key, count in sorted(mixed.composition.items())},
                "replay_share": mixed.share,
            },
        )

    return run.store.build(spec, 1, make)
