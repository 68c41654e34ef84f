"""vLLM in process: the engines' contract, new weights, the prefix cache, and processes that die with us."""


import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

from grpo_pipeline.config import EngineConfig, ModelConfig  # noqa: E402
from grpo_pipeline.engines.opening import open_engine  # noqa: E402
from grpo_pipeline.engines.protocol import Request, SamplingParams  # noqa: E402
from grpo_pipeline.errors import UserError  # noqa: E402
from tests.engines.contract import CHECKS, Subject, argmax_loop, check_eos  # noqa: E402
from tests.engines.tiny_models import make_model, save  # noqa: E402


@pytest.fixture(scope="module")
def subject(tmp_path_factory, prompts):
    folder = save(tmp_path_factory.mktemp("vllm"), kind="llama")
    config = EngineConfig(kind="vllm", max_batch=32)
    with open_engine(folder, ModelConfig(device="cpu"), config, "m") as engine:
        yield Subject(engine, make_model("llama"), prompts, tolerance=1e-3)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, subject):
    check(subject)


def test_eos(subject, eos_prompt):
    check_eos(subject, eos_prompt)


def test_top_p_is_refused(subject):
    with pytest.raises(UserError, match="top_p"):
        subject.engine.generate([Request(subject.prompts[0], [1])], SamplingParams(top_p=0.9))


def test_most_of_the_shared_prompt_comes_from_the_prefix_cache(subject):
    prompt = (subject.prompts[0] * 4)[:100]
    before = subject.engine.prefix_cache_counts()
    subject.engine.generate([Request(prompt, list(range(16)))], SamplingParams(max_tokens=2))
    queries, hits = (now - then for now, then in zip(subject.engine.prefix_cache_counts(), before, strict=True))
    ideal = 15 * (len(prompt) - 1) // 32 * 32 / queries  # whole blocks of all samples but the first
    assert queries >= 16 * (len(prompt) - 1)
    assert hits / queries >= 0.8 * 15 * 96 / (16 * 100), ideal


def test_new_weights_are_used_at_once(subject):
    newer = make_model("llama", seed=7)
    prompt, sampling = subject.prompts[0], SamplingParams(temperature=0.0, max_tokens=8)
    eos = {subject.engine.tokenizer.eos_token_id}
    old = subject.engine.generate([Request(prompt, [1])], sampling)[0][0].token_ids.tolist()
    subject.engine.update_weights(newer, "m@1")
    new = subject.engine.generate([Request(prompt, [1])], sampling)[0][0].token_ids.tolist()
    assert subject.engine.model_id == "m@1"
    assert old == argmax_loop(subject.model, prompt, eos, 8)
    assert new == argmax_loop(newer, prompt, eos, 8) != old
    subject.engine.update_weights(subject.model, "m")
    assert subject.engine.generate([Request(prompt, [1])], sampling)[0][0].token_ids.tolist() == old
