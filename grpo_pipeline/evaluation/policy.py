"""How good a policy is, on held-out problems: accuracy, maj@k, pass@k, best-of-k (METHOD 7).

Counting. A check that ran out of time is undecided: that rollout is left out, and where fewer than k decided
rollouts of a problem are left, the figure uses those that are there. A problem without any decided rollout is
left out, so `n` may be below the number of problems. A response that was cut off without an answer is not correct
(its share is a figure of its own), for the policy had the tokens it was given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.passk import pass_at_k
from grpo_pipeline.evaluation.rows import Figure, evaluation_rows, mean_figure
from grpo_pipeline.evaluation.votes import expected_best_of, expected_majority, vote_key, weighted_vote


@dataclass(frozen=True)
class Samples:
    """The decided rollouts of one problem, in the order of their group_index.

    Attributes:
        problem_id: The problem.
        answers: Normalised answers, None where there is none.
        correct: Whether each is correct.
        scores: The reward model's solution scores, empty without one.
    """

    problem_id: str
    answers: list[str | None]
    correct: list[bool]
    scores: list[float]


def evaluate_policy(
    problems: pl.DataFrame,
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    solution_scores: pl.DataFrame | None = None,
    *,
    greedy: pl.DataFrame | None = None,
    k: int,
    round: int,
) -> pl.DataFrame:
    """Figures of one policy.

    Args:
        problems: `problems` columns; every rollout must be of an evaluation problem among them.
        rollouts: `rollouts` columns of one policy, at least k a problem.
        checked: `checked` columns of these rollouts.
        solution_scores: rollout_id, score, one for each rollout: best-of-k and weighted vote need them.
        greedy: `checked` columns of one greedy rollout a problem.
        round: RL rounds that the policy has behind it.
        k: Largest k; maj, pass and bon are given for the powers of two below it and for k itself.

    Returns:
        `evaluations` rows, subject "policy": accuracy (mean of the problems' shares), greedy, maj{k}, pass{k},
        bon{k}, weighted{k} (over the first k rollouts), mean_tokens, truncated_share, undecided_share.

    Raises:
        ValueError: A rollout of a training or unknown problem, without verdict or score, fewer than k rollouts of a
            problem, or rollouts of several policies.
    """
    frame = join_solutions(problems, rollouts, checked, solution_scores, k)
    samples = decided_samples(frame)
    figures = [mean_figure("accuracy", [np.mean(s.correct) for s in samples])]
    if greedy is not None:
        figures.append(_greedy(problems, greedy))
    by_k = values_by_k(samples, k, scored=solution_scores is not None)
    figures += [mean_figure(name, values) for name, values in by_k.items()]
    if solution_scores is not None:
        first = decided_samples(frame.filter(pl.int_range(pl.len()).over("problem_id") < k))
        weighted = [weighted_vote(s.answers, s.scores, s.correct) for s in first]
        figures.append(mean_figure(f"weighted{k}", weighted))
    shares = {
        "mean_tokens": pl.col("token_ids").list.len(),
        "truncated_share": pl.col("finish_reason") == "length",
        "undecided_share": pl.col("verdict") == "timeout",
    }
    per_problem = frame.group_by("problem_id").agg(**{name: value.mean() for name, value in shares.items()})
    figures += [mean_figure(name, per_problem[name]) for name in shares]
    return evaluation_rows(figures, round=round, subject="policy", subject_id=single_policy(rollouts))


def several_k(k: int) -> list[int]:
    """1, 2, 4, ... up to k, and k itself."""
    return sorted({2**i for i in range(k.bit_length())} | {k})


def values_by_k(samples: Sequence[Samples], k: int, *, scored: bool) -> dict[str, list[float]]:
    """pass{k}, maj{k} and, where the samples are scored, bon{k}: name -> a value of each problem."""
    rules: dict[str, Callable[[Samples, int], float]] = {
        "maj": lambda s, draws: expected_majority(s.answers, s.correct, draws),
        "bon": lambda s, draws: expected_best_of(s.scores, s.correct, draws),
    }
    if not scored:
        del rules["bon"]
    n = np.array([len(s.correct) for s in samples], dtype=np.int64)
    correct = np.array([sum(s.correct) for s in samples], dtype=np.int64)
    values: dict[str, list[float]] = {}
    for size in several_k(k):
        values[f"pass{size}"] = pass_at_k(n, correct, np.minimum(size, n)).tolist() if samples else []
        for name, rule in rules.items():
            values[f"{name}{size}"] = [rule(s, min(size, len(s.correct))) for s in samples]
    return values


def _greedy(problems: pl.DataFrame, greedy: pl.DataFrame) -> Figure:
    require_held_out(problems, greedy)
    if not greedy["problem_id"].is_unique().all():
        raise ValueError("greedy holds several rollouts of a problem; greedy decoding gives one")
    decided = greedy.filter(pl.col("verdict") != "timeout")
    return mean_figure("greedy", (decided["verdict"] == "correct").cast(pl.Float64))


def join_solutions(
    problems: pl.DataFrame, rollouts: pl.DataFrame, checked: pl.DataFrame, scores: pl.DataFrame | None, k: int
) -> pl.DataFrame:
    """Rollouts of one policy with answer, verdict and score, by problem; raises as `evaluate_policy`."""
    require_held_out(problems, rollouts)
    frame = rollouts.select("rollout_id", "problem_id", "group_index", "token_ids", "finish_reason").join(
        checked.select("rollout_id", "answer", "verdict"), on="rollout_id", how="left", validate="1:1"
    )
    if scores is None:
        frame = frame.with_columns(score=pl.lit(0.0))
    else:
        frame = frame.join(
            scores.select("rollout_id", pl.col("score").cast(pl.Float64)),
            on="rollout_id",
            how="left",
            validate="1:1",
        )
    for column in ("verdict", "score"):
        if missing := frame[column].null_count():
            raise ValueError(f"{missing} of {frame.height} rollouts have no {column}")
    fewest = min(frame.group_by("problem_id").len()["len"].to_list(), default=0)
    if not 1 <= k <= fewest:
        raise ValueError(f"k is {k}, expected 1 <= k <= {fewest}, the fewest rollouts of a problem")
    return frame.sort("problem_id", "group_index")


def decided_samples(frame: pl.DataFrame) -> list[Samples]:
    """`join_solutions`' rows by problem, without those whose check timed out."""
    decided = frame.filter(pl.col("verdict") != "timeout").with_columns(pl.col("verdict") == "correct")
    grouped = decided.group_by("problem_id", maintain_order=True).agg("answer", "verdict", "score")
    return [
        Samples(problem_id, [None if a is None else vote_key(a) for a in answers], correct, scores)
        for problem_id, answers, correct, scores in grouped.iter_rows()
    ]


def require_held_out(problems: pl.DataFrame, frame: pl.DataFrame) -> None:
    """Raise ValueError for a row of a problem that is not held out."""
    held_out = problems.filter(pl.col("split") == "eval")
    bad = frame.join(held_out, on="problem_id", how="anti")
    if bad.height:
        raise ValueError(
            f"{bad.height} rollouts are not of held-out problems; first: problem {bad['problem_id'][0]}. "
            "Policies are measured on the eval split only"
        )


def single_policy(rollouts: pl.DataFrame) -> str:
    """The policy that sampled the rollouts; raises ValueError where there are several."""
    ids = rollouts["policy_id"].unique().to_list()
    if len(ids) != 1:
        raise ValueError(f"rollouts of {len(ids)} policies, expected one: {ids[:5]}")
    return str(ids[0])
