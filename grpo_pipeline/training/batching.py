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
        if len(self.read) and not (self.read[0] >= 0 and self.read[-1] < len(self.tokens)):
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


def plan_padded(rows: Sequence[Row], budget: int, together: int = 1) -> list[list[int]]:
    """Cut rows, sorted by length, so that rows x longest row stays within the budget.

    Args:
        rows: The optimizer step's rows.
        budget: Tokens, padding included, of one micro-batch; a unit over it stands alone.
        together: Consecutive rows that make a unit and are never parted (2 for preference pairs).

    Returns:
        Row indices of each micro-batch, those of a unit adjacent and in order; every row is in exactly one.
    """
    units = _units(rows, together)
    longest = [max(len(rows[i].tokens) for i in unit) for unit in units]
    batches: list[list[int]] = []
    for u in sorted(range(len(units)), key=lambda u: (longest[u], u)):
        # Lengths ascend, so the unit that is added has the longest row of its batch.
        if batches and (len(batches[-1]) + together) * longest[u] <= budget:
            batches[-1].extend(units[u])
        else:
            batches.append(list(units[u]))
    return batches


def plan_packed(rows: Sequence[Row], budget: int, together: int = 1) -> list[list[int]]:
    """Spread groups of rows that share a prompt over micro-batches of equal cost within the budget.

    A prompt counts once in each micro-batch that holds rows of it. A group that is over the budget by itself is
    cut; a unit over it stands alone. Arguments and result as `plan_padded`'s.
    """
    if not rows:
        return []
    pieces = [piece for group in _groups(rows, together) for piece in _cut(rows, group, budget)]
    sizes = [_packed_tokens(rows, piece) for piece in pieces]
    costs = [_cost(rows, piece) for piece in pieces]
    heaviest_first = sorted(range(len(pieces)), key=lambda p: (-costs[p], p))
    n_bins = max(1, -(-sum(sizes) // budget))
    while True:
        bins = _fill(heaviest_first, sizes, costs, n_bins, budget)
        if bins is not None:
            return [[i for p in sorted(chosen) for i in pieces[p]] for chosen in bins if chosen]
        n_bins += 1


def _units(rows: Sequence[Row], together: int) -> list[range]:
    if len(rows) % together:
        raise ValueError(f"{len(rows)} rows cannot be cut into units of {together}")
    return [range(start, start + together) for start in range(0, len(rows), together)]


def _groups(rows: Sequence[Row], together: int) -> list[list[range]]:
    """Units by prompt; within a group by length, since attention over similar lengths is padded least."""
    groups: dict[bytes | int, list[range]] = {}
    for unit in _units(rows, together):
        first = rows[unit[0]]
        groups.setdefault(first.prompt_key if first.n_prompt else unit[0], []).append(unit)
    return [sorted(group, key=lambda u: (sum(len(rows[i].tokens) for i in u), u[0])) for group in groups.values()]


def _cut(rows: Sequence[Row], group: list[range], budget: int) -> list[list[int]]:
    pieces: list[list[int]] = []
    size = 0
    for unit in group:
        more = sum(len(rows[i].tokens) - rows[i].n_prompt for i in unit)
        if pieces and size + more <= budget:
            pieces[-1].extend(unit)
            size += more
        else:
            pieces.append(list(unit))
            size = _packed_tokens(rows, unit)
    return pieces


def _packed_tokens(rows: Sequence[Row], unit: Sequence[int] | range) -> int:
    prompts = {rows[i].prompt_key: rows[i].n_prompt for i in unit}
    return sum(prompts.values()) + sum(len(rows[i].tokens) - rows[i].n_prompt for i in unit)


def _cost(rows: Sequence[Row], unit: Sequence[int]) -> float:
    pairs = rows[unit[0]].n_prompt ** 2
    pairs += sum((len(rows[i].tokens) - rows[i].n_prompt) * len(rows[i].tokens) for i in unit)
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
