"""Step labels of solutions: schedules ask, the completer answers, evidence becomes labels (METHOD 1)."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.engines.protocol import Engine, SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.completer import Completer, Prefix
from grpo_pipeline.labelling.evidence import Tally, Truncated, wilson_interval
from grpo_pipeline.labelling.ledger import Ledger, PrefixKey, sampling_hash
from grpo_pipeline.labelling.schedules import SCHEDULES
from grpo_pipeline.labelling.schedules.base import IMPLIED_GOOD, Decision, Schedule, Settings, Solution, outcome_of
from grpo_pipeline.progress import Bar, progress
from grpo_pipeline.rollouts import Checker, gold_answers, resolve_checker, sampling_params
from grpo_pipeline.tables import from_rows


@dataclass(frozen=True)
class LabelResult:
    """Labels and their evidence.

    Attributes:
        completions: The ``completions`` table: every draw that a label was asked for, once, those reused from
            the ledger included.
        step_labels: The ``step_labels`` table, one row a step.
        receipt: What it cost: ``schedule``; ``solutions``, ``steps``; `completer.Costs`; ``completions_implied``
            (brute force's draws of prefixes whose labels follow from other steps), ``completions_brute`` (N of
            each distinct prefix), ``completions_saved`` (brute force's less those used); ``seconds``. Sums
            only: `receipt.receipt_rates` has what follows.
        counts: ``rollouts``, ``rollouts_without_steps`` (empty texts: no rows), ``rollouts_truncated``,
            ``steps``, ``steps_no_room`` (the context or the response's length limit leaves no room for a
            completion), ``steps_undecided`` (all draws undecided, or an outcome whose check ran out of time),
            ``steps_unlabelled`` (null labels in all), ``completions_truncated``, ``completions_timeout``.
    """

    completions: pl.DataFrame
    step_labels: pl.DataFrame
    receipt: dict[str, Any]
    counts: dict[str, int]


@dataclass(slots=True)
class _Job:
    """One solution on its way: its steps' rows, its prefixes by step, and its schedule."""

    rows: list[dict[str, Any]]
    prefixes: dict[int, Prefix]
    schedule: Schedule
    decisions: list[Decision] | None = None


def label_steps(  # noqa: PLR0917 - the tables in the order of the data's way, then who completes and how
    problems: pl.DataFrame,
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    steps: pl.DataFrame,
    engine: Engine,
    config: LabellingConfig,
    sampling: SamplingConfig | SamplingParams,
    *,
    seed: int,
    ledger: Ledger | None = None,
    checker: Checker | None = None,
    checker_version: str | None = None,
) -> LabelResult:
    """Label every step of the given solutions.

    A shard of solutions at a time keeps memory bounded: only the shard's draws are held; the ledger is on
    disk.

    Args:
        problems: ``problem_id`` and ``gold_answer`` of every problem concerned.
        rollouts: The solutions.
        checked: The checker's verdict on each; the label of a finished solution's last step.
        steps: Their steps (see `split_rollouts`).
        engine: The completer's engine; its tokenizer must be the policy's.
        config: Schedule, N and the rest. A cut-off completion counts as not correct, unless
            ``truncated = "exclude"``; one whose check ran out of time never counts.
        sampling: How completions are sampled. Without ``config.max_tokens`` a completion may use what its
            prefix leaves of the solution's own limit (``sampling.max_tokens``, or the context if shorter).
        seed: The run's seed.
        ledger: Asked first, and given every new completion; None keeps one in memory for this call.
        checker: See `check_rollouts`.
        checker_version: See `check_rollouts`.

    Raises:
        UserError: Rollouts without a verdict or a problem, or a completer whose tokenizer is another.
    """
    start = time.perf_counter()
    checker, version = resolve_checker(checker, checker_version)
    settings = Settings(
        config.completions, config.wave, config.interval_width, config.after_first_error, config.truncated
    )
    builder = _JobBuilder(
        problems, rollouts, checked, engine=engine, config=config, sampling=sampling_params(sampling), settings=settings
    )
    jobs = [builder.job(rows) for rows in _by_rollout(steps)]
    with (
        Ledger() if ledger is None else nullcontext(ledger) as kept,
        progress("completing prefixes", None, "completions") as bar,
    ):
        completer = Completer(
            engine, builder.sampling, seed=seed, ledger=kept, checker=checker, checker_version=version
        )
        _run(jobs, completer, bar)
    prefixes = builder.prefixes
    label_rows = [row for job in jobs for row in _label_rows(job, settings.truncated)]
    asked = [prefix for prefix in prefixes.values() if prefix.n_asked]
    implied = {
        prefix.key
        for job in jobs
        for step, prefix in job.prefixes.items()
        if not prefix.n_asked and job.decisions and job.decisions[step].source == "implied"
    }
    costs = completer.costs
    brute = len(prefixes) * config.completions
    receipt = {
        "schedule": config.schedule,
        "solutions": len(jobs),
        "steps": steps.height,
        **vars(costs),
        "completions_implied": len(implied) * config.completions,
        "completions_brute": brute,
        "completions_saved": brute - costs.completions_sampled - costs.completions_reused,
        "seconds": time.perf_counter() - start,
    }
    return LabelResult(
        # One question with two gold answers is two prefixes with the same draws; a draw is one row.
        completions=from_rows((row for prefix in asked for row in _completion_rows(prefix)), "completions").unique(
            "completion_id", keep="first", maintain_order=True
        ),
        step_labels=from_rows(label_rows, "step_labels"),
        receipt=receipt,
        counts={
            "rollouts": rollouts.height,
            "rollouts_without_steps": rollouts.height - len(jobs),
            "rollouts_truncated": rollouts.filter(pl.col("finish_reason") == "length").height,
            "steps": steps.height,
            "steps_no_room": builder.no_room,
            "steps_undecided": sum(row["hard"] is None and row["label_source"] != "unlabelled" for row in label_rows),
            "steps_unlabelled": sum(row["hard"] is None for row in label_rows),
            "completions_truncated": sum(prefix.kinds.count("truncated") for prefix in asked),
            "completions_timeout": sum(prefix.kinds.count("timeout") for prefix in asked),
        },
    )


class _JobBuilder:
    """Turns a solution's steps into a job; prefixes that several solutions share are made once."""

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

    def job(self, rows: list[dict[str, Any]]) -> _Job:
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
        return _Job(rows, prefixes, schedule)

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


def _by_rollout(steps: pl.DataFrame) -> list[list[dict[str, Any]]]:
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


def _run(jobs: list[_Job], completer: Completer, bar: Bar) -> None:
    """Advance all schedules side by side; what they ask for together is one wave."""
    waiting = jobs
    while waiting:
        wanted: dict[int, tuple[Prefix, int]] = {}
        still = []
        for job in waiting:
            try:
                asks = next(job.schedule)
            except StopIteration as stop:
                job.decisions = stop.value
                continue
            still.append(job)
            for step, n in asks.items():
                prefix = job.prefixes[step]
                _, before = wanted.get(id(prefix), (prefix, 0))
                wanted[id(prefix)] = (prefix, max(n, before))
        completer.fill(wanted.values(), bar)
        waiting = still


def _label_rows(job: _Job, truncated: Truncated) -> list[dict[str, Any]]:
    assert job.decisions is not None
    rows = []
    for row, decision in zip(job.rows, job.decisions, strict=True):
        sampled = decision.source == "sampled"
        tally = job.prefixes[row["step_index"]].tally(decision.n_draws) if sampled else Tally()
        soft, low, high = None, None, None
        if sampled and decision.has_soft:
            soft, counted = tally.soft(truncated), tally.counted(truncated)
            low, high = wilson_interval(tally.n_correct, counted) if counted else (None, None)
        elif decision.has_soft:
            soft = None if decision.hard is None else float(decision.hard)
        rows.append(
            {
                "rollout_id": row["rollout_id"],
                "problem_id": row["problem_id"],
                "step_index": row["step_index"],
                "n_completions": tally.counted(truncated),
                "n_correct": tally.n_correct,
                "n_wrong": tally.n_wrong,
                "n_no_answer": tally.n_no_answer,
                "n_truncated": tally.n_truncated,
                "n_timeout": tally.n_timeout,
                "soft": soft,
                "hard": decision.hard,
                "ci_low": low,
                "ci_high": high,
                "label_source": decision.source,
            }
        )
    return rows


def _completion_rows(prefix: Prefix) -> list[dict[str, Any]]:
    return [
        {
            "completion_id": prefix.key.completion_id(index),
            "rollout_id": draw.rollout_id,
            "problem_id": prefix.problem_id,
            "step_index": draw.step_index,
            "prefix_hash": prefix.key.prefix_hash,
            "completion_index": index,
            "completer_id": prefix.key.completer_id,
            "n_tokens": draw.n_tokens,
            "text": draw.text,
            "finish_reason": draw.finish_reason,
            "answer": draw.answer,
            "verdict": draw.verdict,
            "seed": draw.seed,
        }
        for index in range(prefix.n_asked)
        for draw in (prefix.draws[index],)
    ]
