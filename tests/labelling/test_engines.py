"""label_steps with the transformers and the server engine, on the embedded model."""

import pytest

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.server import ServerEngine
from tests.engines.fake_server import FakeServer
from tests.labelling.contract import (
    TINY,
    check_greedy_labels_are_the_same,
    check_labels_agree_with_the_oracle,
    check_stop_string_across_the_boundary,
    solved_world,
)


@pytest.fixture(scope="module")
def engine():
    with open_engine(TINY, ModelConfig(device="cpu"), EngineConfig(), model_id="tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def world(engine):
    return solved_world(engine)


@pytest.fixture(scope="module")
def server(engine):
    with FakeServer(engine, "tiny") as fake:
        config = EngineConfig(kind="server", base_url=fake.url, concurrency=4)
        with ServerEngine.connect(TINY, ModelConfig(device="cpu"), config, "tiny") as connected:
            yield connected


def test_labels_agree_with_the_oracle(engine, world):
    check_labels_agree_with_the_oracle(engine, world)


def test_labels_through_a_server_are_the_engines_own(server, engine, world):
    check_greedy_labels_are_the_same(server, engine, world)


@pytest.mark.parametrize("kind", ["engine", "server"])
def test_a_stop_string_across_the_prefixs_end(kind, world, request):
    check_stop_string_across_the_boundary(request.getfixturevalue(kind), world)
