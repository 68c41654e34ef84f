"""Held-out evaluation of a model: accuracy, greedy accuracy, maj@k and pass@k.

python -m flows.evaluate --config configs/quickstart.toml --set model.path=PATH
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.rounds import Labelled, Measured
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef
from tasks import stages


@flow(name="evaluate", flow_run_name="{config.name}")
def evaluate(config: RunConfig) -> Measured:
    """Measure the configured model on the held-out problems."""
    return measure_policy(config, 0, stages.make_problems(config), stages.base_policy(config))


def measure_policy(config: RunConfig, number: int, problems: ArtifactRef, policy: ModelRef) -> Measured:
    """Measure a policy by itself."""
    rollouts = stages.sample_rollouts(config, "evaluate", number, problems, policy)
    greedy = stages.sample_rollouts(config, "greedy", number, problems, policy)
    figures = stages.evaluate_policy(config, number, problems, rollouts, greedy, None)
    return Measured(rollouts=rollouts, greedy=greedy, policy=figures)


def measure_round(
    config: RunConfig,
    number: int,
    problems: ArtifactRef,
    policy: ModelRef,
    labelled: Labelled,
    reward_model: ModelRef,
    first: Measured | None,
) -> Measured:
    """Measure a round's policy, alone and with its reward model, the reward model, and its labels.

    `first` is round 0's measurement: every reward model is also measured on the starting policy's solutions. One
    that scores no steps (an ORM) is not measured: all these figures are of step scores.
    """
    if config.reward_model.kind != "prm":
        return measure_policy(config, number, problems, policy)
    rollouts = stages.sample_rollouts(config, "evaluate", number, problems, policy)
    greedy = stages.sample_rollouts(config, "greedy", number, problems, policy)
    scores = stages.score_rollouts(config, number, rollouts, reward_model)
    figures = stages.evaluate_policy(config, number, problems, rollouts, greedy, scores)
    own = common = (rollouts, scores)
    if first is not None:
        common = (first.rollouts, stages.score_rollouts(config, number, first.rollouts, reward_model))
    labels = (labelled.rollouts, labelled.labels)
    quality = stages.evaluate_prm(config, number, problems, common, own, labels)
    second_look = stages.score_rollouts(config, number, labelled.rollouts, reward_model)
    return Measured(
        rollouts=rollouts, greedy=greedy, policy=figures, scores=scores, prm=quality, labelled_scores=second_look
    )


if __name__ == "__main__":
    main(evaluate)
