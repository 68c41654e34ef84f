r"""A language model as judge: a second opinion on where a solution first goes wrong.

The judge reads the question and the solution in numbered steps, thinks aloud, and ends with the number of the
first wrong step in ``\boxed{}``, or -1 (the critic prompt of ProcessBench, Zheng et al. 2024, arXiv
2412.06559, section 3.4). Several answers are sampled and the most frequent one counts. Labels that a judge
confirms are kept by the rule ``consensus`` (Zhang et al. 2025, arXiv 2501.07301, section 3.1).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_pipeline.config import PromptConfig, SamplingConfig
from grpo_pipeline.engines.protocol import Engine, Request, SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.progress import progress
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rollouts import sampling_params
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.tables import from_rows

NO_ERROR = -1

_INSTRUCTIONS = r"""You are given a math problem and a solution in numbered steps. Review the steps in order and check the reasoning and every calculation. Find the earliest step that contains an error. A step that is right in itself but goes on from an earlier error is not the earliest.

End your review with the number of the earliest wrong step in \boxed{}. If no step is wrong, end with \boxed{-1}."""  # noqa: E501 - as the model reads it

_BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


@dataclass(frozen=True)
class JudgeResult:
    """What the judge said.

    Attributes:
        judgements: The ``judgements`` table: a row for every step of every solution that it has an opinion on.
        counts: ``solutions``; of them ``solutions_judged``, ``solutions_without_opinion`` (no answer could be
            read, or no answer was the most frequent) and ``solutions_too_long`` (no room to answer in);
            ``votes`` and of them ``votes_unreadable``; ``tokens`` sampled.
    """

    judgements: pl.DataFrame
    counts: dict[str, int]


def judge_solutions(
    problems: pl.DataFrame,
    steps: pl.DataFrame,
    engine: Engine,
    sampling: SamplingConfig | SamplingParams,
    *,
    votes: int,
    seed: int,
) -> JudgeResult:
    """Ask a judge for the first bad step of every solution.

    Args:
        problems: ``problem_id`` and ``question``.
        steps: The solutions' steps.
        engine: The judge's engine. Its own chat template is used where it has one.
        sampling: How its answers are sampled.
        votes: Answers for each solution.
        seed: The run's seed.

    Raises:
        UserError: A solution whose problem is not in the problems table.
    """
    params = sampling_params(sampling)
    chat = bool(getattr(engine.tokenizer, "chat_template", None))
    prompts = PromptBuilder(engine.tokenizer, PromptConfig(chat=chat))
    questions = dict(problems.select("problem_id", "question").iter_rows())
    solutions = _solutions(steps)
    counts = dict.fromkeys(
        ("solutions", "solutions_judged", "solutions_without_opinion", "solutions_too_long", "votes",
         "votes_unreadable", "tokens"), 0
    )  # fmt: skip
    counts["solutions"] = len(solutions)
    asked: list[tuple[list[dict[str, Any]], Request]] = []
    for rollout_id, rows in solutions.items():
        question = questions.get(rows[0]["problem_id"])
        if question is None:
            raise UserError(f"rollout {rollout_id}: its problem {rows[0]['problem_id']} is not in the problems table")
        prompt = prompts.encode(judge_prompt(question, [row["text"] for row in rows]))
        if len(prompt) >= engine.max_model_len:
            counts["solutions_too_long"] += 1
            continue
        seeds = [derive_seed(seed, "judge", engine.model_id, rollout_id, vote) for vote in range(votes)]
        asked.append((rows, Request(prompt, seeds)))
    with progress("judging solutions", len(asked), "solutions") as bar:
        answers = engine.generate([request for _, request in asked], params, lambda *_: bar.advance())
    judgements: list[dict[str, Any]] = []
    for (rows, _), samples in zip(asked, answers, strict=True):
        opinions = [read_opinion(sample.text, len(rows)) for sample in samples]
        counts["votes"] += len(opinions)
        counts["votes_unreadable"] += opinions.count(None)
        counts["tokens"] += sum(len(sample.token_ids) for sample in samples)
        found = majority(opinions)
        if found is None:
            counts["solutions_without_opinion"] += 1
            continue
        counts["solutions_judged"] += 1
        judgements += _rows(rows, opinions, found, engine.model_id)
    return JudgeResult(from_rows(judgements, "judgements"), counts)


def judge_prompt(question: str, steps: Sequence[str]) -> str:
    """What the judge reads: the task, the question, and the steps numbered from 0."""
    solution = "\n".join(f"<step_{number}>\n{text.strip()}\n</step_{number}>" for number, text in enumerate(steps))
    return f"{_INSTRUCTIONS}\n\n<problem>\n{question}\n</problem>\n\n{solution}\n"


def read_opinion(text: str, n_steps: int) -> int | None:
    """The first bad step (0-based) that a judge's answer ends with, NO_ERROR, or None if it does not say."""
    found = _BOXED.findall(text)
    if not found:
        return None
    step = int(found[-1])
    return step if NO_ERROR <= step < n_steps else None


def majority(opinions: Sequence[int | None]) -> int | None:
    """The most frequent opinion; None where there is none, or two are equally frequent."""
    ranked = Counter(opinion for opinion in opinions if opinion is not None).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def _solutions(steps: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    ordered = steps.select("rollout_id", "problem_id", "step_index", "text").sort("rollout_id", "step_index")
    solutions: dict[str, list[dict[str, Any]]] = {}
    for row in ordered.iter_rows(named=True):
        solutions.setdefault(row["rollout_id"], []).append(row)
    return solutions


def _rows(
    steps: list[dict[str, Any]], opinions: Sequence[int | None], first_bad: int, judge_id: str
) -> list[dict[str, Any]]:
    """Steps before the first bad one are good; of those after it nothing was asked."""
    readable = [opinion for opinion in opinions if opinion is not None]
    good_until = len(steps) if first_bad == NO_ERROR else first_bad
    return [
        {
            "rollout_id": row["rollout_id"],
            "problem_id": row["problem_id"],
            "step_index": row["step_index"],
            "hard": 1 if row["step_index"] < good_until else 0 if row["step_index"] == first_bad else None,
            "n_votes": len(readable),
            "n_agree": readable.count(first_bad),
            "judge_id": judge_id,
        }
        for row in steps
    ]
