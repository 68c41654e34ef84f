"""Where a solution's steps begin and end, in characters and in sampled tokens.

A splitter cuts the text; joining its pieces gives the text back, byte for byte. `line` ends a step at a line
break, `paragraph` at an empty line; white space alone is never a step but belongs to the step before it. A
user's splitter is a function named as ``module:function`` that takes the text and returns either the pieces
or the end offsets of the steps.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any

import polars as pl

from grpo_pipeline.engines.protocol import TokenizerLike
from grpo_pipeline.entry_point import load_entry_point
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.prefixes import prefix_hash
from grpo_pipeline.tables import from_rows

Splitter = Callable[[str], list[int]]
"""Text -> end offset of every step: rising, the last one the text's length; empty for an empty text."""

_LINE = re.compile(r"\n")
_PARAGRAPH = re.compile(r"\n(?:[^\S\n]*\n)+")


def split_rollouts(rollouts: pl.DataFrame, tokenizer: TokenizerLike, splitter: str) -> pl.DataFrame:
    """Split every rollout into steps.

    Args:
        rollouts: The rollouts table.
        tokenizer: The tokenizer whose decoding gave the rollouts' texts.
        splitter: ``line``, ``paragraph`` or a user's ``module:function``.

    Returns:
        The ``steps`` table, rollouts in their order. A rollout with an empty text has no row (label_steps
        counts those). Two steps may end in the same token, where one token holds both their last characters.

    Raises:
        UserError: A splitter that cannot be loaded, or whose steps do not make up the text.
        ValueError: A rollout whose text is not what its tokens decode to.
    """
    split = load_splitter(splitter)
    pieces = TokenPieces(tokenizer)
    rows: list[dict[str, Any]] = []
    columns = rollouts.select("rollout_id", "problem_id", "prompt_token_ids", "token_ids", "text")
    for rollout_id, problem_id, prompt, tokens, text in columns.iter_rows():
        try:
            ends = split(text)
            token_ends = piece_ends(pieces, tokens, text, ends) or align_ends(tokenizer, tokens, text, ends)
        except UserError as error:
            raise UserError(f"rollout {rollout_id}: {error}") from None
        except ValueError as error:
            raise ValueError(f"rollout {rollout_id}: {error}") from None
        starts = [0, *ends][: len(ends)]
        rows += [
            {
                "rollout_id": rollout_id,
                "problem_id": problem_id,
                "step_index": index,
                "text": text[start:end],
                "char_start": start,
                "char_end": end,
                "token_end": token_end,
                "is_last": index == len(ends) - 1,
                "prefix_hash": prefix_hash(prompt, tokens[: token_end + 1]),
            }
            for index, (start, end, token_end) in enumerate(zip(starts, ends, token_ends, strict=True))
        ]
    return from_rows(rows, "steps")


def load_splitter(name: str) -> Splitter:
    """The splitter of that name; a user's function is wrapped in checks.

    Raises:
        UserError: Neither a known name nor an importable ``module:function``.
    """
    if name == "line":
        return lambda text: _ends_after(_LINE, text)
    if name == "paragraph":
        return lambda text: _ends_after(_PARAGRAPH, text)
    if ":" not in name:
        raise UserError(f"splitter {name!r} is unknown; use line, paragraph or your own as 'module:function'")
    function = load_entry_point(name, "labelling.splitter")
    return lambda text: _checked_ends(name, text, function(text)) if text else []


def _ends_after(separator: re.Pattern[str], text: str) -> list[int]:
    """End offsets after each separator; white space alone goes with the step before (or the first step)."""
    ends: list[int] = []
    start = 0
    for end in [match.end() for match in separator.finditer(text)] + [len(text)]:
        if text[start:end].strip():
            ends.append(end)
            start = end
        elif ends:
            ends[-1] = start = end
    # Nothing but white space is one step, so that the pieces still make up the text.
    return ends or ([len(text)] if text else [])


def _checked_ends(name: str, text: str, returned: Any) -> list[int]:
    pieces: list[Any] = list(returned) if isinstance(returned, Iterable) else []
    texts = bool(pieces) and all(isinstance(piece, str) for piece in pieces)
    if not texts and not (pieces and all(isinstance(piece, Integral) for piece in pieces)):
        raise UserError(
            f"splitter {name!r} returned {returned!r:.80} for a text of {len(text)} characters; it must return the "
            "steps' texts, or the offsets at which they end"
        )
    if texts:
        if "".join(str(piece) for piece in pieces) != text:
            raise UserError(f"splitter {name!r} returned texts that do not join to the solution's text {text!r}")
        ends: list[int] = []
        for piece in pieces:
            ends.append((ends[-1] if ends else 0) + len(str(piece)))
    else:
        ends = [int(piece) for piece in pieces]
    rising = all(a < b for a, b in zip([0, *ends], ends, strict=False))
    if not ends or not rising or ends[-1] != len(text):
        raise UserError(
            f"splitter {name!r} returned step ends {ends} for a text of {len(text)} characters; they must rise "
            "from above 0 and the last one must be the text's length"
        )
    return ends


class TokenPieces(dict[int, str]):
    """Token id -> its text decoded alone; each id is decoded once."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        """Decode it."""
        self[token] = text = self._tokenizer.decode([token], skip_special_tokens=True)
        return text


def piece_ends(pieces: TokenPieces, token_ids: Sequence[int], text: str, ends: Sequence[int]) -> list[int] | None:
    """What `align_ends` finds, by adding up lengths: a tenth of its time.

    None where the tokens, decoded one by one, do not make up the text (a character spread over several tokens,
    spaces that a tokenizer adds or drops): only `align_ends` can say then.
    """
    texts = [pieces[token] for token in token_ids]
    joined = "".join(texts)
    if not joined.startswith(text) or "\ufffd" in joined:
        return None
    lengths = list(accumulate(map(len, texts)))
    return [bisect_left(lengths, end) for end in ends]


def align_ends(tokenizer: TokenizerLike, token_ids: Sequence[int], text: str, ends: Sequence[int]) -> list[int]:
    """For each end offset, the index of the token that holds the last character before it.

    That is the shortest run of tokens from the start whose decoding holds the text up to the offset. A
    character whose bytes are spread over several tokens counts from the token that completes it: until then
    decoding shows a replacement character, which is not the text's. Runs are decoded from the start, since
    what a token means may depend on those before it, and are found by bisection, since the text that a run
    shares with the whole never shrinks as the run grows.

    Args:
        tokenizer: Decodes token ids.
        token_ids: (T,) the response's tokens; may go on after the text (EOS, stop string).
        text: What they decode to, without special tokens and stop string.
        ends: Rising end offsets in characters, each above 0.

    Raises:
        ValueError: The tokens do not decode to the text.
    """
    shared: dict[int, int] = {}

    def covered(n_tokens: int) -> int:
        if n_tokens not in shared:
            decoded = tokenizer.decode(token_ids[:n_tokens], skip_special_tokens=True)
            shared[n_tokens] = _common_prefix(decoded, text)
        return shared[n_tokens]

    if ends and covered(len(token_ids)) < ends[-1]:
        raise ValueError(
            f"its {len(token_ids)} tokens decode to its text only up to character {covered(len(token_ids))} of "
            f"{ends[-1]}; was it decoded with another tokenizer?"
        )
    result: list[int] = []
    low = 1
    for end in ends:
        high = len(token_ids)
        while low < high:
            middle = (low + high) // 2
            if covered(middle) >= end:
                high = middle
            else:
                low = middle + 1
        result.append(low - 1)
    return result


def _common_prefix(a: str, b: str) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
