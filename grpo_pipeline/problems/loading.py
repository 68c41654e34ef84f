"""From a configuration to the problems of a run: read, cleaned, split, decontaminated; every drop counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from grpo_pipeline.config import ProblemsConfig
from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.problems.decontamination import find_contamination
from grpo_pipeline.problems.identity import normalise_text, problem_id
from grpo_pipeline.problems.readers import ProblemRecord, choose_reader
from grpo_pipeline.problems.records import read_records
from grpo_pipeline.problems.split import order_by_draw, split_problems
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.tables import empty, from_rows

SYNTHETIC = "synthetic"
Usable = Callable[[str], str | None]
"""Gold answer -> why it cannot be used, None if it can."""


@dataclass(frozen=True)
class ProblemSet:
    """The problems of a run.

    Attributes:
        frame: Rows of the `problems` table, split filled, in order of problem_id.
        counts: `read`, `train`, `eval`, `unused` (more than asked for), and `dropped_...` by reason.
        contaminated: The training problems dropped for matching an evaluation problem
            (`decontamination.find_contamination`).
    """

    frame: pl.DataFrame
    counts: dict[str, int]
    contaminated: pl.DataFrame


def load_problems(config: ProblemsConfig, seed: int, usable: Usable | None = None) -> ProblemSet:
    """The training and evaluation problems of a run, disjoint by problem_id and by question.

    Args:
        config: Where they come from.
        seed: The run's seed; with `config.seed` it decides generation and split.
        usable: Judges gold answers; `answers.check_gold` unless given.

    Raises:
        UserError: A source is missing, broken or of unknown form, or too small.
    """
    if usable is None:
        from grpo_pipeline.answers import check_gold  # brings sympy, which a synthetic run can do without

        usable = check_gold
    seed = derive_seed(seed, "problems", config.seed)
    counts: Counter[str] = Counter()
    if config.source == SYNTHETIC and config.eval_source is None:
        train, held_out, matches = _generate_both(config, seed)
        counts["read"] = train.height + held_out.height + matches.height
    else:
        train, held_out = _read_both(config, seed, usable, counts)
        train = _drop_shared(train, held_out, counts)
        matches = (
            find_contamination(train, held_out)
            if config.decontaminate
            else find_contamination(empty("problems"), held_out)
        )
        train = train.join(matches, on="problem_id", how="anti", maintain_order="left")
        if config.count is not None and train.height > config.count:
            counts["unused"] += train.height - config.count
            train = train.head(config.count)
    for match, number in matches.group_by("match").len().sort("match").iter_rows():
        counts[f"dropped_contaminated_{match}"] = number
    if train.is_empty():
        raise UserError(f"{config.source}: no training problem is left ({listed(counts)})")
    counts["train"], counts["eval"] = train.height, held_out.height
    parts = [train.with_columns(split=pl.lit("train")), held_out.with_columns(split=pl.lit("eval"))]
    return ProblemSet(pl.concat(parts).sort("problem_id"), dict(counts), matches)


def _generate_both(config: ProblemsConfig, seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Generated problems; those held out come first, so that they are the same for any number to train on."""
    count, spare = _required_count(config), 0
    while True:
        frame = _generate(config, config.eval_count + count + spare, seed)
        held_out, train = frame.head(config.eval_count), frame.slice(config.eval_count)
        matches = find_contamination(train if config.decontaminate else train.head(0), held_out)
        clean = train.join(matches, on="problem_id", how="anti", maintain_order="left")
        if clean.height >= count:
            break
        spare += 2 * (count - clean.height)
    train = clean.head(count)
    # Only what stands before the last problem taken was passed over for a match.
    last = frame["problem_id"].index_of(train["problem_id"][-1])
    passed = frame.slice(0, last)["problem_id"]
    return train, held_out, matches.filter(pl.col("problem_id").is_in(passed.implode()))


def _required_count(config: ProblemsConfig) -> int:
    if config.count is None:
        raise UserError("problems.count is required for source 'synthetic'")
    return config.count


def _generate(config: ProblemsConfig, count: int, seed: int) -> pl.DataFrame:
    try:
        rows = generate_problems(count, seed, config.min_steps, config.max_steps)
    except ValueError as error:
        raise UserError(f"problems.source = 'synthetic': {error}") from None
    identified = [{**row, "problem_id": problem_id(row["question"], row["gold_answer"]), "split": ""} for row in rows]
    return from_rows(identified, "problems")


def _read_both(
    config: ProblemsConfig, seed: int, usable: Usable, counts: Counter[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    if config.source == SYNTHETIC:
        train = _generate(config, _required_count(config), seed)
    else:
        train = _read(config.source, config, usable, counts)
    if config.eval_source is None:
        if train.height <= config.eval_count:
            raise UserError(
                f"{config.source}: has {train.height} usable problems, problems.eval_count = {config.eval_count} "
                f"leaves none for training; lower it, or set problems.eval_source ({listed(counts)})"
            )
        return split_problems(train, config.eval_count, seed)
    if config.eval_source == SYNTHETIC:
        held_out = _generate(config, config.eval_count, derive_seed(seed, "eval"))
    else:
        eval_counts: Counter[str] = Counter()
        held_out = order_by_draw(_read(config.eval_source, config, usable, eval_counts), seed).head(config.eval_count)
        counts.update({f"eval_{name}": number for name, number in eval_counts.items()})
    return order_by_draw(train, seed), held_out


def _read(source: str, config: ProblemsConfig, usable: Usable, counts: Counter[str]) -> pl.DataFrame:
    records = read_records(source, config.hub_split)
    reader = choose_reader(config.reader, config.columns, records[0])
    rows: dict[str, dict[str, str | None]] = {}
    questions: set[str] = set()
    for record in records:
        counts["read"] += 1
        problem = reader(record)
        if problem is None:
            counts["dropped_by_reader"] += 1
            continue
        reason = _why_unusable(problem, usable)
        if reason is None:
            assert problem.gold_answer is not None
            identifier = problem_id(problem.question, problem.gold_answer)
            question = normalise_text(problem.question)
            if identifier in rows:
                reason = "duplicate"
            elif question in questions:
                # One question with two answers: at most one is right, and a split could part them.
                reason = "conflicting_gold"
        if reason is not None:
            counts[f"dropped_{reason}"] += 1
            continue
        questions.add(question)
        rows[identifier] = {
            "problem_id": identifier,
            "source": _source_name(source),
            "split": "",
            "question": problem.question,
            "gold_answer": problem.gold_answer,
            "gold_solution": problem.gold_solution,
            "meta": problem.meta,
        }
    if not rows:
        raise UserError(f"{source}: no usable problem among {len(records)} records ({listed(counts)})")
    return from_rows(rows.values(), "problems")


def _why_unusable(problem: ProblemRecord, usable: Usable) -> str | None:
    if not problem.question.strip():
        return "empty_question"
    if problem.gold_answer is None:
        return "gold_missing"
    return usable(problem.gold_answer)


def _drop_shared(train: pl.DataFrame, held_out: pl.DataFrame, counts: Counter[str]) -> pl.DataFrame:
    kept = train.join(held_out.select("problem_id"), on="problem_id", how="anti", maintain_order="left")
    if kept.height < train.height:
        counts["dropped_in_eval"] = train.height - kept.height
    return kept


def _source_name(source: str) -> str:
    """A local path's last two parts (folder and file), so that no machine's paths get into the data."""
    path = Path(source)
    return "/".join(path.parts[-2:]) if path.exists() else source
