"""Picking one answer out of several samples: majority, best of n, weighted vote.

Every figure is the exact expected value for one problem: over the choice of k of its n samples and over a
fair break of ties. Nothing is drawn, so nothing depends on a seed.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np

from grpo_pipeline.answers.canonical import canonical
from grpo_pipeline.answers.exact import exact_value
from grpo_pipeline.answers.reading import read
from grpo_pipeline.answers.verdicts import NeedsWorker, Refused


@lru_cache(maxsize=65536)
def vote_key(answer: str) -> str:
    """The same string for answers that mean the same by reading alone: "0.50", "1/2" and "50/100" vote together.

    Answers that only algebra shows to be equal stay apart.
    """
    reading = read(answer)
    if not reading.nodes:
        return reading.key
    try:
        value = exact_value(reading.nodes[0])
        return f"={value}" if value is not None else canonical(reading.nodes[0])
    except (Refused, NeedsWorker, RecursionError):
        return reading.key


def expected_majority(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """maj@k of one problem: the chance that the most frequent answer of k of its samples is correct.

    Samples without an answer do not vote. Where several answers are equally frequent, each is picked with the
    same chance; where nobody votes, the pick is wrong. An answer is correct if any sample that gives it is.

    Args:
        answers: (n,) normalised answers (`vote_key`), None where there is none.
        correct: (n,) whether each sample is correct.
        k: Votes, 1 <= k <= n.

    Raises:
        ValueError: k is outside [1, n].
    """
    _check_k(k, len(answers))
    votes = Counter(answer for answer in answers if answer is not None)
    right = {answer for answer, good in zip(answers, correct, strict=True) if good and answer is not None}
    counts = sorted((count, answer in right) for answer, count in votes.items())
    return _majority(tuple(counts), len(answers) - sum(votes.values()), k)


def expected_best_of(scores: Sequence[float], correct: Sequence[bool], k: int) -> float:
    """best-of-k of one problem: the chance that the best-scored of k of its samples is correct.

    Samples with equal scores are picked with the same chance.

    Args:
        scores: (n,) a score of each sample.
        correct: (n,) whether each sample is correct.
        k: Samples to choose among, 1 <= k <= n.

    Raises:
        ValueError: k is outside [1, n].
    """
    n = len(scores)
    _check_k(k, n)
    tied: dict[float, list[bool]] = defaultdict(list)
    for score, good in zip(scores, correct, strict=True):
        tied[score].append(good)
    chance, before = 0.0, 0
    for score in sorted(tied, reverse=True):
        group = tied[score]
        picked = comb(n - before, k) - comb(n - before - len(group), k)
        chance += picked / comb(n, k) * sum(group) / len(group)
        before += len(group)
    return chance


def weighted_vote(answers: Sequence[str | None], weights: Sequence[float], correct: Sequence[bool]) -> float:
    """The chance that the answer with the largest sum of weights is correct; ties and abstentions as in maj@k.

    Args:
        answers: (n,) normalised answers, None where there is none.
        weights: (n,) score of each sample, non-negative.
        correct: (n,) whether each sample is correct.
    """
    totals: dict[str, float] = defaultdict(float)
    right = set()
    for answer, weight, good in zip(answers, weights, correct, strict=True):
        if answer is not None:
            totals[answer] += weight
            if good:
                right.add(answer)
    if not totals:
        return 0.0
    best = max(totals.values())
    # Sums of the same weights in another order differ in the last bits and are still a tie.
    winners = [answer for answer, total in totals.items() if total >= best - 1e-12 * max(1.0, abs(best))]
    return sum(answer in right for answer in winners) / len(winners)


@lru_cache(maxsize=65536)
def _majority(counts: tuple[tuple[int, bool], ...], abstained: int, k: int) -> float:
    """Sum over the correct answers, and over the votes m that each may get, of the chance to win with them."""
    n = sum(count for count, _ in counts) + abstained
    chance = 0.0
    for winner, (count, good) in enumerate(counts):
        if not good:
            continue
        others = [other for index, (other, _) in enumerate(counts) if index != winner]
        for m in range(1, min(count, k) + 1):
            chance += comb(count, m) * _ways(others, abstained, k - m, m)
    return chance / comb(n, k)


def _ways(others: Sequence[int], abstained: int, draws: int, m: int) -> float:
    """Ways to draw the remaining samples with no other answer above m votes, each weighted by 1 / (ties + 1)."""
    # ways[d, t]: ways in which the answers so far got d votes together, t of them exactly m.
    ways = np.zeros((draws + 1, draws // m + 1))
    ways[0, 0] = 1.0
    for size in others:
        grown = np.zeros_like(ways)
        for votes in range(min(size, m, draws) + 1):
            moved = ways[: draws + 1 - votes] * comb(size, votes)
            if votes == m:
                grown[votes:, 1:] += moved[:, :-1]
            else:
                grown[votes:] += moved
        ways = grown
    rest = np.array([comb(abstained, draws - d) for d in range(draws + 1)], dtype=np.float64)
    shares = 1.0 / np.arange(1, ways.shape[1] + 1)
    return float(rest @ ways @ shares)


def _check_k(k: int, n: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, expected 1 <= k <= {n} samples")
