"""Secrets come from the environment and stay there."""

import httpx
import pytest

from grpo_pipeline.config import ModelConfig, parse_config
from grpo_pipeline.config.generation import EngineConfig
from grpo_pipeline.engines.server import KEY_VARIABLE, ServerEngine, find_model
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages.models import base_policy, train_reward_model
from grpo_pipeline.stages.problems import make_problems
from grpo_pipeline.stages.rollouts import sample_rollouts
from tests.flows.conftest import MICRO

SECRET = "s3cr3t-0f-s0me-k1nd"
VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "PREFECT_API_KEY",
    "OPENAI_API_KEY",
    KEY_VARIABLE,
)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"root": f"s3://user:{SECRET}@bucket/runs"}, "root"),
        ({"root": f"s3://{SECRET}@bucket"}, "root"),
        ({"engine": {"kind": "server", "base_url": f"http://me:{SECRET}@host:8000/v1"}}, "engine.base_url"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(settings, key):
    with pytest.raises(UserError, match=rf"{key}: credentials in a URL end up in manifests") as caught:
        parse_config(settings, "run.toml")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["runs", "s3://bucket/a@b", "/data/me@home/runs", "http://127.0.0.1:8000/v1"])
def test_an_at_sign_elsewhere_is_no_password(url):
    assert parse_config({"root": url}, "x").root == url


def test_no_file_and_no_word_of_a_run_holds_a_secret(tmp_path, monkeypatch, capfd, caplog):
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    config = parse_config(MICRO | {"root": str(tmp_path), "sampling": {"max_tokens": 16}}, "x")
    problems = make_problems(config)
    sample_rollouts(config, "greedy", 0, problems, base_policy(config))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name == "manifest.json"]) == 2
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err + caplog.text
    assert train_reward_model.__module__ == "grpo_pipeline.stages.models"


def test_a_servers_key_comes_from_the_environment_and_is_in_no_message(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    seen = []

    def answer(request):
        seen.append(request.headers.get("authorization"))
        return httpx.Response(401, json={"error": "no"})

    real = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **kw: real(transport=httpx.MockTransport(answer), **kw))
    folder = base_policy(parse_config({}, "x")).folder
    engine = EngineConfig(kind="server", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match=f"one that asks for a key gets it from {KEY_VARIABLE}") as caught:
        ServerEngine.connect(folder, ModelConfig(), engine, "id")
    assert seen == [f"Bearer {SECRET}"]
    assert SECRET not in str(caught.value)
    monkeypatch.delenv(KEY_VARIABLE)
    with httpx.Client(headers={}) as client, pytest.raises(UserError):
        find_model(client, "http://127.0.0.1:9/v1", set())
    assert seen[-1] is None
