"""One temporary Prefect server for all flow tests, and a configuration that touches every stage in seconds."""

import pytest
from prefect.client.orchestration import get_client

from grpo_pipeline.config import RunConfig, parse_config

MICRO = {
    "name": "micro",
    "rounds": 2,
    "child_processes": False,  # in process, so that coverage sees the stages
    "problems": {"source": "synthetic", "count": 24, "eval_count": 8},
    "sampling": {"max_tokens": 96},
    "labelling": {"problems": 6, "rollouts": 2, "completions": 2},
    "reward_model": {"epochs": 1, "batch_size": 8, "optimizer": {"lr": 1e-3}},
    "policy": {
        "steps": 2,
        "problems_per_step": 4,
        "rollouts_per_problem": 4,
        "optimizer": {"lr": 1e-4},
        "grpo": {"supervision": "process"},
    },
    "evaluation": {"samples": 4},
    "store": {"problems_per_shard": 4},
}


@pytest.fixture(scope="session")
def prefect_server():
    from prefect.testing.utilities import prefect_test_harness

    import tasks  # noqa: F401 - sets Prefect's defaults first

    with prefect_test_harness(server_startup_timeout=300):
        yield


@pytest.fixture(scope="session")
def micro(tmp_path_factory) -> RunConfig:
    root = tmp_path_factory.mktemp("runs")
    return parse_config(MICRO | {"root": str(root)}, "the micro configuration")


@pytest.fixture(scope="session")
def first_run(prefect_server, micro):
    """The micro run, once for all tests: its rounds, and what Prefect's UI shows of them, by key, oldest first."""
    from flows.iterate_rl import iterate_rl

    rounds = iterate_rl(micro)
    # Looked up now: what other tests run later leaves artifacts under the same keys.
    with get_client(sync_client=True) as client:
        answer = client.request("POST", "/artifacts/filter", json={"limit": 200, "sort": "CREATED_DESC"})
    shown = {}
    for one in reversed(answer.json()):
        shown.setdefault(one["key"], []).append(one)
    return rounds, shown


@pytest.fixture(scope="session")
def finished(first_run):
    """The micro run's rounds."""
    return first_run[0]


@pytest.fixture(scope="session")
def published(first_run):
    """Key -> the micro run's artifacts in Prefect's UI."""
    return first_run[1]
