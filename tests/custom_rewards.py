"""What a user might write, for the tests of entry points."""

import numpy as np
import polars as pl

SEEN = []
NOT_A_FUNCTION = 3


def brevity(frame):
    """Reward of short texts, as a polars column."""
    SEEN.append(frame.columns)
    return 1 / frame["text"].str.len_chars()


def even(frame):
    """A list with a null: undecided."""
    return [None if i == 0 else i % 2 == 0 for i in range(frame.height)]


def array(frame):
    """A numpy array."""
    return np.arange(frame.height)


def short(frame):
    """One reward too few."""
    return pl.Series([1.0] * (frame.height - 1))


def nan(frame):
    """A NaN in the second row."""
    return [1.0, float("nan")] + [0.0] * (frame.height - 2)


def text(frame):
    """Words instead of numbers."""
    return ["good"] * frame.height


def number(frame):
    """One number for all."""
    return 1.0


def rule(frame):
    """A name that is taken."""
    return [1.0] * frame.height


def huge(frame):
    """A number that the rewards' type cannot hold."""
    return [1e300] * frame.height
