"""What every engine must do, whatever runs the model: checks that each engine's tests call.

The oracle is one uncached float32 forward pass of plain transformers over prompt and response.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from grpo_pipeline.engines.protocol import Engine, PromptTooLongError, Request, SamplingParams


@dataclass
class Subject:
    """An engine and the float32 model that it runs."""

    engine: Engine
    model: Any
    prompts: list[list[int]]
    tolerance: float


def argmax_loop(model, prompt, eos, limit):
    ids = list(prompt)
    for _ in range(limit):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in eos:
            break
    return ids[len(prompt) :]


def forward_logprobs(model, prompt, response, temperature=1.0):
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    table = torch.log_softmax(logits / temperature, dim=-1)
    return table.gather(-1, torch.tensor(list(response)).long()[:, None])[:, 0].numpy()


def check_greedy_equals_argmax_loop(subject: Subject) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=12)
    results = subject.engine.generate([Request(prompt, [1]) for prompt in subject.prompts], sampling)
    for prompt, [sample] in zip(subject.prompts, results, strict=True):
        expected = argmax_loop(subject.model, prompt, {subject.engine.tokenizer.eos_token_id}, 12)
        assert sample.token_ids.tolist() == expected
        np.testing.assert_allclose(
            sample.logprobs, forward_logprobs(subject.model, prompt, expected), atol=subject.tolerance
        )


def check_logprobs_equal_a_full_forward(subject: Subject, temperature: float = 0.7) -> None:
    sampling = SamplingParams(temperature=temperature, max_tokens=16)
    for request, samples in _run(subject, [3, 4], sampling):
        for sample in samples:
            assert sample.token_ids.dtype == np.int32
            assert sample.logprobs.dtype == np.float32
            assert len(sample.token_ids) == len(sample.logprobs)
            expected = forward_logprobs(subject.model, request.prompt_token_ids, sample.token_ids, temperature)
            np.testing.assert_allclose(sample.logprobs, expected, atol=subject.tolerance)


def check_seeds(subject: Subject) -> None:
    """Different seeds differ; the same seed repeats, alone, in another order and in other company."""
    sampling = SamplingParams(max_tokens=10)
    results = _run(subject, [11, 12, 13, 14], sampling)
    for _, samples in results:
        assert len({tuple(sample.token_ids) for sample in samples}) > 1
    again = _run(subject, [11, 12, 13, 14], sampling)
    assert _tokens(again) == _tokens(results)
    prompt = subject.prompts[1]
    reordered = subject.engine.generate(
        [Request(subject.prompts[0], [99]), Request(prompt, [14, 11]), Request(prompt, [12])], sampling
    )
    by_seed = dict(zip([11, 12, 13, 14], results[1][1], strict=True))
    for seed, sample in zip([14, 11, 12], [*reordered[1], *reordered[2]], strict=True):
        assert sample.token_ids.tolist() == by_seed[seed].token_ids.tolist()


def check_length_and_stop(subject: Subject) -> None:
    """`length` at max_tokens; a stop string ends the text before it and keeps the tokens."""
    prompt = subject.prompts[0]
    tokenizer = subject.engine.tokenizer
    free = subject.engine.generate([Request(prompt, [5])], SamplingParams(max_tokens=12))[0][0]
    if free.finish_reason == "length":
        assert len(free.token_ids) == 12
    text = tokenizer.decode(free.token_ids.tolist(), skip_special_tokens=True)
    assert free.text == text
    stop = next(text[at : at + 2] for at in range(3, len(text) - 1) if "\ufffd" not in text[at : at + 2])
    cut = subject.engine.generate([Request(prompt, [5])], SamplingParams(max_tokens=12, stop=(stop, "@@@@")))[0][0]
    assert cut.finish_reason == "stop"
    assert cut.text == text[: text.index(stop)]
    kept = cut.token_ids.tolist()
    assert kept == free.token_ids.tolist()[: len(kept)]
    assert stop in tokenizer.decode(kept, skip_special_tokens=True)
    assert stop not in tokenizer.decode(kept[:-1], skip_special_tokens=True)


def check_eos(subject: Subject, prompt: list[int], seeds: range = range(200, 240)) -> None:
    """EOS, likely after `prompt`, ends a response and is its last token; no token follows it, and the text has no trace of it."""
    eos = subject.engine.tokenizer.eos_token_id
    samples = subject.engine.generate([Request(prompt, list(seeds))], SamplingParams(max_tokens=6))[0]
    ended = [sample for sample in samples if eos in sample.token_ids]
    assert ended, "no sample came to EOS: the check needs another model or more seeds"
    for sample in ended:
        assert sample.finish_reason == "stop"
        assert sample.token_ids.tolist().index(eos) == len(sample.token_ids) - 1
        assert sample.text == subject.engine.tokenizer.decode(sample.token_ids[:-1].tolist(), skip_special_tokens=True)
    for sample in samples:
        if eos not in sample.token_ids:
            assert (sample.finish_reason, len(sample.token_ids)) == ("length", 6)


def check_context_limit(subject: Subject) -> None:
    """A prompt without room is reported before anything is sampled; one with little room ends by `length`."""
    limit = subject.engine.max_model_len
    calls: list[int] = []
    fits = [subject.prompts[0][0]] * (limit - 3)
    full = [subject.prompts[0][0]] * limit
    with pytest.raises(PromptTooLongError) as caught:
        subject.engine.generate(
            [Request(fits, [1]), Request(full, [1])], SamplingParams(max_tokens=4), lambda i, _: calls.append(i)
        )
    assert caught.value.lengths == {1: limit}
    assert caught.value.limit == limit
    assert not calls
    sample = subject.engine.generate([Request(fits, [1])], SamplingParams(max_tokens=50))[0][0]
    assert len(sample.token_ids) == 3 or sample.finish_reason == "stop"
    if sample.finish_reason == "length":
        assert len(sample.token_ids) == 3


def check_empty_calls(subject: Subject) -> None:
    """No requests give no results; a request without seeds gives an empty list and is reported."""
    assert subject.engine.generate([], SamplingParams()) == []
    reported: dict[int, int] = {}
    results = subject.engine.generate(
        [Request(subject.prompts[0], []), Request(subject.prompts[1], [1, 2])],
        SamplingParams(max_tokens=2),
        lambda index, samples: reported.__setitem__(index, len(samples)),
    )
    assert [len(samples) for samples in results] == [0, 2]
    assert reported == {0: 0, 1: 2}


CHECKS: list[Callable[[Subject], None]] = [
    check_greedy_equals_argmax_loop,
    check_logprobs_equal_a_full_forward,
    check_seeds,
    check_length_and_stop,
    check_context_limit,
    check_empty_calls,
]


def _run(subject, seeds, sampling):
    requests = [Request(prompt, seeds) for prompt in subject.prompts]
    return list(zip(requests, subject.engine.generate(requests, sampling), strict=True))


def _tokens(results):
    return [[sample.token_ids.tolist() for sample in samples] for _, samples in results]
