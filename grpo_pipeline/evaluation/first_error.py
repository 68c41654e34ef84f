"""Finding a solution's first wrong step by step scores (ProcessBench, Zheng et al. 2024, arXiv 2412.06559)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_ERROR = -1
"""Label and prediction of a solution without wrong step."""

MAX_CANDIDATES = 1024


@dataclass(frozen=True)
class Threshold:
    """A step is called wrong when its score is below `value`.

    Attributes:
        value: In [0, 1].
        split: Named data that it was tuned on; "fixed" where it was not tuned.
    """

    value: float
    split: str = "fixed"


FIXED = Threshold(0.5)
"""Not tuned on anything."""


@dataclass(frozen=True)
class FirstErrorFigures:
    """ProcessBench's figures.

    Attributes:
        error: Share of erroneous solutions whose first wrong step was found exactly; None if there are none.
        correct: Share of fully correct solutions in which no step was called wrong; None if there are none.
        f1: Harmonic mean of both, 0 if one is 0; None if one is undefined.
        n_error: Erroneous solutions.
        n_correct: Fully correct solutions.
    """

    error: float | None
    correct: float | None
    f1: float | None
    n_error: int
    n_correct: int


def predict_first_error(scores: Sequence[npt.ArrayLike], threshold: float) -> npt.NDArray[np.int64]:
    """(S,) index of the first step of each solution whose score is below the threshold, else -1."""
    return _predict(_padded(scores), threshold)


def first_error_figures(predicted: npt.ArrayLike, labels: npt.ArrayLike) -> FirstErrorFigures:
    """Compare predicted with true first wrong steps (-1: none), as ProcessBench defines it."""
    guess, truth = np.asarray(predicted), np.asarray(labels)
    if guess.shape != truth.shape:
        raise ValueError(f"{guess.size} predictions for {truth.size} labels")
    hit, erroneous = guess == truth, truth != NO_ERROR
    error = float(hit[erroneous].mean()) if erroneous.any() else None
    correct = float(hit[~erroneous].mean()) if not erroneous.all() else None
    f1 = None
    if error is not None and correct is not None:
        f1 = 2 * error * correct / (error + correct) if error + correct else 0.0
    return FirstErrorFigures(error, correct, f1, int(erroneous.sum()), int((~erroneous).sum()))


def processbench_f1(
    labels: npt.ArrayLike, scores: Sequence[npt.ArrayLike], threshold: Threshold = FIXED
) -> FirstErrorFigures:
    """F1 of a step scorer on one subset: the first step scored below the threshold is its first wrong step.

    Args:
        labels: (S,) index of the first wrong step, -1 if none.
        scores: Step scores of each solution, one a step.
        threshold: Fixed, or chosen on another subset (`choose_threshold`; the paper tunes on its GSM8K subset).
    """
    return first_error_figures(predict_first_error(scores, threshold.value), labels)


def choose_threshold(scores: Sequence[npt.ArrayLike], labels: npt.ArrayLike, *, split: str) -> Threshold:
    """The threshold with the highest F1 on this data; the lowest of equals.

    Candidates lie halfway between neighbouring scores (at most 1024 of them, by quantile), and above all.

    Args:
        scores: Step scores of each solution.
        labels: (S,) true first wrong step, -1 for none; both kinds must occur.
        split: Name of this data, kept with the threshold so that it is not used to measure on it.

    Raises:
        ValueError: No erroneous or no correct solution, so that F1 is undefined.
    """
    padded = _padded(scores)
    values = np.unique(padded[np.isfinite(padded)])
    if values.size > MAX_CANDIDATES:
        values = np.unique(np.quantile(values, np.linspace(0, 1, MAX_CANDIDATES)))
    candidates = np.append((values[1:] + values[:-1]) / 2, np.nextafter(values[-1:], 2.0))
    candidates = np.append(values[:1], candidates)
    best, best_f1 = 0.0, -1.0
    for candidate in candidates:
        f1 = first_error_figures(_predict(padded, float(candidate)), labels).f1
        if f1 is None:
            raise ValueError(f"split {split!r} needs both erroneous and correct solutions to choose a threshold")
        if f1 > best_f1:
            best, best_f1 = float(candidate), f1
    return Threshold(best, split)


def _predict(padded: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.int64]:
    below = padded < threshold
    return np.where(below.any(axis=1), below.argmax(axis=1), NO_ERROR)


def _padded(scores: Sequence[npt.ArrayLike]) -> npt.NDArray[np.float64]:
    """(S, K) scores, +inf where a solution has no such step."""
    rows = [np.asarray(row, dtype=np.float64) for row in scores]
    padded = np.full((len(rows), max((row.size for row in rows), default=1) or 1), np.inf)
    for index, row in enumerate(rows):
        padded[index, : row.size] = row
    return padded
