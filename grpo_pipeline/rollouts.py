"""Rollouts: sampled solutions of problems, and the checker's verdict on each.

Every sample's seed derives from what it is for (run seed, stage, round, step, problem, index), so that the
same rollout comes out whatever else is sampled beside it and however often a run is resumed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_pipeline.config import SamplingConfig
from grpo_pipeline.engines.protocol import Engine, Request, Sample, SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.progress import progress
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.seeds import derive_id, derive_seed
from grpo_pipeline.tables import from_rows

Checker = Callable[[Sequence[str], Sequence[str]], Iterable[Any]]
"""(gold answers, solution texts) -> one Check (verdict, answer, reason) each; `answers.check_many` is one."""

TRUNCATED = "truncated"
"""Reason code of a response that was cut off: nothing was decided, so it is no_answer and never wrong."""


@dataclass(frozen=True)
class RolloutResult:
    """Sampled rollouts.

    Attributes:
        frame: The ``rollouts`` table, sorted by problem (as given) and group_index.
        counts: ``problems``, ``prompt_too_long`` (problems dropped since prompt and one token exceed the
            context), ``rollouts``, ``truncated``, ``tokens``.
    """

    frame: pl.DataFrame
    counts: dict[str, int]


def sampling_params(sampling: SamplingConfig | SamplingParams) -> SamplingParams:
    """The engine's form of the configured sampling."""
    if isinstance(sampling, SamplingParams):
        return sampling
    return SamplingParams(sampling.temperature, sampling.top_p, sampling.max_tokens, tuple(sampling.stop))


def sample_rollouts(
    problems: pl.DataFrame,
    engine: Engine,
    prompts: PromptBuilder,
    sampling: SamplingConfig | SamplingParams,
    *,
    group_size: int,
    stage: str,
    round: int,
    seed: int,
    step: int | None = None,
) -> RolloutResult:
    """Sample a group of rollouts for every problem.

    Args:
        problems: Columns ``problem_id`` and ``question`` of the problems table.
        engine: Samples the responses.
        prompts: Turns questions into token ids, with the engine's tokenizer.
        sampling: Temperature, top_p, response tokens at most, stop strings.
        group_size: G, rollouts of each problem.
        stage: Name of the stage; a part of every id and seed.
        round: RL round.
        seed: The run's seed.
        step: Exploration step inside training, None elsewhere.
    """
    params = sampling_params(sampling)
    address = (stage, round, -1 if step is None else step)
    asked: list[tuple[str, list[int], list[int]]] = []  # problem_id, prompt token ids, seeds
    for problem_id, question in problems.select("problem_id", "question").iter_rows():
        prompt = prompts.encode(question)
        if len(prompt) < engine.max_model_len:
            seeds = [derive_seed(seed, *address, problem_id, index) for index in range(group_size)]
            asked.append((problem_id, prompt, seeds))
    with progress("sampling rollouts", len(asked) * group_size, "rollouts") as bar:
        requests = [Request(prompt, seeds) for _, prompt, seeds in asked]
        groups = engine.generate(requests, params, lambda _, samples: bar.advance(len(samples))) if requests else []
    rows = [
        _rollout_row(sample, problem_id=problem_id, prompt=prompt, index=index, seed=seeds[index], params=params)
        | {
            "rollout_id": derive_id(*address, problem_id, index, seed),
            "round": round,
            "step": step,
            "policy_id": engine.model_id,
        }
        for (problem_id, prompt, seeds), samples in zip(asked, groups, strict=True)
        for index, sample in enumerate(samples)
    ]
    frame = from_rows(rows, "rollouts")
    counts = {
        "problems": problems.height,
        "prompt_too_long": problems.height - len(asked),
        "rollouts": len(rows),
        "truncated": sum(row["finish_reason"] == "length" for row in rows),
        "tokens": sum(len(row["token_ids"]) for row in rows),
    }
    return RolloutResult(frame, counts)


def _rollout_row(
    sample: Sample, *, problem_id: str, prompt: list[int], index: int, seed: int, params: SamplingParams
) -> dict[str, Any]:
    return {
        "problem_id": problem_id,
        "group_index": index,
        "prompt_token_ids": prompt,
        "token_ids": sample.token_ids,
        "logprobs": sample.logprobs,
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": seed,
    }


def check_rollouts(
    rollouts: pl.DataFrame,
    problems: pl.DataFrame,
    checker: Checker | None = None,
    *,
    checker_version: str | None = None,
) -> pl.DataFrame:
    """Check every rollout's answer against its problem's gold answer.

    A rollout that was cut off is not checked: its verdict is ``no_answer`` with reason ``truncated``, since
    whatever its text holds was not its conclusion.

    Args:
        rollouts: The rollouts table.
        problems: Columns ``problem_id`` and ``gold_answer`` of the problems table.
        checker: Checks many at once; None is `answers.check_many`.
        checker_version: Version of the checking rules; None is that of `answers`.

    Returns:
        The ``checked`` table, in the order of the rollouts.

    Raises:
        UserError: A rollout whose problem is not in ``problems``, or a gold answer that cannot be used.
    """
    checker, version = resolve_checker(checker, checker_version)
    golds = gold_answers(problems)
    columns = rollouts.select("rollout_id", "problem_id", "text", "finish_reason")
    missing = sorted(set(columns["problem_id"]) - golds.keys())
    if missing:
        raise UserError(f"{len(missing)} problems of the rollouts are not in the problems table, e.g. {missing[0]}")
    finished = columns.filter(pl.col("finish_reason") == "stop")
    checks = run_checker(checker, [golds[p] for p in finished["problem_id"]], finished["text"].to_list())
    by_id = dict(zip(finished["rollout_id"], checks, strict=True))
    rows = [
        {
            "rollout_id": rollout_id,
            "problem_id": problem_id,
            "answer": by_id[rollout_id].answer if rollout_id in by_id else None,
            "verdict": by_id[rollout_id].verdict if rollout_id in by_id else "no_answer",
            "reason": by_id[rollout_id].reason if rollout_id in by_id else TRUNCATED,
            "checker_version": version,
        }
        for rollout_id, problem_id in columns.select("rollout_id", "problem_id").iter_rows()
    ]
    return from_rows(rows, "checked")


def gold_answers(problems: pl.DataFrame) -> dict[str, str]:
    """problem_id -> gold answer."""
    return dict(problems.select("problem_id", "gold_answer").iter_rows())


def resolve_checker(checker: Checker | None, version: str | None) -> tuple[Checker, str]:
    """The checker and its version, the project's own where none is given."""
    if checker is not None:
        return checker, version or "custom"
    from grpo_pipeline.answers import CHECKER_VERSION, check_many

    return check_many, version or CHECKER_VERSION


def run_checker(checker: Checker, golds: Sequence[str], texts: Sequence[str]) -> list[Any]:
    """Check all texts; a gold answer that cannot be used is an error, not a verdict.

    Raises:
        UserError: A gold answer that the checker refuses.
    """
    checks = list(checker(golds, texts)) if texts else []
    bad = sorted({gold for gold, check in zip(golds, checks, strict=True) if check.verdict == "bad_gold"})
    if bad:
        raise UserError(
            f"{len(bad)} gold answers cannot be read by the checker, e.g. {bad[0]!r}; drop these problems when they "
            "are loaded (load_problems does and counts them)"
        )
    return checks
