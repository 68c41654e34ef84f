"""Prefixes: the prompt and the solution so far, as token ids, and their hash.

A completer continues from token ids, never from re-tokenised text. Two solutions with the same prefix
tokens have the same hash and share its completions.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from grpo_pipeline.engines.protocol import Sample, TokenizerLike

_BROKEN = "\ufffd"


def prefix_hash(prompt_token_ids: Sequence[int], response_token_ids: Sequence[int]) -> str:
    """128-bit hash (32 hexadecimal digits) of the prompt's and the response prefix's token ids.

    The hash is of one sequence: where the prompt ends in it makes no difference to a completer.
    """
    tokens = np.concatenate([np.asarray(prompt_token_ids, "<i4"), np.asarray(response_token_ids, "<i4")])
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).hexdigest()


def prefix_text(tokenizer: TokenizerLike, response_token_ids: Sequence[int]) -> str:
    """The solution's text so far, without a character that the prefix's last token only begins."""
    return tokenizer.decode(response_token_ids, skip_special_tokens=True).rstrip(_BROKEN)


def continuation_text(tokenizer: TokenizerLike, so_far: str, response_token_ids: Sequence[int], sample: Sample) -> str:
    """What a sample adds to the solution's text so far.

    Prefix and sample are decoded together: decoding the sample alone would lose a leading space with
    SentencePiece tokenizers, and a character whose bytes stand on both sides of the boundary.

    Args:
        tokenizer: The completer's tokenizer.
        so_far: `prefix_text` of the prefix.
        response_token_ids: Response tokens of the prefix.
        sample: What was sampled after it.
    """
    joined = tokenizer.decode([*response_token_ids, *sample.token_ids.tolist()], skip_special_tokens=True)
    # A stop string is in the tokens but not in the sample's text: the same number of characters is cut.
    alone = tokenizer.decode(sample.token_ids.tolist(), skip_special_tokens=True)
    surplus = len(alone) - len(sample.text)
    return joined[len(so_far) : len(joined) - max(surplus, 0)]


def ends_at_once(so_far: str, continuation: str, stop: Sequence[str]) -> bool:
    """Whether a stop string that began in the solution so far is completed by the continuation.

    Engines look for stop strings in what they sample. Sampled in one piece, the solution would have ended here
    already: at an empty line, say, of which the prefix holds the first line break.

    Args:
        so_far: `prefix_text` of the prefix.
        continuation: What a sample adds to it.
        stop: Strings that end a solution.
    """
    # One character less on each side: a stop string that lies on one side alone is the engine's business.
    return any(text in so_far[max(0, len(so_far) - len(text) + 1) :] + continuation[: len(text) - 1] for text in stop)
