"""When a response ends, and what its text is: the same rules for every engine.

EOS ends a response and is kept in its token ids; a stop string ends it too, and the text ends before it
while the token ids keep what was sampled. Text always comes from decoding all tokens together, so that
characters spread over several tokens come out whole.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from grpo_pipeline.engines.protocol import TokenizerLike

_UNDECODED = "\ufffd"


class StopRules:
    """EOS ids and stop strings of one call.

    Args:
        tokenizer: The model's tokenizer.
        eos_ids: Token ids that end a response.
        stop: Strings that end a response; empty ones are refused.
    """

    def __init__(self, tokenizer: TokenizerLike, eos_ids: frozenset[int], stop: Sequence[str]) -> None:
        if any(not text for text in stop):
            raise ValueError("sampling.stop has an empty string in it; it would end every response at once")
        self.eos_ids = eos_ids
        self.stop = tuple(stop)
        self._tokenizer = tokenizer

    def text(self, token_ids: npt.NDArray[np.int32]) -> str:
        """Text of a finished response: without EOS and special tokens, cut before the first stop string."""
        ids = token_ids[:-1] if len(token_ids) and int(token_ids[-1]) in self.eos_ids else token_ids
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        found = [at for at in map(text.find, self.stop) if at >= 0]
        return text[: min(found)] if found else text

    def hit_stop_string(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of these response tokens holds a stop string."""
        if not self.stop:
            return False
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return any(stop in text for stop in self.stop)

    def may_complete(self) -> list[bool]:
        """For each token id: whether a stop string's last character may come with this token.

        Only then must a response be decoded at all. Tokens that decode to an incomplete character may hold
        the last byte of any character; a space may come from a token's neighbour, so it is never ruled out.
        """
        ids = list(range(len(self._tokenizer)))
        lasts = {stop[-1] for stop in self.stop}
        if any(last.isspace() and last != "\n" for last in lasts):
            return [True] * len(ids)
        lasts.add(_UNDECODED)
        pieces = self._tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
        return [not lasts.isdisjoint(piece) for piece in pieces]
