"""The flows as Prefect deployments: what `grpo-pipeline serve` offers, and `prefect.yaml` says for workers."""

import importlib
from dataclasses import dataclass
from typing import Any, cast

from prefect import Flow
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment

WORK_POOL = "grpo-pipeline"


@dataclass(frozen=True)
class Deployment:
    """A flow as it is deployed.

    Attributes:
        flow: The flow's name, and with underscores its module and function.
        name: The deployment's name; `flow/name` is what Prefect's commands take.
        description: For the UI.
        collision: What happens to a run that finds another one of the deployment at work: it is cancelled, or waits.
        cron: Its schedule, which is inactive until somebody switches it on.
    """

    flow: str
    name: str
    description: str
    collision: ConcurrencyLimitStrategy
    cron: str | None = None

    @property
    def entrypoint(self) -> str:
        """As `prefect.yaml` names it."""
        module = self.flow.replace("-", "_")
        return f"flows/{module}.py:{module}"

    def for_serving(self) -> RunnerDeployment:
        """The deployment for a process that serves it."""
        module = self.flow.replace("-", "_")
        flow: Flow[Any, Any] = getattr(importlib.import_module(f"flows.{module}"), module)
        schedules = [
            DeploymentScheduleCreate(schedule=CronSchedule(cron=cron), active=False, slug="nightly")
            for cron in [self.cron]
            if cron
        ]
        deployment = flow.to_deployment(
            name=self.name,
            description=self.description,
            schedules=schedules or None,
            parameters={"config": {"name": "nightly"}} if self.cron else None,
            concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=self.collision),
            tags=["grpo-pipeline"],
        )
        return cast(RunnerDeployment, deployment)


_CANCEL, _WAIT = ConcurrencyLimitStrategy.CANCEL_NEW, ConcurrencyLimitStrategy.ENQUEUE

DEPLOYMENTS = (
    Deployment("iterate-rl", "default", "Rounds of RL with a reward model that is refreshed after each.", _CANCEL),
    Deployment("next-round", "nightly", "One more round of a run; its schedule is off at first.", _CANCEL, "0 1 * * *"),
    Deployment("build-prm-dataset", "default", "Problems to labelled rows for PRM training.", _WAIT),
    Deployment("train-prm", "default", "A reward model from labelled solutions.", _WAIT),
    Deployment("train-policy", "default", "One round of policy training by the configured method.", _WAIT),
    Deployment("evaluate", "default", "Held-out accuracy, maj@k and pass@k of a model.", _WAIT),
    Deployment("compare-methods", "default", "All methods side by side from one policy: tables and plots.", _WAIT),
    Deployment("evaluate-prm", "default", "Any reward model on ProcessBench, PRM800K and best-of-n.", _WAIT),
)
