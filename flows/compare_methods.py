"""All methods side by side: the same starting policy, problems and number of rollouts for each, over several seeds.

python -m flows.compare_methods --config configs/compare_methods.toml [--fast]
"""

from prefect import flow

from flows.build_prm_dataset import label_round
from flows.command import main
from grpo_pipeline.config import FAST_COMPARISON, START, RunConfig, seed_config, variant_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.stages.comparison import Trial
from grpo_pipeline.stages.rounds import Labelled
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef
from tasks import stages
from tasks.comparison import write_comparison


@flow(name="compare-methods", flow_run_name="{config.name}")
def compare_methods(config: RunConfig) -> ArtifactRef:
    """Train every variant with every seed, measure all on held-out problems, and draw tables and plots."""
    if not config.comparison.variants:
        raise UserError("comparison.variants is empty; start from configs/compare_methods.toml")
    trials = [trial for seed in config.comparison.seeds for trial in compare_seed(config, seed)]
    comparison = stages.compare_trials(config, tuple(trials))
    write_comparison(config, comparison)
    return comparison


@flow(name="compare-seed", flow_run_name="{config.name}-seed-{seed}")
def compare_seed(config: RunConfig, seed: int) -> list[Trial]:
    """All variants with one seed, and the policy that they start from."""
    base = seed_config(config, seed)
    problems = stages.make_problems(base)
    start = stages.base_policy(base)
    trials = [measure(base, START, problems, start, (), ())]
    for name in config.comparison.variants:
        trials += run_variant(variant_config(config, name, seed), name, problems, start)
    return trials


def run_variant(config: RunConfig, name: str, problems: ArtifactRef, start: ModelRef) -> list[Trial]:
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
            labelled += (label_round(config, number - 1, problems, policy, history),)
            reward_model = stages.train_reward_model(config, number - 1, labelled[-1].dataset, reward_model or start)
        policies += (stages.train_policy(config, number, problems, policy, reward_model),)
        after = name if number == config.rounds else f"{name}@{number}"
        trials.append(measure(config, after, problems, start, policies, labelled))
    return trials


def measure(
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


if __name__ == "__main__":
    main(compare_methods, fast=FAST_COMPARISON)
