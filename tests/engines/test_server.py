"""The server engine against a small server over the transformers engine: contract, retries, refusals."""

import threading
import time

import pytest

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.server import Retry, ServerEngine
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.errors import UserError
from tests.engines.contract import CHECKS, Subject, check_eos
from tests.engines.fake_server import FakeServer
from tests.engines.tiny_models import make_tokenizer

QUICK = Retry(attempts=4, first_wait_s=0.01, longest_wait_s=0.05)


@pytest.fixture
def backend(llama, tokenizer):
    return TransformersEngine(llama, tokenizer, "m", EngineConfig())


def connect(server, folder, concurrency=8, model_id="m", **options):
    config = EngineConfig(kind="server", base_url=server.url, concurrency=concurrency, **options)
    return ServerEngine.connect(folder, ModelConfig(path=str(folder)), config, model_id, QUICK)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, backend, llama, llama_folder, prompts):
    with FakeServer(backend, "m") as server, connect(server, llama_folder) as engine:
        check(Subject(engine, llama, prompts, tolerance=1e-3))


def test_eos(backend, llama, llama_folder, prompts, eos_prompt):
    with FakeServer(backend, "m") as server, connect(server, llama_folder) as engine:
        check_eos(Subject(engine, llama, prompts, tolerance=1e-3), eos_prompt)


def test_requests_say_everything_that_a_server_could_choose_otherwise(backend, llama_folder, prompts):
    with FakeServer(backend, str(llama_folder)) as server, connect(server, llama_folder) as engine:
        engine.generate([Request(prompts[0], [7])], SamplingParams(0.5, 1.0, 3, ("\n",)))
    [body] = server.bodies
    assert body["prompt"] == prompts[0]
    assert (body["seed"], body["n"], body["temperature"], body["max_tokens"], body["stop"]) == (7, 1, 0.5, 3, ["\n"])
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    assert body["return_token_ids"] is True
    assert body["stop_token_ids"] == [engine.tokenizer.eos_token_id]


def test_at_most_concurrency_requests_are_under_way(backend, llama_folder, prompts):
    with FakeServer(backend, "m") as server, connect(server, llama_folder, concurrency=3) as engine:
        engine.generate([Request(prompts[0], list(range(20)))], SamplingParams(max_tokens=2))
    assert len(server.bodies) == 20
    assert 2 <= server.most_active <= 3


def test_failures_that_pass_are_retried_and_nothing_is_lost(backend, llama_folder, prompts):
    failures = [(503, ()), (429, (("retry-after", "0"),)), (0, ()), (500, ())]
    requests, sampling = [Request(prompts[0], [1, 2]), Request(prompts[1], [3])], SamplingParams(max_tokens=4)
    with FakeServer(backend, "m", failures) as server, connect(server, llama_folder, concurrency=2) as engine:
        got = engine.generate(requests, sampling)
    expected = backend.generate(requests, sampling)
    assert [[s.token_ids.tolist() for s in r] for r in got] == [[s.token_ids.tolist() for s in r] for r in expected]
    assert len(server.bodies) == 3 + 4


def test_a_server_that_keeps_failing_is_reported(backend, llama_folder, prompts):
    done = []
    with FakeServer(backend, "m") as server, connect(server, llama_folder, concurrency=1) as engine:
        engine.generate([Request(prompts[0], [1])], SamplingParams(max_tokens=2))
        server.failures = [None, *[(503, ())] * 10]
        with pytest.raises(UserError, match=r"failed 4 times, last with: 503"):
            engine.generate(
                [Request(prompts[0], [1]), Request(prompts[0], [2])],
                SamplingParams(max_tokens=2),
                lambda index, _: done.append(index),
            )
    assert done == [0]


def test_a_refusal_is_not_retried(backend, llama_folder, prompts):
    with FakeServer(backend, "m", [(400, ())]) as server, connect(server, llama_folder) as engine:
        with pytest.raises(UserError, match="refused a request: 400"):
            engine.generate([Request(prompts[0], [1])], SamplingParams(max_tokens=2))
        assert len(server.bodies) == 1


def test_waits_double_up_to_the_limit_and_follow_retry_after():
    retry = Retry(first_wait_s=1.0, longest_wait_s=8.0)
    for attempt, base in enumerate([1, 2, 4, 8, 8]):
        assert base <= retry.wait_s(attempt, None) <= 1.5 * base
    assert retry.wait_s(0, "3") == 3.0
    assert retry.wait_s(0, "300") == 8.0


def test_another_model_or_tokenizer_is_named(backend, llama_folder):
    with FakeServer(backend, "other-model") as server, pytest.raises(UserError, match=r"serves other-model, but.*m"):
        connect(server, llama_folder)
    with FakeServer(backend, "m") as server:
        server.tokenizer = make_tokenizer(400)
        with pytest.raises(UserError, match="another tokenizer"):
            connect(server, llama_folder)


def test_no_server_is_a_users_mistake(llama_folder):
    config = EngineConfig(kind="server", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match="serve-completer"):
        ServerEngine.connect(llama_folder, ModelConfig(), config, "m")


def test_top_p_is_refused(backend, llama_folder, prompts):
    with FakeServer(backend, "m") as server, connect(server, llama_folder) as engine:
        with pytest.raises(UserError, match="top_p"):
            engine.generate([Request(prompts[0], [1])], SamplingParams(top_p=0.9))
        assert not server.bodies


def test_several_threads_may_generate_at_once(backend, llama_folder, prompts):
    results = {}
    with FakeServer(backend, "m") as server, connect(server, llama_folder) as engine:

        def work(seed):
            results[seed] = engine.generate([Request(prompts[0], [seed])], SamplingParams(max_tokens=3))[0][0]

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    alone = backend.generate([Request(prompts[0], list(range(4)))], SamplingParams(max_tokens=3))[0]
    assert [results[seed].token_ids.tolist() for seed in range(4)] == [sample.token_ids.tolist() for sample in alone]


def test_an_error_in_on_result_comes_out_and_stops_the_work(backend, llama_folder, prompts):
    def fail(_index, _samples):
        raise KeyError("disk full")

    with FakeServer(backend, "m") as server, connect(server, llama_folder, concurrency=1) as engine:
        with pytest.raises(KeyError, match="disk full"):
            engine.generate([Request(prompts[0], [seed]) for seed in range(200)], SamplingParams(max_tokens=2), fail)
        time.sleep(0.2)
        assert len(server.bodies) < 200
