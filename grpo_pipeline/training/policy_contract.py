"""What a policy training takes and gives: checks of its inputs, what it hands over on the way, its result."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.training.processes import ALONE, Processes
from grpo_pipeline.training.sampling_settings import check_sampling

_LOG = logging.getLogger(__name__)

OnStep = Callable[[int, dict[str, pl.DataFrame]], None]
"""Called after every exploration step (online) or optimizer step (offline) with its number and its tables."""


@dataclass(frozen=True)
class PolicyResult:
    """A trained policy.

    Attributes:
        policy_id: Content id of the folder that was written.
        metrics: `metrics` table, a row an optimizer step.
        counts: steps, optimizer_steps, rollouts, sampled_tokens, and what was left out for which reason.
        stopped_early: Whether the KL limit ended the run.
        reward_hacking: Whether the alarm was raised at any step.
    """

    policy_id: str
    metrics: pl.DataFrame
    counts: dict[str, int]
    stopped_early: bool
    reward_hacking: bool


def check_inputs(
    problems: pl.DataFrame,
    demonstrations: pl.DataFrame | None,
    config: RunConfig,
    temperature: float,
    processes: Processes = ALONE,
) -> None:
    """Refuse what cannot be trained on or with, before anything is loaded.

    Args:
        problems: `problems` columns.
        demonstrations: `problems` columns with gold_solution; None where there are none.
        config: The run's configuration.
        temperature: What responses are sampled at.
        processes: The processes that train together.

    Raises:
        UserError: For a setting that cannot be trained with, or nothing to train on.
        ValueError: For a problem of the evaluation split, or one that stands twice.
    """
    for frame in (problems, demonstrations):
        if frame is None:
            continue
        held_out = frame.filter(pl.col("split") != "train")
        if held_out.height:
            raise ValueError(
                f"{held_out.height} problems are not of the training split, first: {held_out['problem_id'][0]}. "
                "Evaluation problems never enter training"
            )
    if problems["problem_id"].is_duplicated().any():
        raise ValueError("a problem stands twice in the training problems")
    if not problems.height:
        raise UserError("no training problem")
    check_sampling(config, temperature, processes.count)
    if config.policy.method == "grpo" and config.engine.kind == "vllm":
        _warn_of_difference(config)
    if config.policy.method == "ppo" and config.policy.ppo.ptx_weight > 0 and demonstrations is None:
        raise UserError("policy.ppo.ptx_weight > 0 needs demonstrations: problems with gold_solution")


def _warn_of_difference(config: RunConfig) -> None:
    if config.policy.grpo.importance_correction == "none":
        _LOG.warning(
            "vLLM's log-probabilities are not quite the trainer's: policy.grpo.importance_correction = 'truncate' "
            "corrects for it, and sampling/sampling_logp_difference/mean says by how much they differ"
        )
