"""All methods side by side: the same starting policy, problems and number of rollouts for each, over several seeds.

python -m flows.compare_methods --config configs/compare_methods.toml [--fast]
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import FAST_COMPARISON, RunConfig
from grpo_pipeline.stages import variants
from grpo_pipeline.stages.comparison import Trial
from grpo_pipeline.store import ArtifactRef
from tasks.comparison import show_comparison
from tasks.stages import STAGES


@flow(name="compare-methods", flow_run_name="{config.name}")
def compare_methods(config: RunConfig) -> ArtifactRef:
    """Train every variant with every seed, measure all on held-out problems, and draw tables and plots."""
    comparison = variants.compare_methods(STAGES, config, compare_seed)
    show_comparison(config, comparison)
    return comparison


@flow(name="compare-seed", flow_run_name="{config.name}-seed-{seed}")
def compare_seed(config: RunConfig, seed: int) -> list[Trial]:
    """All variants with one seed, and the policy that they start from."""
    return variants.compare_seed(STAGES, config, seed)


if __name__ == "__main__":
    main(compare_methods, fast=FAST_COMPARISON)
