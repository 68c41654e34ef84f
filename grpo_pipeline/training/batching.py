"""Which rows go through the model together: token-budget micro-batches, balanced by cost.

A row is a token sequence with the positions whose hidden states are read. Micro-batches only ever add up
(every token's weight in the loss is fixed for the whole optimizer step), so the way a step is cut decides
speed and memory, never the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ATTENTION_SHARE = 1 / 512
"""Cost of one attended (query, key) pair, in tokens' worth of the token-wise work. Only the balance of
micro-batches depends on it."""


@dataclass(frozen=True)
class Row:
    """One token sequence of an optimizer step.

    Attributes:
        tokens: (T,) prompt and response token ids.
        n_prompt: P, leading tokens that the rows of the same prompt have in common; 0 shares nothing.
        read: (K,) ascending positions in [0, T) whose hidden states are wanted. For log-probabilities of
            the response these are P-1 .. T-2: the state at a token predicts the next one.
    """

    tokens: Ints
    n_prompt: int
    read: Ints

    def __post_init__(self) -> None:
        """Refuse rows that could not be read as they say."""
        if not 0 <= self.n_prompt <= len(self.tokens):
            raise ValueError(f"n_prompt is {self.n_prompt} in a row of {len(self.tokens)} tokens")
        if len(self.read) and not (0 <= self.read[0] and self.read[-1] < len(self.tokens)):
            raise ValueError(f"read positions {self.read.tolist()} leave the row's {len(self.tokens)} tokens")

    @property
    def prompt_key(self) -> bytes:
        """Equal for rows that share their prompt's tokens."""
        return self.tokens[: self.n_prompt].tobytes()


def response_row(prompt: Sequence[int] | npt.NDArray[np.int32], response: Sequence[int] | npt.NDArray[np.int32]) -> Row:
    """A row whose hidden states predict every response token.

    Raises:
        ValueError: For an empty prompt (nothing predicts the first response token) or an empty response.
    """
    if len(prompt) == 0 or len(response) == 0:
        raise ValueError(f"a row needs a prompt and a response, got {len(prompt)} and {len(response)} tokens")
    tokens = np.concatenate([np.asarray(prompt, dtype=np.int64), np.asarray(response, dtype=np.int64)])
    return Row(tokens, len(prompt), np.arange(len(prompt) - 1, len(tokens) - 1, dtype=np.int64))


def plan_padded(rows: Sequence[Row], budget: int) -> list[list[int]]:
    """Cut rows, sorted by length, so that rows x longest row stays within the budget.

    Args:
        rows: The optimizer step's rows.
        budget: Tokens, padding included, of one micro-batch; a longer row stands alone.

    Returns:
        Row indices of each micro-batch; every row is in exactly one.
    """
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i].tokens), i))
    batches: list[list[int]] = []
    for i in order:
        # Lengths ascend, so the row that is added is the longest of its batch.
        if batches and (len(batches[-1]) + 1) * len(rows[i].tokens) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def plan_packed(rows: Sequence[Row], budget: int) -> list[list[int]]:
    """Spread groups of rows that share a prompt over micro-batches of equal cost within the budget.

    A prompt counts once in each micro-batch that holds rows of it. A group that is over the budget by itself is
    cut; a single row over it stands alone.

    Returns:
        Row indices of each micro-batch, rows of a group adjacent; every row is in exactly one.
    """
    units = [unit for group in _groups(rows) for unit in _cut(rows, group, budget)]
    sizes = [_packed_tokens(rows, unit) for unit in units]
    costs = [_cost(rows, unit) for unit in units]
    heaviest_first = sorted(range(len(units)), key=lambda u: (-costs[u], u))
    n_bins = max(1, -(-sum(sizes) // budget))
    while True:
        bins = _fill(heaviest_first, sizes, costs, n_bins, budget)
        if bins is not None:
            return [[i for u in sorted(chosen) for i in units[u]] for chosen in bins if chosen]
        n_bins += 1


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    groups: dict[bytes | int, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.prompt_key if row.n_prompt else i, []).append(i)
    # Within a group by length: the attention of similar rows is padded least.
    return [sorted(group, key=lambda i: (len(rows[i].tokens), i)) for group in groups.values()]


def _cut(rows: Sequence[Row], group: list[int], budget: int) -> list[list[int]]:
    pieces: list[list[int]] = []
    for i in group:
        if pieces and _packed_tokens(rows, [*pieces[-1], i]) <= budget:
            pieces[-1].append(i)
        else:
            pieces.append([i])
    return pieces


def _packed_tokens(rows: Sequence[Row], unit: Sequence[int]) -> int:
    prompt = rows[unit[0]].n_prompt
    return prompt + sum(len(rows[i].tokens) - prompt for i in unit)


def _cost(rows: Sequence[Row], unit: Sequence[int]) -> float:
    prompt = rows[unit[0]].n_prompt
    pairs = prompt**2 + sum((len(rows[i].tokens) - prompt) * len(rows[i].tokens) for i in unit)
    return _packed_tokens(rows, unit) + ATTENTION_SHARE * pairs


def _fill(
    order: Sequence[int], sizes: Sequence[int], costs: Sequence[float], n_bins: int, budget: int
) -> list[list[int]] | None:
    """Longest-processing-time first: each unit goes to the cheapest bin; None where a bin overflows."""
    bins: list[list[int]] = [[] for _ in range(n_bins)]
    filled, spent = [0] * n_bins, [0.0] * n_bins
    for unit in order:
        room = [b for b in range(n_bins) if not bins[b] or filled[b] + sizes[unit] <= budget]
        if not room:
            return None
        best = min(room, key=lambda b: (spent[b], b))
        bins[best].append(unit)
        filled[best] += sizes[unit]
        spent[best] += costs[unit]
    return bins
