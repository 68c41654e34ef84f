"""Ways of training side by side (METHOD 5 and 7): the same start, problems and number of rollouts for each, of stages.

As `stages.loop`, the composition knows nothing of Prefect.
"""

from typing import Protocol

from grpo_pipeline.config import START, RunConfig, seed_config, variant_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.comparison import Trial
from grpo_pipeline.stages.inputs import check_inputs
from grpo_pipeline.stages.loop import label_round
from grpo_pipeline.stages.rounds import Labelled
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef


class CompareSeed(Protocol):
    """Makes all trials of one seed: `compare_seed`, or the flow around it."""

    def __call__(self, config: RunConfig, seed: int, /) -> list[Trial]:
        """The trials of the starting policy and of every variant."""
        ...


def compare_methods(stages: Stages, config: RunConfig, compare_one: CompareSeed) -> ArtifactRef:
    """Train every variant with every seed, measure all on held-out problems, and compare them.

    Raises:
        UserError: The configuration has no variants.
    """
    if not config.comparison.variants:
        raise UserError("comparison.variants is empty; start from configs/compare_methods.toml")
    check_inputs(config, "compare-methods")
    trials = [trial for seed in config.comparison.seeds for trial in compare_one(config, seed)]
    return stages.compare_trials(config, tuple(trials))


def compare_seed(stages: Stages, config: RunConfig, seed: int) -> list[Trial]:
    """All variants with one seed, and the policy that they start from."""
    base = seed_config(config, seed)
    problems = stages.make_problems(base)
    start = stages.base_policy(base)
    trials = [measure(stages, base, START, problems, start, (), ())]
    for name in config.comparison.variants:
        trials += run_variant(stages, variant_config(config, name, seed), name, problems, start)
    return trials


def run_variant(stages: Stages, config: RunConfig, name: str, problems: ArtifactRef, start: ModelRef) -> list[Trial]:
    """Train one variant in its rounds, the reward model made before the first and refreshed before each further one.

    The policy is measured after every round.
    """
    trials: list[Trial] = []
    policies: tuple[ModelRef, ...] = ()
    labelled: tuple[Labelled, ...] = ()
    reward_model: ModelRef | None = None
    for number in range(1, config.rounds + 1):
        policy = policies[-1] if policies else start
        if needs_reward_model(config.policy):
            history = tuple(one.rows for one in labelled)
            labelled += (label_round(stages, config, number - 1, problems, policy, history),)
            reward_model = stages.train_reward_model(config, number - 1, labelled[-1].dataset, reward_model or start)
        policies += (stages.train_policy(config, number, problems, policy, reward_model),)
        after = name if number == config.rounds else f"{name}@{number}"
        trials.append(measure(stages, config, after, problems, start, policies, labelled))
    return trials


def measure(
    stages: Stages,
    config: RunConfig,
    variant: str,
    problems: ArtifactRef,
    start: ModelRef,
    policies: tuple[ModelRef, ...],
    labelled: tuple[Labelled, ...],
) -> Trial:
    """Measure the last of a variant's policies, or the start where there is none."""
    number, policy = len(policies), policies[-1] if policies else start
    rollouts = stages.sample_rollouts(config, "evaluate", number, problems, policy)
    greedy = stages.sample_rollouts(config, "greedy", number, problems, policy)
    figures = stages.measure_problems(config, number, problems, start, rollouts, greedy)
    return Trial(variant=variant, seed=config.seed, policies=policies, labelled=labelled, figures=figures)
