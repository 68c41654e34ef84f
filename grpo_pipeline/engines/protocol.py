"""What every engine takes and gives: token ids in, token ids with log-probabilities out.

An engine never sees a data frame and never re-tokenises: what was sampled is what is trained on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample; part of a completion's identity.

    Attributes:
        temperature: Divides the logits; 0 is greedy decoding.
        top_p: Nucleus mass in (0, 1]; 1 keeps the whole distribution.
        max_tokens: Response tokens at most; a response that reaches it ends with ``length``.
        stop: Strings that end a response. The text ends before the string; token_ids keep what was sampled.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the seeds of the samples wanted from it (one sample a seed)."""

    prompt_token_ids: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One response.

    Attributes:
        token_ids: (T,) int32, EOS included where it was sampled.
        logprobs: (T,) float32 log-probability of each token under softmax(logits / temperature), before
            top_p cuts the distribution (for greedy: at temperature 1).
        text: Decoded without special tokens, and without the stop string.
        finish_reason: ``stop`` for EOS or a stop string, ``length`` if max_tokens or the context ended it.
    """

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    text: str
    finish_reason: FinishReason


OnResult = Callable[[int, list[Sample]], None]
"""Called with (request index, its samples) as soon as the last sample of a request has finished."""


class Engine(Protocol):
    """A text generator over one model.

    Attributes:
        model_id: Content id of the weights in use, with ``@step`` where they were updated since loading.
        max_model_len: Prompt and response tokens that fit together.
        tokenizer: The model's tokenizer (a transformers PreTrainedTokenizerBase).
    """

    model_id: str
    max_model_len: int

    @property
    def tokenizer(self) -> "TokenizerLike":
        """The model's tokenizer."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, on_result: OnResult | None = None
    ) -> list[list[Sample]]:
        """Sample every request; result i holds one Sample for each seed of request i, in order.

        The same request with the same sampling gives the same samples, whatever else is in the batch, as
        far as the arithmetic of the model's kernels allows.

        A request without seeds gives an empty list, and `on_result` for it; no requests give no results.

        Raises:
            PromptTooLongError: Where a prompt leaves no room for one token; nothing is cut, nothing sampled.
            ValueError: For an empty prompt or an empty stop string.
        """
        ...

    def close(self) -> None:
        """Free the model and end every process that the engine started. Twice does no harm."""
        ...

    def __enter__(self) -> Self:
        """An engine is a context manager that closes itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        ...


class TokenizerLike(Protocol):
    """The part of a transformers tokenizer that the pipeline uses."""

    eos_token_id: int | None
    pad_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...  # noqa: D102

    def decode(  # noqa: D102
        self, token_ids: Sequence[int] | npt.NDArray[np.int32], *, skip_special_tokens: bool = ...
    ) -> str: ...

    def batch_decode(  # noqa: D102
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = ...
    ) -> list[str]: ...

    def __len__(self) -> int: ...


class PromptTooLongError(ValueError):
    """Prompts that do not fit the model's context, by request index and length."""

    def __init__(self, lengths: dict[int, int], limit: int) -> None:
        self.lengths = lengths
        self.limit = limit
        worst = max(lengths.values())
        super().__init__(
            f"{len(lengths)} prompts do not fit the model's context of {limit} tokens (longest: {worst}). "
            "Drop or shorten them before generating; prompts are never cut."
        )
