"""An optimizer step's responses: rows for the model, and what each response token carries."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_pipeline.training.batching import Row


class TokenRows:
    """R rows with N response tokens, flat.

    Attributes:
        rows: Prompt and response of each row; its read positions predict the response.
        row: (N,) int64, whose token it is.
        targets: (N,) int64, the response's token ids.
        columns: Name -> (N,) values of the tokens: weights, advantages, old_logprobs and so on, with the names
            of `TokenBatch`.
    """

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self.rows = list(rows)
        self.device = device
        sizes = [len(row.read) for row in self.rows]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.row = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64)).to(device)
        targets = [row.tokens[row.read + 1] for row in self.rows]
        self.targets = torch.from_numpy(np.concatenate(targets) if targets else np.empty(0, np.int64)).to(device)
        self.columns: dict[str, Tensor] = {}

    @property
    def lengths(self) -> Tensor:
        """(R,) int64 response tokens of each row."""
        return torch.from_numpy(np.diff(self._starts)).to(self.device)

    def spread(self, values: npt.ArrayLike) -> Tensor:
        """(R,) a value of each row -> (N,) float32, the same for all of its tokens."""
        return torch.as_tensor(np.asarray(values), dtype=torch.float32, device=self.device)[self.row]

    def take(self, chosen: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Targets and columns of the chosen rows' tokens, row by row."""
        pieces = [np.arange(self._starts[i], self._starts[i + 1]) for i in chosen]
        index = torch.from_numpy(np.concatenate(pieces)).to(self.device)
        return self.targets[index], {name: column[index] for name, column in self.columns.items()}

    def subset(self, chosen: Sequence[int]) -> "TokenRows":
        """The chosen rows with their columns, as an optimizer step of their own."""
        result = TokenRows([self.rows[i] for i in chosen], self.device)
        if chosen:
            result.columns = self.take(chosen)[1]
        return result
