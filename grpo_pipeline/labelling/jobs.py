"""Jobs: each solution with its prefixes and its schedule, made ready for the driver (`label.label_steps`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_pipeline.config import LabellingConfig
from grpo_pipeline.engines.protocol import Engine, SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.completer import Prefix
from grpo_pipeline.labelling.evidence import Tally
from grpo_pipeline.labelling.ledger import PrefixKey, sampling_hash
from grpo_pipeline.labelling.schedules import SCHEDULES
from grpo_pipeline.labelling.schedules.base import IMPLIED_GOOD, Decision, Schedule, Settings, Solution, outcome_of
from grpo_pipeline.rollouts import gold_answers


@dataclass(slots=True)
class Job:
    """One solution on its way: its steps' rows, its prefixes by step, and its schedule."""

    rows: list[dict[str, Any]]
    prefixes: dict[int, Prefix]
    schedule: Schedule
    decisions: list[Decision] | None = None


class JobBuilder:
    """Turns a solution's steps into a job; prefixes that several solutions share are made once.

    Attributes:
        sampling: How completions are sampled.
        prefixes: Every prefix that can be completed, by its place in the ledger and its gold answer.
        no_room: Steps so far that leave no room for a completion.
    """

    def __init__(
        self,
        problems: pl.DataFrame,
        rollouts: pl.DataFrame,
        checked: pl.DataFrame,
        *,
        engine: Engine,
        config: LabellingConfig,
        sampling: SamplingParams,
        settings: Settings,
    ) -> None:
        self._golds = gold_answers(problems)
        self._rollouts = {row["rollout_id"]: row for row in rollouts.iter_rows(named=True)}
        self._verdicts: dict[str, str] = dict(checked.select("rollout_id", "verdict").iter_rows())
        self._engine = engine
        self._config = config
        self._settings = settings
        self.sampling = sampling
        self.prefixes: dict[tuple[PrefixKey, str], Prefix] = {}
        self.no_room = 0

    def job(self, rows: list[dict[str, Any]]) -> Job:
        """The job of one solution, from the rows of its steps in order."""
        rollout = self._rollout(rows[0]["rollout_id"])
        verdict = self._verdicts[rollout["rollout_id"]]
        finished = rollout["finish_reason"] == "stop"
        outcome = {"correct": 1, "wrong": 0, "no_answer": 0}.get(verdict) if finished else None
        prefixes = {}
        for row in rows:
            if finished and row["is_last"]:
                continue
            prefix = self._prefix(rollout, row)
            if prefix is None:
                self.no_room += 1
            else:
                prefixes[row["step_index"]] = prefix
        solution = Solution(len(rows), tuple(step in prefixes for step in range(len(rows))), finished, outcome)

        def look(step: int, n: int) -> Tally:
            return prefixes[step].tally(n)

        if self._config.skip_correct and outcome == 1:
            schedule = _skip(solution)
        else:
            schedule = SCHEDULES[self._config.schedule](solution, look, self._settings)
        return Job(rows, prefixes, schedule)

    def _rollout(self, rollout_id: str) -> Mapping[str, Any]:
        rollout = self._rollouts.get(rollout_id)
        if rollout is None or rollout_id not in self._verdicts:
            table = "rollouts" if rollout is None else "checked"
            raise UserError(f"rollout {rollout_id} has steps but is not in the {table} table; use tables of one run")
        if rollout["problem_id"] not in self._golds:
            raise UserError(f"rollout {rollout_id}: its problem {rollout['problem_id']} is not in the problems table")
        text = self._engine.tokenizer.decode(rollout["token_ids"], skip_special_tokens=True)
        if not text.startswith(rollout["text"]):
            raise UserError(
                f"rollout {rollout_id}: its tokens decode to another text with the completer's tokenizer; a completer "
                "must have the policy's tokenizer"
            )
        return rollout

    def _prefix(self, rollout: Mapping[str, Any], row: dict[str, Any]) -> Prefix | None:
        prompt: list[int] = rollout["prompt_token_ids"]
        response: list[int] = rollout["token_ids"][: row["token_end"] + 1]
        room = self._engine.max_model_len - len(prompt)
        if self._config.max_tokens is None:
            max_tokens = min(self.sampling.max_tokens, room) - len(response)
        else:
            max_tokens = self._config.max_tokens
        if max_tokens < 1 or len(response) + max_tokens > room:
            return None
        sampling = SamplingParams(self.sampling.temperature, self.sampling.top_p, max_tokens, self.sampling.stop)
        key = PrefixKey(self._engine.model_id, row["prefix_hash"], sampling_hash(sampling))
        gold = self._golds[rollout["problem_id"]]
        if (key, gold) not in self.prefixes:
            self.prefixes[key, gold] = Prefix(
                key, rollout["rollout_id"], rollout["problem_id"], row["step_index"], prompt, response, max_tokens, gold
            )
        return self.prefixes[key, gold]


def steps_by_rollout(steps: pl.DataFrame) -> list[list[dict[str, Any]]]:
    """The steps' rows of each rollout, in order, without their texts."""
    ordered = steps.drop("text", "char_start", "char_end").sort("rollout_id", "step_index", maintain_order=True)
    groups: dict[str, list[dict[str, Any]]] = {
        rollout_id: [] for rollout_id in steps["rollout_id"].unique(maintain_order=True)
    }
    for row in ordered.iter_rows(named=True):
        groups[row["rollout_id"]].append(row)
    for rollout_id, rows in groups.items():
        if [row["step_index"] for row in rows] != list(range(len(rows))) or not rows[-1]["is_last"]:
            raise UserError(f"rollout {rollout_id}: its rows in the steps table are not steps 0 to K-1, each once")
    return list(groups.values())


def _skip(solution: Solution) -> Schedule:
    """All steps of a correct solution are implied good; flawed-but-lucky ones are lost (METHOD 1)."""
    yield from ()
    return [IMPLIED_GOOD] * (solution.n_steps - 1) + [outcome_of(solution)]
