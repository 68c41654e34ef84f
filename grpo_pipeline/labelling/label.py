"""Step labels of solutions: schedules ask, the completer answers, evidence becomes labels (METHOD 1)."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.engines.protocol import Engine, SamplingParams
from grpo_pipeline.labelling.completer import Completer, Prefix
from grpo_pipeline.labelling.evidence import Tally, Truncated, wilson_interval
from grpo_pipeline.labelling.jobs import Job, JobBuilder, steps_by_rollout
from grpo_pipeline.labelling.ledger import CompletionLedger, Ledger
from grpo_pipeline.labelling.schedules.base import Settings
from grpo_pipeline.progress import Bar, progress
from grpo_pipeline.rollouts import Checker, resolve_checker, sampling_params
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


def label_steps(
    problems: pl.DataFrame,
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    steps: pl.DataFrame,
    engine: Engine,
    config: LabellingConfig,
    sampling: SamplingConfig | SamplingParams,
    *,
    seed: int,
    ledger: CompletionLedger | None = None,
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
    builder = JobBuilder(
        problems, rollouts, checked, engine=engine, config=config, sampling=sampling_params(sampling), settings=settings
    )
    jobs = [builder.job(rows) for rows in steps_by_rollout(steps)]
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


def _run(jobs: list[Job], completer: Completer, bar: Bar) -> None:
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


def _label_rows(job: Job, truncated: Truncated) -> list[dict[str, Any]]:
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
