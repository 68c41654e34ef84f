"""What makes a stage a Prefect task: the store decides what is done already, and the UI says so."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from grpo_pipeline.stages.isolation import run_stage
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef
from tasks.cancellation import ending_the_run, watch_for_cancellation
from tasks.keys import artifact_key
from tasks.progress import progress_artifact
from tasks.publish import publish

P = ParamSpec("P")
R = TypeVar("R", bound=ArtifactRef | ModelRef)

DEVICE_TAG = "grpo-pipeline-device"
"""Tag of tasks that compute with a model, for Prefect's concurrency limit of that name (`setup-prefect`)."""

DEVICE_STAGES = frozenset(
    {
        "sample_rollouts",
        "label_steps",
        "train_reward_model",
        "train_policy",
        "score_rollouts",
        "score_labelled",
        "measure_problems",
    }
)


def stage_task(stage: Callable[P, R]) -> Callable[P, R]:
    """Wrap a stage as a task of the same name and signature.

    Prefect's own result cache is off: it reports a hit when the file behind it is gone, so the store
    decides. A stage that found its artifact ends in the state ``Cached``. The call gives the reference,
    whatever the state's name.
    """

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | State[R]:
        with progress_artifact(*_address(stage, *args, **kwargs)), watch_for_cancellation():
            ref: R = run_stage(stage, *args, **kwargs)
        artifact = ref.artifact if isinstance(ref, ModelRef) else ref
        if artifact is None or ref in args:  # a model from outside, or one that was handed on (choose_completer)
            return ref
        if artifact.cached:
            return Completed(name="Cached", message=f"{artifact.path} was there", data=ref)
        publish(artifact)
        return ref

    summary = (stage.__doc__ or "").strip().splitlines()[0]
    tags = [DEVICE_TAG] if stage.__name__ in DEVICE_STAGES else None
    as_task = task(name=stage.__name__, description=summary, tags=tags, cache_policy=NO_CACHE, persist_result=False)
    prefect_task: Any = as_task(run)

    @functools.wraps(stage)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ending_the_run():
            state = prefect_task(*args, return_state=True, **kwargs)
        result: R = state.result()
        return result

    return call


def _address(stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[str, str]:
    """Key and description of the stage's progress artifact."""
    given = inspect.signature(stage).bind(*args, **kwargs).arguments
    name = "-".join([stage.__name__, *([given["purpose"]] if "purpose" in given else [])]).replace("_", "-")
    about = f"{name}, round {given['round']}" if "round" in given else name
    return artifact_key(given["config"].name, f"{name}-progress"), about
