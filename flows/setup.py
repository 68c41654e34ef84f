"""`grpo-pipeline setup-prefect`: what the flows need on a Prefect server, made where it is missing.

What is there is left as it is, so a second run changes nothing, and neither does a person's own setting get lost.
"""

import copy
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployments import WORK_POOL
from grpo_pipeline.errors import UserError
from tasks import HEARTBEAT_SECONDS
from tasks.rounds import REPORTS_URL
from tasks.stage import DEVICE_TAG

AUTOMATION = "grpo-pipeline: crashed runs"
VARIABLES = {"grpo_pipeline_root": "runs", REPORTS_URL: ""}
"""Name -> value at first: where deployments store runs, and where their reports are served (empty: nowhere)."""

ENVIRONMENT = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Of a worker's runs; the flows' own defaults (`tasks`) come too late there, since Prefect is imported before them."""

MISSED_HEARTBEATS = 10
"""A run is given up after so many; fewer, and a restart of the server (heartbeats go nowhere then) would do it."""

_ENDED = ("Completed", "Failed", "Cancelled", "Crashed", "Skipped", "TimedOut", "Paused", "Suspended", "AwaitingRetry")
"""States after which no heartbeat is expected."""


def setup_prefect(devices: int) -> Iterator[tuple[str, bool]]:
    """Make what is missing on the server, and name each thing with whether it was made now.

    Args:
        devices: Stages that may use a model at once, over all machines: the number of GPUs, or 1.

    Raises:
        UserError: No server is configured, or it does not answer.
    """
    with get_client(sync_client=True) as client:
        if client.server_type.value == "ephemeral":
            raise UserError(
                "no Prefect server is configured: start one (prefect server start) and name it "
                "(prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api)"
            )
        if (failure := client.api_healthcheck()) is not None:
            raise UserError(f"the Prefect server at {client.api_url} does not answer ({failure}); is it running?")
        yield f"work pool {WORK_POOL}", _pool(client)
        yield f"concurrency limit of tag {DEVICE_TAG}", _limit(client, devices)
        for name, value in VARIABLES.items():
            yield f"variable {name}", _variable(client, name, value)
        yield f"automation {AUTOMATION}", _automation(client)


def in_memory_leases() -> bool:
    """Whether the server forgets at a restart who holds a slot of a concurrency limit, which then stays taken."""
    with get_client(sync_client=True) as client:
        settings = client.request("GET", "/admin/settings").json()
    return str(settings["server"]["concurrency"]["lease_storage"]).endswith(".memory")


def _pool(client: SyncPrefectClient) -> bool:
    try:
        pool = client.read_work_pool(WORK_POOL)
    except ObjectNotFound:
        template = _with_environment(ProcessWorker.get_default_base_job_template())
        about = "Runs of grpo-pipeline's flows"
        create = WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template, description=about)
        client.create_work_pool(create)
        return True
    # A worker that was started first has made the pool, without these.
    template = _with_environment(pool.base_job_template)
    if template == pool.base_job_template:
        return False
    client.update_work_pool(WORK_POOL, WorkPoolUpdate(base_job_template=template))
    return True


def _with_environment(template: dict[str, Any]) -> dict[str, Any]:
    """The template with the variables that a worker's runs need, where they are not set."""
    template = copy.deepcopy(template)
    env = template["variables"]["properties"]["env"]
    env["default"] = ENVIRONMENT | (env.get("default") or {})
    return template


def _limit(client: SyncPrefectClient, devices: int) -> bool:
    try:
        client.read_concurrency_limit_by_tag(DEVICE_TAG)
    except ObjectNotFound:
        client.create_concurrency_limit(tag=DEVICE_TAG, concurrency_limit=devices)
        return True
    return False


def _variable(client: SyncPrefectClient, name: str, value: str) -> bool:
    if client.read_variable_by_name(name) is not None:
        return False
    client.create_variable(VariableCreate(name=name, value=value))
    return True


def _automation(client: SyncPrefectClient) -> bool:
    if client.read_automations_by_name(AUTOMATION):
        return False
    client.create_automation(crash_automation())
    return True


def crash_automation(heartbeat_seconds: int = HEARTBEAT_SECONDS) -> AutomationCore:
    """Marks a run as crashed whose heartbeats have stopped without a final state: it was killed, or its machine.

    Args:
        heartbeat_seconds: Seconds between two heartbeats; `MISSED_HEARTBEATS` of them must be missing.
    """
    ended = {f"prefect.flow-run.{state}" for state in _ENDED}
    return AutomationCore(
        name=AUTOMATION,
        description="Marks runs as crashed whose process was killed or whose machine is gone.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ended},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * heartbeat_seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message="No heartbeat: the process was killed, or its machine is gone. Finished shards are kept; "
                "a retry goes on from them.",
            )
        ],
    )
