"""The report's table of solutions: a sample of them, packed column by column."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from grpo_pipeline.report.evidence import SETS, Evidence
from grpo_pipeline.store import ArtifactRef

EXAMPLE_CHARS = 300
"""Length at which the example text of a completion is cut off."""

_LAST_CHOICE = "training"


def choose_solutions(solutions: pl.DataFrame, limit: int) -> pl.DataFrame:
    """At most `limit` solutions, an equal share of every set and round; training's only where room is left.

    Of one set and round those of the first problems by id are taken. An id is a hash, so the choice is random, and
    as far as possible the same problems in all rounds.
    """
    frames: list[pl.DataFrame] = []
    main = solutions.filter(pl.col("set") != _LAST_CHOICE)
    for part in (main, solutions.filter(pl.col("set") == _LAST_CHOICE)):
        groups = [group for _, group in part.sort("set", "round").group_by("set", "round", maintain_order=True)]
        room = limit - sum(frame.height for frame in frames)
        shares = fair_shares([group.height for group in groups], room)
        for group, share in zip(groups, shares, strict=True):
            frames.append(group.sort("problem_id", "group_index", "rollout_id").head(share))
    return pl.concat([solutions.head(0), *frames])


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """How many to take of groups of these sizes: all alike, and what small groups leave goes to the others."""
    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    for place, index in enumerate(order):
        shares[index] = min(sizes[index], room // (len(order) - place))
        room -= shares[index]
    return shares


def pack_solutions(evidence: Evidence, refs: Sequence[ArtifactRef], limit: int) -> dict[str, Any]:
    """Problems, solutions, steps and completions as columns; numbers in thousandths, texts as they are.

    Solutions of a problem follow each other. `first[i]` is the index of solution i's first step in the steps'
    columns; a step's `completions` is an index into the list of completions' answers, or -1.
    """
    chosen = _ordered(choose_solutions(evidence.solutions, limit)).with_row_index("place")
    steps = evidence.steps.join(chosen.select("rollout_id", "place"), on="rollout_id").sort("place", "step_index")
    lengths = chosen.join(steps.group_by("place").len(), on="place", how="left").sort("place")["len"].fill_null(0)
    completions, of_step = _completions(steps, refs)
    problems = _problems(evidence, chosen)
    position = {name: index for index, name in enumerate(problems["problem_id"].to_list())}
    sets = chosen["set"].unique(maintain_order=True).to_list()
    return {
        "total": evidence.solutions.height,
        "sets": sets,
        "problems": {
            "question": problems["question"].to_list(),
            "gold": problems["gold_answer"].to_list(),
            "source": problems["source"].to_list(),
            "split": problems["split"].to_list(),
            "solved": _thousandths(problems["solved"]),
            "n": problems["n"].to_list(),
        },
        "solutions": {
            "id": chosen["rollout_id"].to_list(),
            "problem": [position[name] for name in chosen["problem_id"].to_list()],
            "set": [sets.index(name) for name in chosen["set"].to_list()],
            "round": chosen["round"].to_list(),
            "index": chosen["group_index"].to_list(),
            "verdict": chosen["verdict"].to_list(),
            "answer": chosen["answer"].to_list(),
            "finish": chosen["finish_reason"].to_list(),
            "tokens": chosen["n_tokens"].to_list(),
            "first": [0, *lengths.cum_sum().to_list()],
        },
        "steps": {
            "text": steps["text"].to_list(),
            "soft": _thousandths(steps["soft"]),
            "hard": steps["hard"].to_list(),
            "source": steps["label_source"].to_list(),
            "correct": steps["n_correct"].to_list(),
            "sampled": steps["n_completions"].to_list(),
            "score": _thousandths(steps["score"]),
            "truth": steps["is_good"].cast(pl.Int8).to_list(),
            "completions": of_step,
        },
        "completions": completions,
    }


def _ordered(solutions: pl.DataFrame) -> pl.DataFrame:
    """Solutions by problem, problems with labelled solutions first."""
    rank = pl.col("set").replace_strict({name: place for place, name in enumerate(SETS.values())})
    ranked = solutions.with_columns(rank.alias("rank"), rank.min().over("problem_id").alias("first"))
    return ranked.sort("first", "problem_id", "rank", "round", "group_index", "rollout_id").drop("first", "rank")


def _problems(evidence: Evidence, chosen: pl.DataFrame) -> pl.DataFrame:
    """The chosen solutions' problems, with the share of correct ones among all decided solutions of the run."""
    decided = evidence.solutions.filter(pl.col("verdict").is_in(["correct", "wrong", "no_answer"]))
    solved = decided.group_by("problem_id").agg(
        solved=(pl.col("verdict") == "correct").mean(), n=pl.len().cast(pl.Int64)
    )
    return (
        chosen.select("problem_id")
        .unique(maintain_order=True)
        .join(evidence.problems, on="problem_id", how="left", maintain_order="left")
        .join(solved, on="problem_id", how="left", maintain_order="left")
    )


def _completions(steps: pl.DataFrame, refs: Sequence[ArtifactRef]) -> tuple[list[list[Any]], list[int]]:
    """For each labelled prefix its completions' answers: answer, verdict, how many, and the text of the first.

    The same prefix is completed anew by each round's completer, so that artifact and prefix together are the key.
    """
    packed: list[list[Any]] = []
    index: dict[tuple[str, str], int] = {}
    for ref in refs:
        hashes = steps.filter(pl.col("labelled_in") == ref.fingerprint)["prefix_hash"].unique()
        if "completions" not in ref.tables or hashes.is_empty():
            continue
        rows = ref.scan("completions").filter(pl.col("prefix_hash").is_in(hashes.implode())).collect()
        answers = (
            rows.sort("prefix_hash", "completion_index")
            .group_by("prefix_hash", "answer", "verdict", "finish_reason", maintain_order=True)
            .agg(pl.len().alias("n"), pl.col("text").first().str.head(EXAMPLE_CHARS))
            .sort("prefix_hash", "n", descending=[False, True], maintain_order=True)
        )
        for prefix, answer, verdict, finish, n, text in answers.iter_rows():
            key = (ref.fingerprint, prefix)
            if key not in index:
                index[key] = len(packed)
                packed.append([])
            packed[index[key]].append([answer, "cut off" if finish == "length" else verdict, n, text])
    return packed, [index.get(key, -1) for key in steps.select("labelled_in", "prefix_hash").iter_rows()]


def _thousandths(series: pl.Series) -> list[int | None]:
    return (series.cast(pl.Float64) * 1000).round().cast(pl.Int32).to_list()
