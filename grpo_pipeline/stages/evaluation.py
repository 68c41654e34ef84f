"""Stages that measure, on held-out problems only: the policy, its reward model, and the labels."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.labelling.ledger import CompletionLedger
from grpo_pipeline.processes.devices import hold_devices
from grpo_pipeline.stages.run import ModelRef, Run, rows_of_shard, shard_plan, solution_shards
from grpo_pipeline.store import ArtifactRef, ShardResult
from grpo_pipeline.workers.build import build_in_shards
from grpo_pipeline.workers.maker import Make

VERSION = 1

ScoreStage = Literal["step_scores", "solution_scores"]


def score_rollouts(
    config: RunConfig,
    round: int,
    rollouts: ArtifactRef,
    reward_model: ModelRef,
) -> ArtifactRef:
    """The reward model's scores: of every step, table `step_scores`, or of solutions, table `solution_scores`."""
    run = Run(config)
    stage: ScoreStage = "step_scores" if config.reward_model.kind == "prm" else "solution_scores"
    spec = run.spec(stage, VERSION, round, (rollouts, reward_model), dtype=config.model.dtype)
    if found := run.store.find(spec):
        return found
    shards = solution_shards(rollouts, config.store.problems_per_shard)
    maker = ScoreShards(config, stage, round, rollouts, reward_model, shards)
    return build_in_shards(run.store, spec, shard_plan(shards), maker, config.workers)


@dataclass(frozen=True)
class ScoreShards:
    """Makes shards of a reward model's scores (`workers.maker.ShardMaker`)."""

    config: RunConfig
    stage: ScoreStage
    round: int
    rollouts: ArtifactRef
    reward_model: ModelRef
    shards: list[list[str]]
    ledger_folder: None = None

    @property
    def place(self) -> tuple[str, int]:
        """See `ShardMaker.place`."""
        return self.config.model.device, 1

    @contextmanager
    def open(self, ledger: CompletionLedger | None) -> Iterator[Make]:
        """See `ShardMaker.open`."""
        from grpo_pipeline.models.reward import RewardModel
        from grpo_pipeline.models.scoring import score_outcomes, score_steps

        place, budget = self.config.model, self.config.training.tokens_per_microbatch
        tables = ("rollouts", "steps") if self.stage == "step_scores" else ("rollouts",)
        frames = {table: self.rollouts.scan(table, "full") for table in tables}
        turn = threading.Lock()
        with hold_devices(place.device, f"run {self.config.name}: {self.stage}, round {self.round}"):
            model = RewardModel.load(
                self.reward_model.local_folder(),
                dtype=place.dtype,
                device=place.device,
                trust_remote_code=place.trust_remote_code,
            )

            def make(shard: int) -> ShardResult:
                part = rows_of_shard(frames, self.shards[shard])
                with turn:
                    if self.stage == "step_scores":
                        scores = score_steps(model, part["rollouts"], part["steps"], tokens_per_batch=budget)
                    else:
                        scores = score_outcomes(model, part["rollouts"], tokens_per_batch=budget)
                return ShardResult(frames={self.stage: scores})

            yield make


def evaluate_policy(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    rollouts: ArtifactRef,
    greedy: ArtifactRef,
    scores: ArtifactRef | None,
) -> ArtifactRef:
    """Accuracy, votes and best-of-n of the policy that sampled `rollouts`; table `evaluations`."""
    from grpo_pipeline.evaluation.policy import evaluate_policy as evaluate

    run = Run(config)
    how = config.reward_model.aggregate
    spec = run.spec(
        "policy_evaluation",
        VERSION,
        round,
        (problems, rollouts, greedy, scores),
        samples=config.evaluation.samples,
        aggregate=how,
    )

    def make(_: int) -> ShardResult:
        solutions = _solution_scores(scores, config) if scores else None
        frame = evaluate(
            problems.read("problems"),
            rollouts.read("rollouts"),
            rollouts.read("checked"),
            solutions,
            greedy=greedy.read("checked"),
            k=config.evaluation.samples,
            round=round,
        )
        return ShardResult(frames={"evaluations": frame})

    return run.store.build(spec, 1, make)


