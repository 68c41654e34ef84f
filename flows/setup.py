"""`grpo-pipeline setup-prefect`: what the flows need on a Prefect server, made where it is missing.

What is there is left as it is, so a second run changes nothing, and neither does a person's own setting get lost.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate, WorkPoolCreate
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

MISSED_HEARTBEATS = 3

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
        yield f"work pool {WORK_POOL}", _make(lambda: client.read_work_pool(WORK_POOL), lambda: _pool(client, devices))
        yield (
            f"concurrency limit of tag {DEVICE_TAG}",
            _make(
                lambda: client.read_concurrency_limit_by_tag(DEVICE_TAG),
                lambda: client.create_concurrency_limit(tag=DEVICE_TAG, concurrency_limit=devices),
            ),
        )
        for name, value in VARIABLES.items():
            yield f"variable {name}", _variable(client, name, value)
        yield f"automation {AUTOMATION}", _automation(client)


def _make(read: Callable[[], Any], create: Callable[[], Any]) -> bool:
    try:
        read()
    except ObjectNotFound:
        create()
        return True
    return False


def _pool(client: SyncPrefectClient, devices: int) -> None:
    template = ProcessWorker.get_default_base_job_template()
    # A worker imports prefect before the flow, so that the flow's own default would come too late.
    template["variables"]["properties"]["env"]["default"] = {
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    client.create_work_pool(
        WorkPoolCreate(
            name=WORK_POOL, type="process", base_job_template=template, description="Runs of grpo-pipeline's flows"
        )
    )


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
