"""Where finished samples go: each request's list, and the caller's callback once the list is full."""

from collections.abc import Sequence

import numpy as np

from grpo_pipeline.engines.protocol import FinishReason, OnResult, PromptTooLongError, Request, Sample
from grpo_pipeline.engines.stopping import StopRules


class Outputs:
    """Samples of one `generate` call, by request and seed.

    Args:
        requests: The call's requests; one without seeds is complete at once.
        rules: Make the text of a finished response.
        on_result: Called with (request index, samples) when the last sample of a request is in.
    """

    def __init__(self, requests: Sequence[Request], rules: StopRules, on_result: OnResult | None) -> None:
        self._rules = rules
        self._on_result = on_result
        self._slots: list[list[Sample | None]] = [[None] * len(request.seeds) for request in requests]
        self._missing = [len(request.seeds) for request in requests]
        for index, missing in enumerate(self._missing):
            if not missing:
                self._report(index)

    def add(
        self, request: int, sample: int, token_ids: Sequence[int], logprobs: Sequence[float], reason: FinishReason
    ) -> None:
        """Take a finished response of `request`, for its seed number `sample`.

        Raises:
            FloatingPointError: For log-probabilities that are not finite: the model's logits are broken.
        """
        ids = np.asarray(token_ids, dtype=np.int32)
        values = np.asarray(logprobs, dtype=np.float32)
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"request {request}, sample {sample}: the log-probability of response token "
                f"{int(np.flatnonzero(~np.isfinite(values))[0])} is not finite; the model's weights or logits hold "
                "NaN or infinity (has training diverged?)"
            )
        self._slots[request][sample] = Sample(
            token_ids=ids,
            logprobs=values,
            text=self._rules.text(ids),
            finish_reason=reason,
        )
        self._missing[request] -= 1
        if not self._missing[request]:
            self._report(request)

    def results(self) -> list[list[Sample]]:
        """All samples; every one has come by now."""
        return [self._samples(index) for index in range(len(self._slots))]

    def _report(self, request: int) -> None:
        if self._on_result is not None:
            self._on_result(request, self._samples(request))

    def _samples(self, request: int) -> list[Sample]:
        samples = [sample for sample in self._slots[request] if sample is not None]
        if len(samples) != len(self._slots[request]):
            raise RuntimeError(f"request {request}: {len(self._slots[request]) - len(samples)} samples are missing")
        return samples


def check_prompts(requests: Sequence[Request], max_model_len: int) -> None:
    """Refuse prompts that are empty or leave no room for one response token, before anything is sampled.

    Raises:
        PromptTooLongError: Naming each request that does not fit.
        ValueError: For an empty prompt: a causal model has no distribution for a first token.
    """
    lengths = [len(request.prompt_token_ids) for request in requests]
    too_long = {index: length for index, length in enumerate(lengths) if length >= max_model_len}
    if too_long:
        raise PromptTooLongError(too_long, max_model_len)
    for index, length in enumerate(lengths):
        if not length:
            raise ValueError(f"request {index} has an empty prompt; give it at least one token (e.g. BOS)")
