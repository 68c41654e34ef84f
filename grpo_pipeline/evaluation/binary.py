"""Figures of scores against a binary truth: AUC, calibration, Brier, rank correlation."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def roc_auc(truth: npt.ArrayLike, scores: npt.ArrayLike) -> float | None:
    """The chance that a random positive scores above a random negative, ties counting half (Mann-Whitney).

    Args:
        truth: (n,) bool.
        scores: (n,) finite.

    Returns:
        In [0, 1]; None where only one class is there.
    """
    positive = np.asarray(truth, dtype=bool)
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        return None
    ranks = mid_ranks(scores)
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def brier(truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float | None:
    """Mean squared difference of probability and truth, in [0, 1]; None for no data."""
    target, p = np.asarray(truth, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    return float(np.mean((p - target) ** 2)) if p.size else None


def expected_calibration_error(truth: npt.ArrayLike, probabilities: npt.ArrayLike, bins: int = 10) -> float | None:
    """Mean over equal-width bins of |share of positives - mean probability|, weighted by their sizes.

    The bins are [0, 1/bins), ..., [1 - 1/bins, 1] (Guo et al. 2017, arXiv 1706.04599); None for no data.
    """
    target, p = np.asarray(truth, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if not p.size:
        return None
    which = np.minimum((p * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(which, weights=target - p, minlength=bins)
    return float(np.abs(gaps).sum() / p.size)


def spearman(left: npt.ArrayLike, right: npt.ArrayLike) -> float | None:
    """Rank correlation in [-1, 1]; None where one side is constant."""
    a, b = mid_ranks(left), mid_ranks(right)
    if a.size < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def mid_ranks(values: npt.ArrayLike) -> Floats:
    """(n,) ranks from 1; equal values share the mean of their ranks."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[which], dtype=np.float64)
