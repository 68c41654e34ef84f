"""Data of the methods that do not sample from the current policy: demonstrations, fixed samples, pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.prm_dataset import build_pairs
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.training.batching import Row, response_row
from grpo_pipeline.training.exploration import rule_rewards


@dataclass(frozen=True)
class OfflineData:
    """Rows of each problem.

    Attributes:
        rows: Problem -> its rows; for pairs chosen and rejected one after the other.
        rewards: Problem -> the reward of each row.
        together: 2 for pairs, else 1.
        counts: What came in and what was left out.
    """

    rows: dict[str, list[Row]]
    rewards: dict[str, list[float]]
    together: int = 1
    counts: dict[str, int] = field(default_factory=dict)

    def of(self, problem_ids: Sequence[str]) -> tuple[list[Row], list[float]]:
        """Rows and rewards of some problems."""
        rows = [row for problem in problem_ids for row in self.rows[problem]]
        return rows, [reward for problem in problem_ids for reward in self.rewards[problem]]


def demonstration_data(
    demonstrations: pl.DataFrame, prompts: PromptBuilder, tokenizer: Any, max_tokens: int
) -> OfflineData:
    """Worked solutions with their EOS, all of reward 1.

    Args:
        demonstrations: `problems` columns with gold_solution; rows without one are left out and counted.
        prompts: Encodes questions.
        tokenizer: Encodes solutions, without special tokens of its own.
        max_tokens: Tokens of prompt and solution at most; longer ones are left out and counted.

    Raises:
        UserError: If none is left.
    """
    rows: dict[str, list[Row]] = {}
    counts = {"demonstrations": 0, "no_solution": 0, "too_long": 0}
    for problem_id, question, solution in demonstrations.select("problem_id", "question", "gold_solution").iter_rows():
        if not solution:
            counts["no_solution"] += 1
            continue
        response = [*tokenizer.encode(solution, add_special_tokens=False), tokenizer.eos_token_id]
        prompt = prompts.encode(question)
        if len(prompt) + len(response) > max_tokens:
            counts["too_long"] += 1
            continue
        rows[problem_id] = [response_row(prompt, response)]
        counts["demonstrations"] += 1
    if not rows:
        raise UserError(
            f"no demonstration is left of {demonstrations.height} ({listed(counts)}); SFT needs gold_solution"
        )
    return OfflineData(rows, {problem: [1.0] for problem in rows}, counts=counts)


def fixed_sample_data(rollouts: pl.DataFrame, checked: pl.DataFrame) -> OfflineData:
    """Samples of the fixed SFT model with the rule reward, by problem.

    A sample whose check timed out is left out and counted: it is neither right nor wrong.

    Raises:
        UserError: If no sample is correct: there is nothing to learn from.
    """
    rows: dict[str, list[Row]] = {}
    rewards: dict[str, list[float]] = {}
    counts = {"rollouts": rollouts.height, "undecided": 0}
    table = rollouts.join(rule_rewards(checked).drop("problem_id"), on="rollout_id", how="left", maintain_order="left")
    for problem_id, prompt, response, reward in table.select(
        "problem_id", "prompt_token_ids", "token_ids", "outcome_reward"
    ).iter_rows():
        if reward is None:
            counts["undecided"] += 1
            continue
        rows.setdefault(problem_id, []).append(response_row(prompt, response))
        rewards.setdefault(problem_id, []).append(reward)
    if not any(reward > 0 for of in rewards.values() for reward in of):
        raise UserError(
            f"none of {rollouts.height} fixed samples is correct ({counts['undecided']} undecided), so RFT has nothing "
            "to train on; sample more rollouts a problem, or start from a better policy"
        )
    return OfflineData(rows, rewards, counts=counts)


def pair_data(rollouts: pl.DataFrame, checked: pl.DataFrame, pairs_per_problem: int, seed: int) -> OfflineData:
    """Preference pairs of correct and wrong samples, by problem.

    Raises:
        UserError: If no problem has both.
    """
    pairs = build_pairs(rollouts, checked, pairs_per_problem=pairs_per_problem, seed=seed)
    rows: dict[str, list[Row]] = {}
    columns = pairs.select("problem_id", "prompt_token_ids", "chosen_token_ids", "rejected_token_ids")
    for problem_id, prompt, chosen, rejected in columns.iter_rows():
        rows.setdefault(problem_id, []).extend([response_row(prompt, chosen), response_row(prompt, rejected)])
    if not rows:
        raise UserError(
            f"no preference pair among {rollouts.height} rollouts: no problem has a correct and a wrong response; "
            "sample more rollouts a problem"
        )
    rewards = {problem: [1.0, 0.0] * (len(of) // 2) for problem, of in rows.items()}
    return OfflineData(rows, rewards, together=2, counts={"rollouts": rollouts.height, "pairs": pairs.height})


def require_tables(frames: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rollouts and verdicts of fixed samples.

    Raises:
        UserError: If one of the two is missing.
    """
    missing = {"rollouts", "checked"} - frames.keys()
    if missing:
        raise UserError(f"fixed samples need the tables rollouts and checked; missing: {', '.join(sorted(missing))}")
    return frames["rollouts"], frames["checked"]