def _solution_scores(scores: ArtifactRef, config: RunConfig) -> pl.DataFrame:
    """rollout_id and a score that may be a weight in a vote: not negative."""
    from grpo_pipeline.models.aggregate import score_solutions, strengths

    if "step_scores" in scores.tables:
        return score_solutions(scores.read("step_scores"), config.reward_model.aggregate)
    frame = scores.read("solution_scores")
    return strengths(frame) if config.reward_model.kind == "pairwise" else frame.select("rollout_id", "score")


def evaluate_outcome_model(
    config: RunConfig,
    round: int,
    common: tuple[ArtifactRef, ArtifactRef],
    own: tuple[ArtifactRef, ArtifactRef],
) -> ArtifactRef:
    """Quality of an ORM or a pairwise model on held-out solutions; table `evaluations`.

    Two sets, each given as rollouts and their scores, as in `evaluate_prm`: `common`, the starting policy's, and
    `own`, the round's policy's, whose metrics end in ``_on_policy``.
    """
    from grpo_pipeline.evaluation.outcome import evaluate_outcome_model as evaluate

    run = Run(config)
    kind = config.reward_model.kind
    spec = run.spec("outcome_model_evaluation", VERSION, round, (*common, *own), kind=kind)

    def make(_: int) -> ShardResult:
        def measure(rollouts: ArtifactRef, scores: ArtifactRef) -> pl.DataFrame:
            return evaluate(scores.read("solution_scores"), rollouts.read("checked"), kind=kind, round=round)

        on_policy = measure(*own).with_columns(pl.col("metric") + "_on_policy")
        return ShardResult(frames={"evaluations": pl.concat([measure(*common), on_policy])})

    return run.store.build(spec, 1, make)


def evaluate_prm(
    config: RunConfig,
    round: int,
    problems: ArtifactRef,
    common: tuple[ArtifactRef, ArtifactRef],
    own: tuple[ArtifactRef, ArtifactRef],
    labelled: tuple[ArtifactRef, ArtifactRef],
) -> ArtifactRef:
    """Quality of a PRM on held-out solutions, and of the labels it was trained on; table `evaluations`.

    Two sets of held-out solutions, each given as rollouts and their step scores: `common`, the starting policy's,
    is the same for the PRMs of all rounds, so that they compare; `own`, the round's policy's, is what the PRM will
    judge next, and harder (that policy was trained to please its predecessor); its metrics end in ``_on_policy``.
    Generated problems carry their exact state, against which every step is judged. Where there is no such oracle,
    the PRM is measured against the solutions' outcomes alone. `labelled` holds the rollouts that were labelled and
    their labels, whose quality is measured too.
    """
    from grpo_pipeline.evaluation.labels import label_quality
    from grpo_pipeline.evaluation.oracle import judge_rollouts
    from grpo_pipeline.evaluation.prm import evaluate_prm as evaluate

    run = Run(config)
    solutions, labels = labelled
    spec = run.spec("prm_evaluation", VERSION, round, (problems, *common, *own, solutions, labels))

    def make(_: int) -> ShardResult:
        gold = problems.read("problems")

        def measure(rollouts: ArtifactRef, scores: ArtifactRef) -> pl.DataFrame:
            truth = judge_rollouts(gold, rollouts.read("steps"))
            return evaluate(scores.read("step_scores"), rollouts.read("checked"), truth=truth, round=round)

        on_policy = measure(*own).with_columns(pl.col("metric") + "_on_policy")
        figures = [measure(*common), on_policy]
        label_truth = judge_rollouts(gold, solutions.read("steps"))
        if label_truth.height:
            completer = labels.read("completions")["completer_id"].first()
            figures.append(
                label_quality(
                    labels.read("step_labels"), label_truth, round=round, completer_id=str(completer or "none")
                )
            )
        return ShardResult(frames={"evaluations": pl.concat(figures)})

    return run.store.build(spec, 1, make)
