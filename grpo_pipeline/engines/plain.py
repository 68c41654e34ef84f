"""The plain decode loop: the reference that the fast decode is tested against.

One request at a time with its seeds as the batch: all rows have the same prompt, so nothing is padded or
masked, and the cache is transformers' own. Rows that have finished are computed on until all have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from grpo_pipeline.engines.forward import forward_logits
from grpo_pipeline.engines.outputs import Outputs
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.sampling import sample_tokens, uniforms
from grpo_pipeline.engines.stopping import StopRules


def decode_plain(
    model: Any,
    requests: Sequence[Request],
    sampling: SamplingParams,
    rules: StopRules,
    outputs: Outputs,
    *,
    max_model_len: int,
    max_batch: int,
) -> None:
    """Sample every request into `outputs`, with at most `max_batch` rows at once."""
    job = _Job(model, sampling, rules, outputs)
    for index, request in enumerate(requests):
        limit = min(sampling.max_tokens, max_model_len - len(request.prompt_token_ids))
        for first in range(0, len(request.seeds), max_batch):
            seeds = request.seeds[first : first + max_batch]
            _decode_rows(job, request.prompt_token_ids, seeds, limit, (index, first))


@dataclass(frozen=True)
class _Job:
    model: Any
    sampling: SamplingParams
    rules: StopRules
    outputs: Outputs


def _decode_rows(job: _Job, prompt: Sequence[int], seeds: Sequence[int], limit: int, address: tuple[int, int]) -> None:
    model, rules = job.model, job.rules
    request, first = address  # the request, and the number of the first row's seed in it
    seed = torch.tensor(seeds, dtype=torch.int64, device=model.device)
    input_ids = torch.tensor([list(prompt)] * len(seeds), dtype=torch.int64, device=model.device)
    cache = DynamicCache(config=model.config)
    token_ids: list[list[int]] = [[] for _ in seeds]
    logprobs: list[list[float]] = [[] for _ in seeds]
    unfinished = set(range(len(seeds)))
    for position in range(limit):
        logits = forward_logits(model, input_ids, cache)[:, -1]
        tokens, logprob = sample_tokens(logits, uniforms(seed, torch.full_like(seed, position)), job.sampling)
        new_tokens, new_logprobs = tokens.tolist(), logprob.tolist()
        for row in sorted(unfinished):
            token_ids[row].append(new_tokens[row])
            logprobs[row].append(new_logprobs[row])
            stopped = new_tokens[row] in rules.eos_ids or rules.hit_stop_string(token_ids[row])
            if stopped or position + 1 == limit:
                job.outputs.add(request, first + row, token_ids[row], logprobs[row], "stop" if stopped else "length")
                unfinished.remove(row)
        if not unfinished:
            return
        input_ids = tokens[:, None]
