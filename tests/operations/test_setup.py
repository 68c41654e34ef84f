"""`setup-prefect` against a real server: what it makes, and that it makes it once."""

import json

import pytest

from flows.setup import ENVIRONMENT, VARIABLES, crash_automation
from tasks.stage import DEVICE_TAG

pytestmark = pytest.mark.slow


def state_of(server):
    """All that setup-prefect may touch, with the times of its last change."""
    return json.dumps(
        [
            server.api("/work_pools/filter", {}),
            server.api("/v2/concurrency_limits/filter", {}),
            server.api("/variables/filter", {}),
            server.api("/automations/filter", {}),
        ],
        sort_keys=True,
    )


def test_all_is_there_and_a_second_time_changes_nothing(server):
    pool = server.api("/work_pools/grpo-pipeline")
    assert pool["type"] == "process"
    assert pool["base_job_template"]["variables"]["properties"]["env"]["default"] == ENVIRONMENT
    limits = {one["name"]: one["limit"] for one in server.api("/v2/concurrency_limits/filter", {})}
    assert limits[f"tag:{DEVICE_TAG}"] == 1
    values = {one["name"]: one["value"] for one in server.api("/variables/filter", {})}
    assert VARIABLES.items() <= values.items()
    (automation,) = server.api("/automations/filter", {})
    assert automation["trigger"]["within"] == crash_automation().trigger.within.total_seconds() == 300
    before = state_of(server)
    shown = server.pipeline("setup-prefect")
    assert "made" not in shown
    assert shown.count("there") == 5
    assert "in memory" not in shown  # [tool.prefect] in pyproject.toml keeps leases on disk
    assert state_of(server) == before


def test_what_a_person_has_set_stays(server):
    server.prefect("variable", "set", "grpo_pipeline_reports_url", "http://127.0.0.1:8000", "--overwrite")
    server.pipeline("setup-prefect", "--devices", "3")
    assert server.api("/variables/name/grpo_pipeline_reports_url")["value"] == "http://127.0.0.1:8000"
    limits = {one["name"]: one["limit"] for one in server.api("/v2/concurrency_limits/filter", {})}
    assert limits[f"tag:{DEVICE_TAG}"] == 1
    server.prefect("variable", "set", "grpo_pipeline_reports_url", "", "--overwrite")
