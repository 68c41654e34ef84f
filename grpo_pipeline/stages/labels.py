"""Stage 3: what reward models train on: step labels from completions (METHOD 1), verdicts, and pairs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.ledger import CompletionLedger
from grpo_pipeline.stages.rollouts import engine_of_stage
from grpo_pipeline.stages.run import ModelRef, Run, generation_settings, rows_of_shard, shard_plan, solution_shards
from grpo_pipeline.store import ArtifactRef, ShardResult
from grpo_pipeline.workers.build import build_in_shards
from grpo_pipeline.workers.maker import Make

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
    shards = solution_shards(rollouts, config.store.problems_per_shard)
    maker = LabelShards(config, round, problems, rollouts, completer, shards, run.scratch("ledger"))
    return build_in_shards(run.store, spec, shard_plan(shards), maker, config.workers)


@dataclass(frozen=True)
class LabelShards:
    """Makes shards of step labels (`workers.maker.ShardMaker`)."""

    config: RunConfig
    round: int
    problems: ArtifactRef
    rollouts: ArtifactRef
    completer: ModelRef
    shards: list[list[str]]
    ledger_folder: Path

    @property
    def place(self) -> tuple[str, int]:
        """See `ShardMaker.place`."""
        return (self.config.labelling.completer or self.config.model).device, self.config.engine.gpus

    @contextmanager
    def open(self, ledger: CompletionLedger | None) -> Iterator[Make]:
        """See `ShardMaker.open`."""
        from grpo_pipeline.labelling.label import label_steps as label

        config = self.config
        # Lazily: memory holds one shard's rows at a time, however many there are.
        frames = {table: self.rollouts.scan(table, "full") for table in ("rollouts", "checked", "steps")}
        gold = self.problems.scan("problems", "full").select("problem_id", "gold_answer").collect()
        place = config.labelling.completer or config.model
        what = f"run {config.name}: step_labels, round {self.round}"
        with engine_of_stage(config.engine, place, self.completer, what) as engine:

            def make(shard: int) -> ShardResult:
                part = rows_of_shard(frames, self.shards[shard])
                result = label(
                    gold,
                    part["rollouts"],
                    part["checked"],
                    part["steps"],
                    engine,
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

            yield make


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
        _require_rows(rows.counts, "prm", round)
        return ShardResult(frames={"prm_dataset": rows.frame}, counts=rows.counts)

    return run.store.build(spec, 1, make)


def build_orm_rows(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rollouts: ArtifactRef,
    policy: ModelRef,
) -> ArtifactRef:
    """This round's own rows for an outcome reward model: table `prm_dataset` with one label, the verdict.

    `policy` is the model whose backbone and tokenizer the reward model has.
    """
    from grpo_pipeline.models.loading import read_eos_ids
    from grpo_pipeline.prm_dataset import build_orm_rows as build

    run = Run(config)
    eos = sorted(read_eos_ids(policy.folder))
    max_length = config.reward_model.max_length
    spec = run.spec("orm_rows", VERSION, round, (problems, rollouts), max_length=max_length, eos=eos)

    def make(_: int) -> ShardResult:
        rows = build(
            rollouts.read("rollouts"),
            rollouts.read("checked"),
            problems.read("problems"),
            max_length=max_length,
            eos_token_ids=eos,
        )
        _require_rows(rows.counts, "orm", round)
        return ShardResult(frames={"prm_dataset": rows.frame}, counts=rows.counts)

    return run.store.build(spec, 1, make)


def _require_rows(counts: dict[str, int], kind: str, round: int) -> None:
    if counts["rows"] == 0:
        raise UserError(
            f"no row to train the {kind} on among the solutions of round {round} ({listed(counts)}): label "
            "more of them (labelling.problems, labelling.rollouts); where they are cut off raise sampling.max_tokens, "
            "where they are too long reward_model.max_length"
        )


def build_pair_rows(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rollouts: ArtifactRef,
    policy: ModelRef,
) -> ArtifactRef:
    """This round's own pairs for a pairwise reward model: table `preference_pairs`; `policy` as in `build_orm_rows`.

    Raises:
        UserError: No problem has a correct and a wrong solution.
    """
    from grpo_pipeline.models.loading import read_eos_ids
    from grpo_pipeline.prm_dataset import build_pair_rows as build

    run = Run(config)
    eos = sorted(read_eos_ids(policy.folder))
    per_problem, max_length = config.reward_model.pairs_per_problem, config.reward_model.max_length
    spec = run.spec(
        "pair_rows",
        VERSION,
        round,
        (problems, rollouts),
        pairs_per_problem=per_problem,
        max_length=max_length,
        eos=eos,
    )

    def make(_: int) -> ShardResult:
        rows = build(
            rollouts.read("rollouts"),
            rollouts.read("checked"),
            problems.read("problems"),
            pairs_per_problem=per_problem,
            max_length=max_length,
            eos_token_ids=eos,
            seed=run.seed("pairs", round),
        )
        if rows.frame.is_empty():
            raise UserError(
                f"no preference pair among the labelled solutions of round {round} ({listed(rows.counts)}): a "
                "problem needs a correct and a wrong one; raise labelling.problems or labelling.rollouts"
            )
        return ShardResult(frames={"preference_pairs": rows.frame}, counts=rows.counts)

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
    (table,) = rows.tables

    def make(_: int) -> ShardResult:
        held_out = problems.read("problems").filter(pl.col("split") == "eval")["problem_id"]
        mixed = mix(
            rows.read(table),
            {ref.round: ref.read(table) for ref in history},
            fraction=config.replay.fraction,
            seed=run.seed("replay", round),
            eval_problem_ids=set(held_out.to_list()),
        )
        return ShardResult(
            frames={table: mixed.frame},
            counts={"replay_rows": mixed.n_replay, "replay_missing": mixed.n_missing},
            receipt={
                "replay_rows": {str(key): count for key, count in sorted(mixed.composition.items())},
                "replay_share": mixed.share,
            },
        )

    return run.store.build(spec, 1, make)
