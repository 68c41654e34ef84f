"""The transformers engine: the contract on both decode loops, their equality, and what surrounds them."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines import decode as decode_module
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.steps import LlamaStep, TransformersStep, agrees, cache_shape, choose_step
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.errors import UserError
from tests.engines.contract import CHECKS, Subject, check_eos
from tests.engines.tiny_models import TEXTS, full_logits, make_model

MODELS = {
    "llama-1": ("llama", 1, LlamaStep),
    "llama-3": ("llama", 3, LlamaStep),
    "qwen2": ("qwen2", 3, LlamaStep),
    "gpt2": ("gpt2", 3, TransformersStep),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    kind, kv_heads, _ = MODELS[request.param]
    return make_model(kind, kv_heads=kv_heads)


def engine_for(model, tokenizer, decode, max_batch=256, **options):
    return TransformersEngine(model, tokenizer, "m", EngineConfig(decode=decode, max_batch=max_batch, **options))


@pytest.mark.parametrize("decode", ["plain", "fast"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, decode, llama, tokenizer, prompts):
    check(Subject(engine_for(llama, tokenizer, decode), llama, prompts, tolerance=1e-5))


@pytest.mark.parametrize("decode", ["plain", "fast"])
def test_eos(decode, llama, tokenizer, prompts, eos_prompt):
    check_eos(Subject(engine_for(llama, tokenizer, decode), llama, prompts, 1e-5), eos_prompt)


def samples_of(results):
    return [[(s.token_ids.tolist(), s.text, s.finish_reason) for s in samples] for samples in results]


@pytest.mark.parametrize("sampling", [SamplingParams(max_tokens=8), SamplingParams(0.8, 0.9, 16, ("1", "\n", "né"))])
def test_fast_equals_plain(model, tokenizer, prompts, sampling):
    nested = [prompts[0][:n] for n in (1, 2, 20)]  # beginnings of one another, and one single token
    requests = [Request(p, [31 * i + j for j in range(3)]) for i, p in enumerate([*prompts, *nested, prompts[0]])]
    plain = engine_for(model, tokenizer, "plain").generate(requests, sampling)
    for max_batch in (5, 64):
        fast = engine_for(model, tokenizer, "fast", max_batch).generate(requests, sampling)
        assert samples_of(fast) == samples_of(plain)
        for some, others in zip(fast, plain, strict=True):
            for one, other in zip(some, others, strict=True):
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(0, 3)), max_size=8),
    st.lists(st.integers(1, 300), max_size=25),
    st.integers(1, 7),
)
def test_fast_equals_plain_for_any_prompts(llama, tokenizer, tails, header, max_batch):
    requests = [Request([*header, *tail], list(range(i, i + n))) for i, (tail, n) in enumerate(tails)]
    sampling = SamplingParams(max_tokens=6)
    plain = engine_for(llama, tokenizer, "plain").generate(requests, sampling)
    assert samples_of(engine_for(llama, tokenizer, "fast", max_batch).generate(requests, sampling)) == samples_of(plain)


@pytest.mark.parametrize("name", MODELS)
def test_each_step_agrees_with_the_model_and_is_the_one_chosen(name):
    kind, kv_heads, expected = MODELS[name]
    model = make_model(kind, kv_heads=kv_heads)
    with torch.inference_mode():
        shape = cache_shape(model)
        assert agrees(model, TransformersStep(model), shape, 1e-5)
        assert type(choose_step(model, shape)) is expected


def test_the_fused_step_follows_weights_updated_in_place(tokenizer, prompts):
    model = make_model("llama", seed=5)
    engine = engine_for(model, tokenizer, "fast")
    request, sampling = [Request(prompts[0], [1])], SamplingParams(temperature=0.0, max_tokens=8)
    before = engine.generate(request, sampling)[0][0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    engine.set_version("m@1")
    after = engine.generate(request, sampling)[0][0]
    assert engine.model_id == "m@1"
    assert after.token_ids.tolist() != before.token_ids.tolist()
    expected = full_logits(model, prompts[0], after.token_ids[:-1].tolist()).argmax(-1)
    assert after.token_ids.tolist() == expected.tolist()


def test_a_step_that_disagrees_is_not_taken(tokenizer, prompts, caplog, monkeypatch):
    model = make_model("llama")
    monkeypatch.setattr("grpo_pipeline.engines.steps.agrees", lambda *_: False)
    engine = engine_for(model, tokenizer, "fast")
    with caplog.at_level(logging.WARNING):
        fallen_back = engine.generate([Request(prompts[0], [1, 2])], SamplingParams(max_tokens=5))
    assert "plain loop" in caplog.text
    plain = engine_for(model, tokenizer, "plain").generate([Request(prompts[0], [1, 2])], SamplingParams(max_tokens=5))
    assert samples_of(fallen_back) == samples_of(plain)


def test_sliding_window_models_take_the_plain_loop(tokenizer, prompts):
    model = make_model("mistral-sliding")
    with torch.inference_mode():
        assert cache_shape(model) is None
    sample = engine_for(model, tokenizer, "fast").generate([Request(prompts[0], [1])], SamplingParams(max_tokens=20))
    assert len(sample[0][0].token_ids) == 20


def test_frequencies_match_the_models_probabilities(llama, tokenizer, prompts):
    prompt, count = prompts[1], 2000
    engine = engine_for(llama, tokenizer, "fast")
    samples = engine.generate([Request(prompt, list(range(count)))], SamplingParams(max_tokens=1))[0]
    probs = torch.softmax(full_logits(llama, prompt, [])[0], -1).numpy()
    seen = np.bincount([int(s.token_ids[0]) for s in samples], minlength=len(probs))
    likely = probs * count >= 5
    observed = [*seen[likely], seen[~likely].sum()]
    expected = [*(probs[likely] * count), probs[~likely].sum() * count]
    assert likely.sum() > 5
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_out_of_memory_halves_the_batch_and_loses_nothing(llama, tokenizer, prompts):
    requests = [Request(prompt, [1, 2, 3]) for prompt in prompts]
    sampling = SamplingParams(max_tokens=9)
    engine = engine_for(llama, tokenizer, "fast")
    expected = engine.generate(requests, sampling)
    widths = []

    class Scarce:
        """A step with memory for three sequences, and none at all the tenth time."""

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __call__(self, tokens, *args, **kwargs):
            widths.append(len(tokens))
            if len(tokens) > 3 or len(widths) == 10:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return self.inner(tokens, *args, **kwargs)

    engine._step = Scarce(engine._step)
    reported = []
    got = engine.generate(requests, sampling, lambda index, _: reported.append(index))
    assert samples_of(got) == samples_of(expected)
    assert widths[:3] == [12, 6, 3]
    assert sorted(reported) == [0, 1, 2, 3]


def test_out_of_memory_with_one_sequence_says_what_to_do(llama, tokenizer, prompts, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(decode_module, "SlotCache", fail)
    with pytest.raises(UserError, match=r"single sequence.*max_tokens"):
        engine_for(llama, tokenizer, "fast").generate([Request(prompts[0], [1, 2])], SamplingParams())


def test_other_runtime_errors_are_not_taken_for_lack_of_memory(llama, tokenizer, prompts, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(decode_module, "SlotCache", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        engine_for(llama, tokenizer, "fast").generate([Request(prompts[0], [1, 2])], SamplingParams())


@pytest.mark.parametrize("decode", ["plain", "fast"])
def test_dropout_is_off_and_training_flags_come_back(decode, tokenizer, prompts):
    model = make_model("gpt2", dropout=0.5)
    quiet = engine_for(model.eval(), tokenizer, decode).generate([Request(prompts[0], [1])], SamplingParams())
    model.train()
    model.transformer.h[0].eval()
    flags = [module.training for module in model.modules()]
    loud = engine_for(model, tokenizer, decode).generate([Request(prompts[0], [1])], SamplingParams())
    assert samples_of(loud) == samples_of(quiet)
    assert [module.training for module in model.modules()] == flags


@pytest.mark.parametrize("decode", ["plain", "fast"])
def test_every_eos_of_the_generation_config_ends(decode, tokenizer, prompts):
    model = make_model("llama")
    free = engine_for(model, tokenizer, decode).generate([Request(prompts[0], [5])], SamplingParams(max_tokens=12))
    third = int(free[0][0].token_ids[2])
    assert third not in free[0][0].token_ids[:2]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, third]
    ended = engine_for(model, tokenizer, decode).generate([Request(prompts[0], [5])], SamplingParams(max_tokens=12))
    assert ended[0][0].token_ids.tolist() == free[0][0].token_ids[:3].tolist()
    assert ended[0][0].finish_reason == "stop"
    assert ended[0][0].text == tokenizer.decode(free[0][0].token_ids[:2].tolist())


def test_eos_inside_the_prompt_is_an_ordinary_token(llama, tokenizer, prompts):
    """The tokenizer pads with EOS; a mask by id would hide it."""
    prompt = [*prompts[1], tokenizer.eos_token_id, *prompts[2]]
    sample = engine_for(llama, tokenizer, "fast").generate(
        [Request(prompt, [1]), Request(prompts[0], [1])], SamplingParams(temperature=0.0, max_tokens=5)
    )[0][0]
    expected = full_logits(llama, prompt, sample.token_ids[:-1].tolist()).argmax(-1)
    assert sample.token_ids.tolist() == expected.tolist()


def test_max_model_len_may_be_lowered_only(llama, tokenizer):
    assert engine_for(llama, tokenizer, "fast").max_model_len == 256
    assert engine_for(llama, tokenizer, "fast", max_model_len=100).max_model_len == 100
    assert engine_for(llama, tokenizer, "fast", max_model_len=1000).max_model_len == 256


def test_empty_prompts_and_empty_stop_strings_are_refused(llama, tokenizer, prompts):
    engine = engine_for(llama, tokenizer, "fast")
    with pytest.raises(ValueError, match="request 1 has an empty prompt"):
        engine.generate([Request(prompts[0], [1]), Request([], [1])], SamplingParams())
    with pytest.raises(ValueError, match="empty string"):
        engine.generate([Request(prompts[0], [1])], SamplingParams(stop=("",)))


def test_open_engine_loads_a_folder_and_closes_it(llama_folder, llama, prompts):
    with open_engine(llama_folder, ModelConfig(device="cpu"), EngineConfig(), "id") as engine:
        assert engine.model_id == "id"
        sample = engine.generate([Request(prompts[0], [3])], SamplingParams(max_tokens=5))[0][0]
    assert TEXTS[0] == engine.tokenizer.decode(prompts[0])
    live = engine_for(llama, engine.tokenizer, "fast").generate([Request(prompts[0], [3])], SamplingParams(max_tokens=5))
    assert sample.token_ids.tolist() == live[0][0].token_ids.tolist()


@pytest.mark.parametrize(("absent", "message"), [("tokenizer.json", "tokenizer"), ("model.safetensors", "weights")])
def test_an_incomplete_folder_is_a_users_mistake(absent, message, llama_folder, tmp_path):
    for file in llama_folder.iterdir():
        if file.name != absent:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match=message):
        open_engine(tmp_path, ModelConfig(device="cpu"), EngineConfig(), "id")
