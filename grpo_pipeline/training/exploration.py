"""An exploration step: sample with the current policy, check, split, score, reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from grpo_pipeline.advantages import compute_advantages
from grpo_pipeline.config import RunConfig
from grpo_pipeline.engines.protocol import Engine
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.methods.base import Method
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.scoring import score_outcomes, score_solutions, score_steps
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rewards import needs_reward_model, reward_rollouts, verdict_reward
from grpo_pipeline.rollouts import check_rollouts, sample_rollouts
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.training.processes import ALONE, Processes

STAGE = "train_policy"
"""Part of the address of every seed and id that training draws."""


@dataclass(frozen=True)
class Experience:
    """Frames of one exploration step; rollouts group by group, `checked` and `advantages` in their order.

    `prompt_too_long` counts the problems that were left out since their prompt leaves no room in the context;
    `scores_are_probabilities` is false for a pairwise model's solution scores.
    """

    rollouts: pl.DataFrame
    checked: pl.DataFrame
    steps: pl.DataFrame
    step_scores: pl.DataFrame | None
    solution_scores: pl.DataFrame | None
    advantages: pl.DataFrame
    prompt_too_long: int = 0
    scores_are_probabilities: bool = True

    def frames(self) -> dict[str, pl.DataFrame]:
        """By table name."""
        tables = {"rollouts": self.rollouts, "checked": self.checked, "steps": self.steps}
        if self.step_scores is not None:
            tables["step_scores"] = self.step_scores
        elif self.solution_scores is not None:
            tables["solution_scores"] = self.solution_scores
        return tables | {"advantages": self.advantages}


class Explorer:
    """Gathers experience of a policy.

    Args:
        engine: Samples with the current weights.
        prompts: Encodes questions.
        problems: `problems` table, training problems only.
        method: Decides which reward is asked for.
        config: Sampling, rewards, splitter.
        reward_model_dir: The reward model; None where nothing asks for its scores.
        round: RL round.
        seed: The run's seed.
        processes: Among whom problems are divided.

    Raises:
        UserError: If the configured rewards need a reward model and there is none.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptBuilder,
        problems: pl.DataFrame,
        *,
        method: Method,
        config: RunConfig,
        reward_model_dir: Path | None,
        round: int,
        seed: int,
        processes: Processes = ALONE,
    ) -> None:
        self._processes = processes
        self._engine, self._prompts, self._method, self._config = engine, prompts, method, config
        self._problems = problems
        self._round, self._seed = round, seed
        self._reward_model: RewardModel | None = None
        if needs_reward_model(config.policy):
            if reward_model_dir is None:
                raise UserError(
                    "policy.grpo.supervision = 'process' and policy.reward.model_weight > 0 need a reward model; "
                    "train one first (train_prm), or use supervision = 'outcome' with model_weight = 0"
                )
            place = config.model
            self._reward_model = RewardModel.load(
                reward_model_dir, dtype=place.dtype, device=place.device, trust_remote_code=place.trust_remote_code
            )

    @property
    def reward_model_id(self) -> str | None:
        """Content id of the reward model in use."""
        return None if self._reward_model is None else self._reward_model.id

    def explore(self, problem_ids: Sequence[str], step: int | None, version: str) -> Experience:
        """Rollouts of the current policy with everything that an update needs, the same in every process.

        Each process samples, checks, splits and scores its share of the problems; a sample's seed comes from its
        address, so it does not matter who draws it.

        Args:
            problem_ids: Whose rollouts; no problem twice.
            step: Exploration step, from 1; None for the samples that an offline method starts from.
            version: The policy version that must sample them.

        Raises:
            UserError: If no problem's prompt leaves room in the context.
            RuntimeError: If a rollout was not sampled by that version.
        """
        config = self._config
        chosen = pl.DataFrame({"problem_id": problem_ids}).join(
            self._problems, on="problem_id", how="left", maintain_order="left"
        )
        parts = self._processes.gather(self._explore_share(chosen, step))
        part = parts[0] if len(parts) == 1 else _together(parts, list(problem_ids))
        if part.rollouts.is_empty():
            raise UserError(
                f"none of {chosen.height} prompts leaves room for a response in the context of "
                f"{self._engine.max_model_len} tokens; use fewer prompt.examples, or a model with a longer context"
            )
        _check_version(part.rollouts, version)
        # Rewards of a user may look at all rollouts of a step, and need not repeat: one process asks for them.
        advantages = self._processes.from_main(lambda: self._advantages(part, config))
        return Experience(
            part.rollouts,
            part.checked,
            part.steps,
            part.step_scores,
            part.solution_scores,
            advantages,
            prompt_too_long=part.prompt_too_long,
            scores_are_probabilities=self._reward_model is None or self._reward_model.kind != "pairwise",
        )

    def _explore_share(self, chosen: pl.DataFrame, step: int | None) -> "_Share":
        config = self._config
        own = chosen[self._processes.share(range(chosen.height))]
        sampled = sample_rollouts(
            own,
            self._engine,
            self._prompts,
            config.sampling,
            group_size=config.policy.rollouts_per_problem,
            stage=STAGE,
            round=self._round,
            seed=self._seed,
            step=step,
        )
        rollouts = sampled.frame
        checked = check_rollouts(rollouts, own)
        steps = split_rollouts(rollouts, self._engine.tokenizer, config.labelling.splitter)
        scores = (None, None) if rollouts.is_empty() else self._score(rollouts, steps)
        return _Share(rollouts, checked, steps, *scores, sampled.counts["prompt_too_long"])

    def _advantages(self, part: "_Share", config: RunConfig) -> pl.DataFrame:
        policy = config.policy
        if self._method.reward == "rewards":
            rewards = reward_rollouts(
                part.rollouts,
                part.checked,
                policy.reward,
                model_scores=part.solution_scores,
                max_tokens=config.sampling.max_tokens,
            )
        else:
            rewards = rule_rewards(part.checked)
        if self._method.name == "grpo":
            return compute_advantages(part.rollouts, part.steps, rewards, part.step_scores, policy.grpo)
        return plain_advantages(part.rollouts, rewards)

    def _score(self, rollouts: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        model = self._reward_model
        if model is None:
            return None, None
        budget = self._config.training.tokens_per_microbatch
        if model.kind != "prm":
            return None, score_outcomes(model, rollouts, tokens_per_batch=budget)
        scores = score_steps(model, rollouts, steps, tokens_per_batch=budget)
        return scores, score_solutions(scores, self._config.reward_model.aggregate)


def choose_problems(problem_ids: Sequence[str], count: int, step: int, seed: int, round: int) -> list[str]:
    """The problems of a step: epochs of seeded shuffles, cut into steps; no problem twice in a step.

    Args:
        problem_ids: All training problems, in any order.
        count: Problems in a step; all of them where there are fewer.
        step: From 1.
        seed: The run's seed.
        round: RL round.
    """
    ordered = sorted(problem_ids)
    count = min(count, len(ordered))
    per_epoch = len(ordered) // count
    epoch, index = divmod(step - 1, per_epoch)
    shuffled = np.random.default_rng(derive_seed(seed, STAGE, round, "epoch", epoch)).permutation(len(ordered))
    return [ordered[i] for i in shuffled[index * count : (index + 1) * count]]


def rule_rewards(checked: pl.DataFrame) -> pl.DataFrame:
    """The rule reward alone (`rewards.verdict_reward`)."""
    return checked.select("rollout_id", "problem_id", reward_rule=verdict_reward(), outcome_reward=verdict_reward())


def plain_advantages(rollouts: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    """`advantages` rows of methods without groups: the reward itself, 0 where it is undecided.

    PPO's own advantages are per token and come from its critic; its row holds the reward that they start from.
    """
    return (
        rollouts.select("rollout_id", "problem_id", "step")
        .join(rewards.drop("problem_id"), on="rollout_id", how="left", maintain_order="left")
        .with_columns(
            step_rewards=pl.lit(None, pl.List(pl.Float32)),
            step_advantages=pl.concat_list(pl.col("outcome_reward").fill_null(0.0)).cast(pl.List(pl.Float32)),
        )
        .select("rollout_id", "problem_id", "step", "outcome_reward", "step_rewards", "step_advantages", "^reward_.*$")
    )


@dataclass(frozen=True)
class _Share:
    """What one process, or all together, sampled."""

    rollouts: pl.DataFrame
    checked: pl.DataFrame
    steps: pl.DataFrame
    step_scores: pl.DataFrame | None
    solution_scores: pl.DataFrame | None
    prompt_too_long: int


def _together(parts: Sequence[_Share], problem_ids: list[str]) -> _Share:
    """All processes' rollouts in the order that a single process would have them."""
    order = pl.DataFrame({"problem_id": problem_ids}).with_row_index("_order")
    rollouts = (
        pl.concat([part.rollouts for part in parts])
        .join(order, on="problem_id", how="left")
        .sort("_order", "group_index")
        .drop("_order")
    )
    ids = rollouts.select("rollout_id")

    def rows_of(name: str, *keys: str) -> pl.DataFrame:
        frame = pl.concat([getattr(part, name) for part in parts]).sort("rollout_id", *keys)
        return ids.join(frame, on="rollout_id", how="inner", maintain_order="left_right")

    def scores_of(name: str, *keys: str) -> pl.DataFrame | None:
        frames = [frame for part in parts if (frame := getattr(part, name)) is not None]
        return pl.concat(frames).sort("rollout_id", *keys) if frames else None

    return _Share(
        rollouts,
        rows_of("checked"),
        rows_of("steps", "step_index"),
        scores_of("step_scores", "step_index"),
        scores_of("solution_scores"),
        sum(part.prompt_too_long for part in parts),
    )


def _check_version(rollouts: pl.DataFrame, version: str) -> None:
    stale = rollouts.filter(pl.col("policy_id") != version)
    if stale.height:
        raise RuntimeError(
            f"{stale.height} rollouts were sampled by {stale['policy_id'][0]}, but the policy is {version}: the engine "
            "was not given the new weights"
        )
