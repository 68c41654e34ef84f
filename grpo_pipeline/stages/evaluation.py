"""Stages that measure, on held-out problems only: the policy, its reward model, and the labels."""

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.processes.devices import hold_devices
from grpo_pipeline.stages.run import ModelRef, Run
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1


def score_rollouts(
    config: RunConfig,
    round: int,
    rollouts: ArtifactRef,
    reward_model: ModelRef,
) -> ArtifactRef:
    """The reward model's score of every step; table `step_scores`."""
    from grpo_pipeline.models.reward import RewardModel
    from grpo_pipeline.models.scoring import score_steps

    run = Run(config)
    place = config.model
    spec = run.spec("step_scores", VERSION, round, (rollouts, reward_model), dtype=place.dtype)

    def make(_: int) -> ShardResult:
        with hold_devices(place.device, f"run {config.name}: step_scores, round {round}"):
            model = RewardModel.load(
                reward_model.folder, dtype=place.dtype, device=place.device, trust_remote_code=place.trust_remote_code
            )
            scores = score_steps(
                model,
                rollouts.read("rollouts"),
                rollouts.read("steps"),
                tokens_per_batch=config.training.tokens_per_microbatch,
            )
        return ShardResult(frames={"step_scores": scores})

    return run.store.build(spec, 1, make)


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
    from grpo_pipeline.models.scoring import score_solutions

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
        solutions = score_solutions(scores.read("step_scores"), how) if scores else None
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
