"""A flow command whose Prefect server does not answer: one message of what to do, before the flow starts."""

import httpx
import pytest
from prefect import flow
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)
from typer.testing import CliRunner

import flows.evaluate
from flows import cli
from flows.command import main
from grpo_pipeline.errors import UserError

NOWHERE = "http://127.0.0.1:9/api"  # the discard port: nothing listens there


@pytest.fixture
def started(monkeypatch):
    """Flows that were started, of a flow that would end at once."""
    calls = []
    monkeypatch.setattr(flows.evaluate, "evaluate", calls.append)
    return calls


def test_a_server_that_does_not_answer_is_one_message(started):
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        result = CliRunner().invoke(cli.app, ["evaluate"])
    assert isinstance(result.exception, UserError)
    message = str(result.exception)
    assert message.startswith(f"the Prefect server at {NOWHERE}/ does not answer (")
    assert "PREFECT_API_URL" in message
    assert "`grpo-pipeline run evaluate ...`" in message
    assert "\n" not in message
    assert started == []


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Timed out while attempting to connect to ephemeral Prefect API server.\nmore"),
        httpx.ReadTimeout("Timed out"),
    ],
)
def test_a_temporary_server_that_is_late_is_one_message(monkeypatch, capsys, error):
    def late(self, timeout=None):
        raise error

    @flow(name="evaluate")
    def never(config):
        """Never started."""
        raise AssertionError("started without a server")

    monkeypatch.setattr(SubprocessASGIServer, "start", late)
    limit = {PREFECT_SERVER_EPHEMERAL_ENABLED: True, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 7}
    with temporary_settings(limit, restore_defaults={PREFECT_API_URL}), pytest.raises(SystemExit) as ended:
        main(never, [])
    assert ended.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "starting Prefect's temporary server ..."
    assert second.startswith("error: Prefect's temporary server did not start (Timed out")
    assert "the limit is 7 s" in second
    assert "`grpo-pipeline run evaluate ...`" in second
    assert "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS" in second


def test_no_server_and_none_allowed_is_one_message(started):
    off = {PREFECT_SERVER_EPHEMERAL_ENABLED: False}
    with temporary_settings(off, restore_defaults={PREFECT_API_URL}):
        result = CliRunner().invoke(cli.app, ["evaluate"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("no Prefect server is configured")
    assert started == []


def test_a_server_that_answers_lets_the_flow_start(prefect_server, started):
    result = CliRunner().invoke(cli.app, ["evaluate"], catch_exceptions=False)
    assert len(started) == 1
    assert "temporary" not in result.output
