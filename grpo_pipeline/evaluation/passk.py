"""pass@k: the chance that at least one of k samples of a problem is correct (Chen et al. 2021, arXiv 2107.03374)."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def pass_at_k(n_samples: npt.ArrayLike, n_correct: npt.ArrayLike, k: npt.ArrayLike) -> Floats:
    """The unbiased estimator 1 - C(n - c, k) / C(n, k), for each problem.

    Args:
        n_samples: (P,) samples of each problem, at least k.
        n_correct: (P,) how many of them are correct.
        k: One number, or (P,).

    Returns:
        (P,) in [0, 1].

    Raises:
        ValueError: k < 1, k above the samples, or more correct ones than samples.
    """
    n, c, draws = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(x, dtype=np.int64)) for x in (n_samples, n_correct, k))
    )
    if (draws < 1).any() or (draws > n).any():
        raise ValueError(f"pass@k needs 1 <= k <= samples; got k {draws.tolist()[:5]} and samples {n.tolist()[:5]}")
    if (c < 0).any() or (c > n).any():
        raise ValueError("more correct samples than samples")
    # C(n - c, k) / C(n, k) as a product, which neither overflows nor cancels.
    none_correct = np.ones(n.shape)
    for i in range(int(draws.max(initial=0))):
        drawn = i < draws
        none_correct[drawn] *= np.maximum(n - c - i, 0)[drawn] / (n - i)[drawn]
    return np.asarray(1.0 - none_correct)
